"""The forecast of one method's curves: draws for right answers, items that are closer, expected metrics of queries."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ray_backfill.core.progress import Task
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.systems import Floats, GroundTruth, IntArray, Switch
from ray_backfill.forecast.counts import CountingShards, Forms, QueryBlock, ShardSetup, ThreadShards, count
from ray_backfill.forecast.estimate import SampledAnswers, Units, structural_errors
from ray_backfill.forecast.expected import Entries, Expectation, SumMetric, expect
from ray_backfill.forecast.models import (
    Calibration,
    Checked,
    DrawnAnswers,
    Floats32,
    KnownForms,
    KnownItems,
    counts_for,
    draw_entries,
    fit_models,
    left_out_of,
)


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
    metrics = [SumMetric.of(name) for name in starts]
    kinds, cuts = (np.array(of) for of in zip(*((metric.kind, metric.cut) for metric in metrics), strict=True))
    moment_ON = np.stack([moments_of(order, points) for order in orders.values()])
    if switch == "at_end":
        moment_ON[:] = points - 1
    rows_N, threads = known.rows_of(truth.n_gallery), usable_cpus()

    def measure(query: _Query, places: IntArray, cells: IntArray) -> tuple[Expectation, int]:
        """Expected metrics of a query from its histograms, and the number of right answers from which those that were
        sampled at random are drawn.
        """
        is_other = counts_for(truth, query.number, known.position)
        moments = moment_ON[:, known.position[is_other]].astype(np.int64)
        at, drawn = query.at, query.drawn
        counts = count(
            places[:, : len(at.after) + 1], cells, moments, query.after[is_other], models.others, at.after,
            models.calibration,
        )  # fmt: skip
        gains = [(metric, metric.gains(truth, query.number)) for metric in metrics]
        gain = np.stack([of_answers / metric.largest(of_answers) for metric, of_answers in gains])[:, drawn.answer]
        entries = Entries(
            at.of_after, at.of_before, moment_ON[:, query.answers[drawn.answer]].astype(np.int64), drawn.rank_share,
            drawn.ahead, drawn.share, gain, drawn.answer, drawn.sampled, drawn.sign,
        )  # fmt: skip
        return expect(entries, counts, kinds, cuts, len(drawn.random)), drawn.pool

    with threadpool_limits(1, "blas"), ThreadPoolExecutor(threads) as pool:
        shards = ThreadShards(gallery, pool, threads) if isinstance(gallery, Forms) else gallery
        models = fit_models(known, forms, truth)
        shards.begin(ShardSetup(moment_ON, points, np.sort(known.position), models.others.cells, truth.filter))
        measured: list[tuple[Expectation, int]] = []
        # Vectors stored as float16 are converted once for all queries of a block; histograms limit their number.
        size = min(128, max(16, 20_000 // (len(moment_ON) * points)))
        for first in range(0, len(known.queries), size):
            queries = known.queries[first : first + size]
            answers = [truth.positives_of(query) for query in queries.tolist()]
            near, after = shards.distances(queries, answers), forms.after.approximate(queries)
            block = []
            for number, positions, (stand_in, before), to_known in zip(
                queries.tolist(), answers, near, after, strict=True
            ):
                rows = rows_N[positions]
                true = np.where(rows >= 0, to_known[rows], np.nan).astype(np.float64)
                at_random = rows >= 0
                at_random[at_random] = known.standing(rows[at_random])
                rng = np.random.default_rng([7, number])
                drawn = draw_entries(models.answers, stand_in.astype(np.float64), true, at_random, rng)
                at = MergedPlaces.of(drawn.after, before[drawn.answer], merge)
                block.append(_Query(number, positions, drawn, at, to_known))
            thresholds = np.full((len(block), max(len(query.at.before) for query in block)), np.inf, np.float32)
            for row, query in enumerate(block):
                thresholds[row, : len(query.at.before)] = query.at.before
            left_out = [left_out_of(truth, query.number) for query in block]
            counted = shards.count(QueryBlock(queries, thresholds, left_out))
            measured += pool.map(measure, block, counted.places, counted.cells)
            if bar:
                bar.advance(len(queries))
    # The structural error of systems with their own heads, relative to that of plain ones: heads map stand-ins less
    # well than real embeddings. docs/results/forecast.md: what intervals with it cover.
    structure = 1.0 if is_plain else 2.0
    scored = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    place = np.searchsorted(scored, known.queries)
    expected, pools = zip(*measured, strict=True)
    value, changes = np.stack([query.value for query in expected]), np.stack([query.changes for query in expected])
    own = np.concatenate([query.own for query in expected], axis=1)
    of_query = np.repeat(np.arange(len(expected)), [query.own.shape[1] for query in expected])
    units = {
        order: {
            name: Units(
                starts[name][scored][:, None], place, known.group, known.n_groups, value[:, o, :, r],
                changes[:, 1:, o, :, r], {system: structural_errors(structure * changes[:, 0, o, :, r])},
                SampledAnswers(own[o, :, :, r], of_query, np.array(pools)),
            )
            for r, name in enumerate(starts)
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


class MergedPlaces(NamedTuple):
    """M places in the merged ranking at which right answers stand, first to last.

    after, before: (M,) an item precedes a place if its distance is below ``after`` once it is backfilled, or below
    ``before`` until then. of_after, of_before: (K,) places of K entries, after and before their own backfill.
    """

    after: Floats32
    before: Floats32
    of_after: IntArray
    of_before: IntArray

    @classmethod
    def of(cls, after: Floats32, before: Floats32, merge: Merge) -> "MergedPlaces":
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
    drawn: DrawnAnswers
    at: MergedPlaces
    after: Floats32
