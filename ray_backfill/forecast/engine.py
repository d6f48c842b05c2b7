"""The forecast of one method's curves: draws for right answers, items that are closer, expected metrics of queries."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.core.progress import Task
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.systems import GroundTruth, IntArray, Switch
from ray_backfill.forecast.counts import CountingShards, Forms, LocalShards, QueryBlock, ShardSetup, count
from ray_backfill.forecast.estimate import SampledAnswers, Units, structural_errors
from ray_backfill.forecast.expected import Entries, Expectation, SumMetric, expect
from ray_backfill.forecast.models import (
    Calibration,
    Checked,
    Drawn,
    Floats,
    Floats32,
    KnownForms,
    KnownItems,
    Models,
    draw_entries,
    fit_models,
    left_out_of,
)

# Structural error of systems with their own heads, relative to that of plain ones: heads map stand-ins less well
# than real embeddings. docs/results/forecast.md: what intervals with it cover.
_OWN_HEADS = 2.0
# Queries that are counted together, at most: vectors stored as float16 are converted once for all of them.
_BLOCK = 128
# Orders x moments x queries that are counted together, which limits the memory for histograms.
_MOMENTS = 20_000
_SEED = 7


@dataclass(frozen=True, eq=False)
class Forecast:
    """units: order -> metric -> curve. calibration, checked: of the model of other items."""

    units: Mapping[str, Mapping[str, Units]]
    calibration: Calibration
    checked: Sequence[Checked]


def forecast_pair(
    gallery: Forms | CountingShards, known: KnownItems, forms: KnownForms, truth: GroundTruth,
    orders: Mapping[str, IntArray], switch: Switch, starts: Mapping[str, Floats], points: int,
    system: str, is_plain: bool, bar: Task | None = None, merge: Merge = RAW,
) -> Forecast:  # fmt: skip
    """Forecast the curves of a method.

    gallery: distances to all items, or shards that have them. forms: to the known items. orders: name -> (N,) order.
    switch: see ``UpgradePair``. starts: metric -> (Q,) its exact values at t = 0; of queries without right answers they
    do not count. points: number of moments, evenly spaced. system: a name of the forward system; methods that share it
    share the structural error of its counts. is_plain: whether it is a plain {new, new}. merge: of the distances of
    gallery and forms; with CSLS, these are changed already (``methods.form_of``).
    Cost: 3 products of m queries with the gallery, 2 if old items are served by their old distances, and O(m N) for
    each order.
    """
    threads = usable_cpus()
    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        shards = LocalShards(gallery, pool, threads) if isinstance(gallery, Forms) else gallery
        models = fit_models(known, forms, truth)
        moment_ON = np.stack([moments_of(order, points) for order in orders.values()])
        if switch == "at_end":
            moment_ON[:] = points - 1
        shards.begin(ShardSetup(moment_ON, points, np.sort(known.position), models.others.cells))
        metrics = {name: SumMetric.of(name) for name in starts}
        chosen = _ChosenQueries(known, forms, truth, models, moment_ON, points, metrics, merge)
        measured = chosen.measure(shards, pool, bar)
    structure = 1.0 if is_plain else _OWN_HEADS
    scored = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    place = np.searchsorted(scored, known.queries)
    value, changes = (np.stack([getattr(found, name) for found, _ in measured]) for name in ("value", "changes"))
    own, pools = np.concatenate([found.own for found, _ in measured], axis=1), np.array([pool for _, pool in measured])
    of_query = np.repeat(np.arange(len(measured)), [found.own.shape[1] for found, _ in measured])
    units = {
        order: {
            name: Units(
                starts[name][scored][:, None], place, known.group, known.n_groups, value[:, o, :, r],
                changes[:, 1:, o, :, r], {system: structural_errors(structure * changes[:, 0, o, :, r])},
                SampledAnswers(own[o, :, :, r], of_query, pools),
            )
            for r, name in enumerate(metrics)
        }
        for o, order in enumerate(orders)
    }  # fmt: skip
    return Forecast(units, models.calibration, models.checked)


def moments_of(order: IntArray, points: int) -> NDArray[np.int16]:
    """(N,) index of the first of ``points`` moments at which each item is backfilled. order: (N,) positions."""
    done = np.floor(np.linspace(0, 1, points) * len(order) + 1e-9).astype(np.int64)
    out = np.empty(len(order), np.int16)
    out[order] = np.searchsorted(done, np.arange(len(order)), side="right")
    return out


class Thresholds(NamedTuple):
    """M places in the merged ranking at which right answers stand, first to last.

    after, before: (M,) an item precedes a place if its distance is below ``after`` once it is backfilled, or below
    ``before`` until then. of_after, of_before: (K,) places of K entries, after and before their own backfill.
    """

    after: Floats32
    before: Floats32
    of_after: IntArray
    of_before: IntArray

    @classmethod
    def of(cls, after: Floats32, before: Floats32, merge: Merge) -> "Thresholds":
        """The places of entries by their (K,) distances after and before their backfill."""
        number = len(after)
        x = np.concatenate([after, merge.across(before, from_forward=False)[0]])
        y = np.concatenate([merge.across(after, from_forward=True)[0], before])
        order = np.lexsort((y, x))
        x, y = x[order], y[order]
        differs = np.append(True, (np.diff(x) > 0) | (np.diff(y) > 0))
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(differs) - 1
        return cls(x[differs], y[differs], place[:number], place[number:])


@dataclass(frozen=True, eq=False)
class _Query:
    """A chosen query before its items are counted. at: of its entries. after: (n,) distances of the known items."""

    number: int
    answers: IntArray
    drawn: Drawn
    at: Thresholds
    after: Floats32


@dataclass(frozen=True, eq=False)
class _ChosenQueries:
    """The chosen queries of one method. moment_ON, points: when items are backfilled, see ``ShardSetup``."""

    known: KnownItems
    forms: KnownForms
    truth: GroundTruth
    models: Models
    moment_ON: NDArray[np.int16]
    points: int
    metrics: Mapping[str, SumMetric]
    merge: Merge

    def measure(self, shards: CountingShards, pool: Executor, bar: Task | None) -> list[tuple[Expectation, int]]:
        """Expected metrics of all chosen queries, and the number of right answers from which those that were sampled
        at random are drawn; by one pass over the gallery for each block of queries.
        """
        found: list[tuple[Expectation, int]] = []
        rows_N = self.known.rows_of(self.truth.n_gallery)
        size = min(_BLOCK, max(16, _MOMENTS // (len(self.moment_ON) * self.points)))
        for first in range(0, len(self.known.queries), size):
            queries = self.known.queries[first : first + size]
            answers = [self.truth.positives_of(query) for query in queries.tolist()]
            near, after = shards.distances(queries, answers), self.forms.after.approximate(queries)
            block = [
                self._draw(query, own, rows_N[own], stand_in, before, row)
                for query, own, (stand_in, before), row in zip(queries.tolist(), answers, near, after, strict=True)
            ]
            left_out = [left_out_of(self.truth, query) for query in queries.tolist()]
            counted = shards.count(QueryBlock(queries, _filled([each.at.before for each in block]), left_out))
            found += pool.map(self._measure, block, counted.places, counted.cells)
            if bar:
                bar.advance(len(queries))
        return found

    def _draw(
        self, query: int, answers: IntArray, rows: IntArray, stand_in: Floats32, before: Floats32, after: Floats32
    ) -> _Query:
        """rows: (P,) of the right answers among the known items, -1 for others. stand_in, before: (P,) distances."""
        true = np.where(rows >= 0, after[rows], np.nan).astype(np.float64)
        at_random = rows >= 0
        at_random[at_random] = self.known.standing(rows[at_random])
        rng = np.random.default_rng([_SEED, query])
        drawn = draw_entries(self.models.answers, stand_in.astype(np.float64), true, at_random, rng)
        return _Query(query, answers, drawn, Thresholds.of(drawn.after, before[drawn.answer], self.merge), after)

    def _measure(self, query: _Query, places: IntArray, cells: IntArray) -> tuple[Expectation, int]:
        """places, cells: of this query, as in ``Histograms``."""
        is_other = ~np.isin(self.known.position, left_out_of(self.truth, query.number))
        moments = self.moment_ON[:, self.known.position[is_other]].astype(np.int64)
        at, calibration, drawn = query.at, self.models.calibration, query.drawn
        own = places[:, : len(at.after) + 1]
        counts = count(own, cells, moments, query.after[is_other], self.models.others, at.after, calibration)
        gains = [(metric, metric.gains(self.truth, query.number)) for metric in self.metrics.values()]
        gain = np.stack([each / metric.largest(each) for metric, each in gains])[:, drawn.answer]
        entries = Entries(
            at.of_after, at.of_before, self.moment_ON[:, query.answers[drawn.answer]].astype(np.int64),
            drawn.rank_share, drawn.ahead, drawn.share, gain, drawn.answer, drawn.sampled, drawn.sign,
        )  # fmt: skip
        kinds, cuts = (np.array([getattr(each, name) for each in self.metrics.values()]) for name in ("kind", "cut"))
        return expect(entries, counts, kinds, cuts, calibration.variance, len(drawn.random)), drawn.pool


def _filled(thresholds: list[Floats32]) -> Floats32:
    """(b, M) thresholds of several queries, filled up with infinity."""
    out = np.full((len(thresholds), max(map(len, thresholds))), np.inf, np.float32)
    for row, own in enumerate(thresholds):
        out[row, : len(own)] = own
    return out
