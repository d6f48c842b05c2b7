"""The chosen queries of a forecast: their distances, the items closer than their right answers, their metrics."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm
from ray_backfill.forecast.answers import RightAnswers, fit_answers, logarithms
from ray_backfill.forecast.calibration import Checked, check
from ray_backfill.forecast.counts import Counts, QueryDistances, count, counts_error
from ray_backfill.forecast.draws import Drawn, draw_entries
from ray_backfill.forecast.expected import Entries, expect
from ray_backfill.forecast.metrics import SumMetric
from ray_backfill.forecast.others import CELLS, OtherItems, find_cells, fit_others
from ray_backfill.progress import Stage
from ray_backfill.systems import GroundTruth, IntArray

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
# Queries whose distances to the whole gallery are in memory at once.
_BLOCK = 16
# Pairs of a query and an item from which the model of other items is fitted.
_PAIRS = 4_000_000
_SEED = 7


@dataclass(frozen=True, eq=False)
class Known:
    """Items whose new embeddings are known, and the chosen queries.

    position: (n,) gallery positions. at_random: (n,) whether an item was drawn at random. queries, group, n_groups: as
    in ``Sample``.
    """

    position: IntArray
    at_random: NDArray[np.bool_]
    queries: IntArray
    group: IntArray
    n_groups: int


@dataclass(frozen=True, eq=False)
class Forms:
    """Distances. stand_in: of the stand-ins, by the forward system. old: by the old model. before: by the backward
    system. after: of the known items, by the forward system.
    """

    stand_in: ProductForm
    old: ProductForm
    before: ProductForm
    after: ProductForm


@dataclass(frozen=True, eq=False)
class Counted:
    """A chosen query after the pass over the gallery. moments: (O, K) of its entries' answers."""

    query: int
    drawn: Drawn
    counts: Counts
    before: IntArray
    after: IntArray
    moments: NDArray[np.int64]
    checked: Checked


@dataclass(frozen=True, eq=False)
class Measured:
    """Metrics of a chosen query. value: (O, T, R). own: (O, n, T, R) of each randomly sampled answer. largest: (R,)."""

    value: Floats
    own: Floats
    largest: Floats


class ChosenQueries:
    """The steps of a forecast on the chosen queries of one method."""

    def __init__(self, forms: Forms, known: Known, truth: GroundTruth) -> None:
        self.forms, self.known, self.truth = forms, known, truth
        self.row_N = np.full(truth.n_gallery, -1)
        self.row_N[known.position] = np.arange(len(known.position))

    def fit_others(self) -> OtherItems:
        """Fit the model of other items on the randomly sampled items and some of all queries."""
        rows = np.flatnonzero(self.known.at_random)
        items = self.known.position[rows]
        scored = np.flatnonzero(np.diff(self.truth.positive_starts) > 0)
        number = max(1, min(len(scored), _PAIRS // len(items)))
        queries = np.sort(np.random.default_rng(_SEED).choice(scored, number, replace=False))
        is_other = ~np.stack([np.isin(items, self._left_out(query)) for query in queries.tolist()])
        forms = (self.forms.stand_in.of_items(items), self.forms.old.of_items(items), self.forms.after.of_items(rows))
        return fit_others(*(form.approximate(queries)[is_other] for form in forms))

    def fit_answers(self) -> RightAnswers:
        """Fit the model of right answers on those that were sampled at random."""
        pairs = []
        for query in self.known.queries.tolist():
            answers = self.truth.positives_of(query)
            rows = self.row_N[answers]
            there = (rows >= 0) & self.known.at_random[rows]
            one = np.array([query])
            of_stand_in = self.forms.stand_in.of_items(answers[there]).approximate(one)[0]
            true = self.forms.after.of_items(rows[there]).approximate(one)[0]
            pairs.append((logarithms(of_stand_in), logarithms(true)))
        return fit_answers(pairs)

    def count(
        self, others: OtherItems, answers: RightAnswers, moment_ON: NDArray[np.int16], points: int, bar: Stage | None
    ) -> list[Counted]:
        """Count closer items, in one pass over the gallery. Memory: 12 bytes per item and query of a block."""
        found: list[Counted] = []
        forms = (self.forms.stand_in, self.forms.old, self.forms.before, self.forms.after)
        with ThreadPoolExecutor() as pool:
            for first in range(0, len(self.known.queries), _BLOCK):
                queries = self.known.queries[first : first + _BLOCK]
                rows = zip(queries.tolist(), *(form.approximate(queries) for form in forms), strict=True)
                one = partial(self._count, others, answers, moment_ON, points)
                found += pool.map(lambda row, one=one: one(*row), rows)
                if bar:
                    bar.advance(len(queries))
        return found

    def _count(
        self, others: OtherItems, model: RightAnswers, moment_ON: NDArray[np.int16], points: int, query: int,
        stand_in: Floats32, old: Floats32, before: Floats32, after: Floats32,
    ) -> Counted:  # fmt: skip
        answers, left_out = self.truth.positives_of(query), self._left_out(query)
        rows = self.row_N[answers]
        true = np.where(rows >= 0, after[rows], np.nan).astype(np.float64)
        at_random = (rows >= 0) & self.known.at_random[rows]
        rng = np.random.default_rng([_SEED, query])
        drawn = draw_entries(model, stand_in[answers].astype(np.float64), true, at_random, rng)
        own_before = before[answers[drawn.answer]]
        thresholds = np.unique(np.concatenate([drawn.after, own_before]))
        is_other = ~np.isin(self.known.position, left_out)
        distances = QueryDistances(
            stand_in, old, before, left_out, self.known.position[is_other], after[is_other]
        )  # fmt: skip
        return Counted(
            query, drawn, count(distances, others, moment_ON, points, thresholds),
            np.searchsorted(thresholds, own_before), np.searchsorted(thresholds, drawn.after),
            moment_ON[:, answers[drawn.answer]].astype(np.int64),
            self._check(others, distances, is_other, np.sort(true[drawn.random]), len(answers)),
        )  # fmt: skip

    def _check(
        self, others: OtherItems, distances: QueryDistances, is_other: NDArray[np.bool_], at: Floats, answers: int
    ) -> Checked:
        """Compare observed and expected closer items among those sampled at random."""
        random = self.known.at_random[is_other]
        items, thresholds = distances.known[random], at.astype(np.float32)
        cells = np.empty(len(items), np.int16)
        find_cells(
            distances.stand_in[items], distances.old[items], others.coefficients, others.low, others.width, cells
        )
        expected = np.bincount(cells, minlength=CELLS) @ others.cumulative(thresholds)
        observed = np.searchsorted(np.sort(distances.after[random]), thresholds).astype(np.float64)
        return check(observed, expected, len(items) / self.truth.n_gallery, answers)

    def _left_out(self, query: int) -> IntArray:
        return np.concatenate([self.truth.positives_of(query), self.truth.ignored_of(query)])

    def measure(
        self, counted: Sequence[Counted], metrics: Mapping[str, SumMetric], factors: Floats, are_higher: bool = False
    ) -> list[Measured]:
        """Expected metrics of all chosen queries. are_higher: with expected counts that are higher by their error."""
        kinds, cuts = (np.array([getattr(each, name) for each in metrics.values()]) for name in ("kind", "cut"))

        def one(each: Counted) -> Measured:
            gains = np.stack([metric.gains(self.truth, each.query) for metric in metrics.values()])
            largest = np.array([m.largest(gains[r]) for r, m in enumerate(metrics.values())])
            drawn, expected = each.drawn, each.counts.expected
            if are_higher:
                expected = expected + counts_error(expected)
            share = drawn.share * gains[:, drawn.answer] / largest[:, None]
            entries = Entries(
                each.after, each.before, each.moments, drawn.rank_share, share, drawn.answer, drawn.sampled, drawn.sign
            )
            value, own = expect(entries, each.counts.known, expected, kinds, cuts, factors, len(drawn.random))
            return Measured(value, own * gains[:, drawn.random].T[:, None], largest)

        with ThreadPoolExecutor() as pool:
            return list(pool.map(one, counted))
