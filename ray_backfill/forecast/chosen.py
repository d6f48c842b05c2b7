"""The chosen queries of a forecast: draws for their right answers, items closer than these, expected metrics."""

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.progress import Task
from ray_backfill.engine.systems import GroundTruth, IntArray
from ray_backfill.forecast.counts import count
from ray_backfill.forecast.draws import Drawn, draw_entries
from ray_backfill.forecast.expected import Entries, Expectation, expect
from ray_backfill.forecast.metrics import SumMetric
from ray_backfill.forecast.models import Known, KnownForms, Models, left_out_of
from ray_backfill.forecast.slices import Asked, Slices

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
# Queries that are counted together, at most: vectors stored as float16 are converted once for all of them.
_BLOCK = 128
# Orders x moments x queries that are counted together, which limits the memory for histograms.
_MOMENTS = 20_000
_SEED = 7


@dataclass(frozen=True, eq=False)
class Measured:
    """Metrics of a chosen query. found: their expectation. pool: number of right answers from which those that were
    sampled at random are drawn.
    """

    found: Expectation
    pool: int


@dataclass(frozen=True, eq=False)
class _Query:
    """A chosen query before its items are counted. after: (n,) distances of the known items."""

    number: int
    answers: IntArray
    drawn: Drawn
    own_before: Floats32
    after: Floats32

    @property
    def thresholds(self) -> Floats32:
        """(M,) distances of right answers before and after their backfill, ascending."""
        return np.unique(np.concatenate([self.drawn.after, self.own_before]))


@dataclass(frozen=True, eq=False)
class ChosenQueries:
    """The chosen queries of one method. moment_ON, points: when items are backfilled, see ``Plan``."""

    known: Known
    forms: KnownForms
    truth: GroundTruth
    models: Models
    moment_ON: NDArray[np.int16]
    points: int
    metrics: Mapping[str, SumMetric]

    def measure(self, slices: Slices, pool: Executor, bar: Task | None) -> list[Measured]:
        """Expected metrics of all chosen queries, by one pass over the gallery for each block of them."""
        found: list[Measured] = []
        rows_N = np.full(self.truth.n_gallery, -1)
        rows_N[self.known.position] = np.arange(len(self.known.position))
        size = min(_BLOCK, max(16, _MOMENTS // (len(self.moment_ON) * self.points)))
        for first in range(0, len(self.known.queries), size):
            queries = self.known.queries[first : first + size]
            answers = [self.truth.positives_of(query) for query in queries.tolist()]
            near, after = slices.distances(queries, answers), self.forms.after.approximate(queries)
            block = [
                self._draw(query, own, rows_N[own], stand_in, before, row)
                for query, own, (stand_in, before), row in zip(queries.tolist(), answers, near, after, strict=True)
            ]
            thresholds = _filled([each.thresholds for each in block])
            counted = slices.count(Asked(queries, thresholds, [left_out_of(self.truth, q) for q in queries.tolist()]))
            found += pool.map(
                self._measure, block, counted.places, counted.cells,
            )  # fmt: skip
            if bar:
                bar.advance(len(queries))
        return found

    def _draw(
        self, query: int, answers: IntArray, rows: IntArray, stand_in: Floats32, before: Floats32, after: Floats32
    ) -> _Query:  # fmt: skip
        """rows: (P,) of the right answers among the known items, -1 for others. stand_in, before: (P,) distances."""
        true = np.where(rows >= 0, after[rows], np.nan).astype(np.float64)
        at_random = rows >= 0
        at_random[at_random] = self.known.standing(rows[at_random])
        rng = np.random.default_rng([_SEED, query])
        drawn = draw_entries(self.models.answers, stand_in.astype(np.float64), true, at_random, rng)
        return _Query(query, answers, drawn, before[drawn.answer], after)

    def _measure(
        self, query: _Query, places: NDArray[np.int64], cells: NDArray[np.int64]
    ) -> Measured:  # fmt: skip
        """places, cells: of this query, as in ``Histograms``."""
        is_other = ~np.isin(self.known.position, left_out_of(self.truth, query.number))
        moments = self.moment_ON[:, self.known.position[is_other]].astype(np.int64)
        at = query.thresholds
        own = places[:, : len(at) + 1]
        counts = count(
            own, cells, moments, query.after[is_other], self.models.others, at, self.models.calibration.beyond
        )
        gains = [(metric, metric.gains(self.truth, query.number)) for metric in self.metrics.values()]
        drawn = query.drawn
        gain = np.stack([each / metric.largest(each) for metric, each in gains])[:, drawn.answer]
        entries = Entries(
            np.searchsorted(at, drawn.after), np.searchsorted(at, query.own_before),
            self.moment_ON[:, query.answers[drawn.answer]].astype(np.int64),
            drawn.rank_share, drawn.ahead, drawn.share, gain, drawn.answer, drawn.sampled, drawn.sign,
        )  # fmt: skip
        kinds, cuts = (np.array([getattr(each, name) for each in self.metrics.values()]) for name in ("kind", "cut"))
        return Measured(
            expect(entries, counts, kinds, cuts, self.models.calibration.variance, len(drawn.random)), drawn.pool
        )


def _filled(thresholds: list[Floats32]) -> Floats32:
    """(b, M) thresholds of several queries, filled up with infinity."""
    out = np.full((len(thresholds), max(map(len, thresholds))), np.inf, np.float32)
    for row, own in enumerate(thresholds):
        out[row, : len(own)] = own
    return out
