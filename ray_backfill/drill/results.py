"""Computes the quality of live answers, and the tables of a drill from its raw answers and logs on disk.

Live quality are the replay's metrics of top-k lists; exact quality is that of exact search over the same gallery. Times
are seconds since the drill began. Shapes: Q queries, k items per answer, N gallery items, M metrics.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.resolve import Comparison
from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import frame
from ray_backfill.drill import tables
from ray_backfill.drill.journal import Applied, CheckpointMeasured, Incident, Journal, JournalEntry, Started, of_type
from ray_backfill.drill.parts import read_part
from ray_backfill.drill.plan import NEW, NOWHERE, OLD, DrillPlan, positions_of
from ray_backfill.drill.shard import read_answers
from ray_backfill.drill.tables import CheckpointRow, Phase, QualityRow
from ray_backfill.drill.traffic import read_events
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.lists import RankedLists, measure_lists
from ray_backfill.engine.merges import RAW, Merge
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.replay import Curve, replay, replay_moment
from ray_backfill.engine.replay.prepare import as_served
from ray_backfill.engine.statistics import Weights, relative_weights
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings
from ray_backfill.learn.sides import Sides
from ray_backfill.pipeline.live import Answering
from ray_backfill.pipeline.replay import replay_service
from ray_backfill.pipeline.service import Service

# Fewer requests have no p99: it would be the slowest of them.
_ENOUGH = 100


def drill_tables(
    folder: Path, comparison: Comparison, sides: Sides, plan: DrillPlan, answering: Answering
) -> dict[str, pd.DataFrame]:
    """The tables of a drill's report. Cost: one replay per checkpoint.

    comparison: has the embeddings before the drill, the right answers, the metrics and the service. answering: made the
    live answers.
    """
    truth, metrics = comparison.truth, comparison.evaluation.metrics
    entries = Journal(folder).entries()
    events = with_phases(read_events(folder), entries)
    # All embeddings at the end of the drill, with ones where there are none; and the broken items by operation.
    gallery = {model: np.ones((plan.n_items, sides.dims[model]), np.float32) for model in sides.method.new_models}
    stored = comparison.folder.gallery.vectors
    gallery |= {model: np.array(stored[model], np.float32) for model in sides.method.old_models}
    broken: dict[int, IntArray] = {}
    for operation in plan.embedded:
        part = read_part(folder, operation)
        for model, values in part.vectors.items():
            gallery[model][part.positions] = values
        if part.broken:
            broken[operation.number] = part.broken_positions
    embedded = Embeddings(comparison.embeddings.query, gallery)
    pair = sides.method.pair(embedded, sides.network)
    checkpoints: list[CheckpointRow] = []
    quality: list[QualityRow] = []
    measurements = sorted(of_type(entries, CheckpointMeasured), key=lambda entry: entry.moment)
    ends_s = [0.0, *(entry.elapsed_s for entry in measurements[:-1]), math.inf]  # the last segment is open-ended
    for checkpoint, measured, (start_s, end_s) in zip(plan.checkpoints, measurements, pairwise(ends_s), strict=True):
        segment = Segment(start_s, measured.began_s, end_s)
        state = plan.state(checkpoint.applied, broken)
        live_Qk = read_answers(folder, checkpoint.moment)
        exact_Qk = exact_answers(sides, pair, state, answering, truth.filter)
        live = live_quality(live_Qk, only_alive(truth, state), metrics)
        exact = exact_quality(pair, truth, state, metrics, sides.distance, sides.merge, comparison.service)
        quality += [QualityRow(checkpoint.moment, checkpoint.t, m, live[m], exact[m]) for m in metrics]
        figures = counts(plan, checkpoint, state, broken, measured) | served(events, entries, segment)
        old, new = (recall(live_Qk, exact_Qk, state, side) for side in (OLD, NEW))
        checkpoints.append(CheckpointRow(**figures, old_recall=old, new_recall=new))
    is_plain = not broken and not len(plan.held_back) and all(o.kind == "backfill" for o in plan.operations)
    return {
        "checkpoints": frame(CheckpointRow, checkpoints),
        "quality": frame(QualityRow, quality),
        "replayed": frame(tables.ReplayedRow, _replayed(comparison, sides, plan, embedded, pair, is_plain)),
        "timeline": frame(tables.SecondRow, timeline(entries, events)),
        "phases": frame(tables.PhaseRow, phases(entries, events)),
        "incidents": frame(tables.IncidentRow, incidents(entries, broken)),
    }


def _replayed(
    comparison: Comparison, sides: Sides, plan: DrillPlan, embedded: Embeddings, pair: UpgradePair, is_plain: bool
) -> list[tables.ReplayedRow]:
    """The replayed curve, and as references the old service and the finished upgrade.

    is_plain: the drill was only a backfill. Otherwise there is no curve, as the replay describes another gallery.
    """
    truth, metrics, points = comparison.truth, comparison.evaluation.metrics, comparison.evaluation.points
    service = comparison.service
    rows = []
    if is_plain:
        if service is None:
            curve = replay(pair, truth, plan.order, points, metrics, sides.distance, merge=sides.merge)
        else:
            curve = _behind(service, pair, truth, plan.order, points, metrics, sides.distance, sides.merge)
        rows = [
            tables.ReplayedRow(metric, t, stable_mean(values_QT[:, i], curve.weights), "backfill")
            for metric, values_QT in curve.per_query.items()
            for i, t in enumerate(curve.t)
        ]
    state = plan.start()
    for model in ("old", "new") if is_plain and "new" in sides.method.new_models else ("old",):
        system = RetrievalSystem(embedded.query[model], embedded.gallery[model])
        alone = UpgradePair(system, system)
        value = exact_quality(alone, truth, state, metrics, sides.distance, RAW, service)
        rows += [tables.ReplayedRow(metric, t, value[metric], model) for metric in metrics for t in (0.0, 1.0)]
    return rows


def depth(metrics: Sequence[str], truth: GroundTruth) -> int:
    """Number of items an answer needs for these metrics: their largest cutoff plus the most ignored items of a query.

    Raises:
        InputError: a metric needs the whole ranking, which a service does not return.
    """
    cuts = [parse_metric(metric).k for metric in metrics]
    if None in cuts:
        raise InputError("a live drill returns only the top items: choose metrics with a cutoff, such as mAP@100")
    return max(k for k in cuts if k) + int(np.diff(truth.ignored_starts).max())


def only_alive(truth: GroundTruth, state: NDArray[np.uint8]) -> GroundTruth:
    """The ground truth restricted to items in service; positions stay the same, absent items are dropped."""
    alive = state != NOWHERE
    return truth if alive.all() else truth.only(alive)


def live_quality(item_Qk: IntArray, truth: GroundTruth, metrics: Sequence[str]) -> dict[str, float]:
    """Metric -> mean over the queries that have a positive. item_Qk: answers to all queries. Cost: O(Q k)."""
    scored = _scored(truth)
    values, _ = measure_lists(item_Qk[scored], truth, scored, metrics)
    return {metric: stable_mean(values[:, 0, m], _weights(truth)) for m, metric in enumerate(metrics)}


def exact_quality(
    pair: UpgradePair, truth: GroundTruth, state: NDArray[np.uint8], metrics: Sequence[str], distance: str,
    merge: Merge, service: Service | None = None,
) -> dict[str, float]:  # fmt: skip
    """Metric -> quality of exact search over the gallery in this state, computed by the replay engine.

    pair: covers all N items, including those that are NOWHERE. service: none if an item is NOWHERE. Cost: one replay.
    """
    there = only_alive(truth, state)
    if len(there.skipped) == there.n_queries:
        return dict.fromkeys(metrics, math.nan)
    if service is not None:
        order, backfilled = np.argsort(state != NEW, kind="stable"), int((state == NEW).sum())
        # The second one of three points.
        curve = _behind(service, pair, truth, order, 3, metrics, distance, merge, np.array([backfilled, len(state)]))
        return {name: stable_mean(of_metric[:, 1], _weights(truth)) for name, of_metric in curve.per_query.items()}
    alive = np.flatnonzero(state != NOWHERE)
    part = pair if len(alive) == len(state) else pair.of_items(alive)
    of_part = truth.part(np.arange(truth.n_queries), alive)
    if truth.filter is not None:
        of_part = of_part.with_filter(Filter(truth.filter.of_query, truth.filter.of_item[alive]))
    values = replay_moment(part, of_part, state[alive] == NEW, metrics, distance, merge)
    return {metric: stable_mean(of_metric, _weights(there)) for metric, of_metric in values.items()}


def _behind(
    service: Service, pair: UpgradePair, truth: GroundTruth, order: IntArray, points: int, metrics: Sequence[str],
    distance: str, merge: Merge, backfilled: IntArray | None = None,
) -> Curve:  # fmt: skip
    """The replayed curve behind a service's stages. backfilled: (T - 1,) items at each point but the first."""
    systems, served = as_served(pair, {"": order}, merge)
    if backfilled is not None:
        served = replace(served, backfilled={"": backfilled})
    ((curves,),) = replay_service(systems, [served], truth, points, metrics, distance, service)
    return curves[""]


def _scored(truth: GroundTruth) -> IntArray:
    """The queries that have a positive."""
    return np.setdiff1d(np.arange(truth.n_queries), truth.skipped)


def _weights(truth: GroundTruth) -> Weights:
    """Relative weights of the scored queries; None if they are equal."""
    return None if truth.weights is None else relative_weights(truth.weights[_scored(truth)])


def stable_mean(values: NDArray[np.float64], weights: Weights = None) -> float:
    """Weighted mean of correctly rounded sums, which do not depend on the order; NaN if there are no values."""
    if weights is not None:
        return math.fsum(weights * values) / math.fsum(weights)
    return math.fsum(values) / len(values) if len(values) else math.nan


def exact_answers(
    sides: Sides, pair: UpgradePair, state: NDArray[np.uint8], answering: Answering, parts: Filter | None = None
) -> IntArray:
    """(Q, k) positions of the answers by exact search over a gallery in this state. parts: what a query can find."""
    prepared, distance = sides.merge.prepare(pair, sides.distance)

    def found(system: RetrievalSystem, side: int, rows: IntArray, items: IntArray) -> RankedLists:
        positions = items[state[items] == side]
        partition = make_partition(IndexSettings(), distance, system.gallery.shape[1], None)
        return partition.with_rows(system.gallery[positions], positions).search(system.query[rows], answering.retrieve)

    whole = np.arange(pair.n_queries), np.arange(len(state))
    item_Qk = np.full((pair.n_queries, answering.k), -1)
    for part in [whole] if parts is None else parts.parts():
        old, new = found(prepared.backward, OLD, *part), found(prepared.forward, NEW, *part)
        item = answering.answers(old, new, part[0]).item
        item_Qk[part[0], : item.shape[1]] = item
    return item_Qk


def recall(live_Qk: IntArray, exact_Qk: IntArray, state: NDArray[np.uint8], side: int) -> float:
    """Share of the exact answers' items on one side (OLD or NEW) that the live answers contain too.

    Pooled over all queries; NaN if the exact answers contain no such item.
    """
    number = len(state) * np.arange(len(exact_Qk))[:, None]  # with an item: of a query's answer
    wanted = (number + exact_Qk)[(exact_Qk >= 0) & (state[exact_Qk] == side)]
    is_there = np.isin(wanted, (number + live_Qk)[live_Qk >= 0])
    return int(is_there.sum()) / len(wanted) if len(wanted) else math.nan


class Segment(NamedTuple):
    """The time of a segment: from the end of the previous measurement to the start and the end of its own."""

    start_s: float
    began_s: float
    end_s: float


def counts(
    plan: DrillPlan, checkpoint: tables.Checkpoint, state: NDArray[np.uint8], broken: Mapping[int, IntArray],
    measured: CheckpointMeasured,
) -> dict[str, Any]:  # fmt: skip
    """The fields of ``CheckpointRow`` on items: partition sizes and the changes to the gallery so far."""
    done = plan.operations[: checkpoint.applied]
    backfilled, inserted, deleted = (
        positions_of(o for o in done if o.kind == kind) for kind in ("backfill", "insert", "delete")
    )
    kept_old = sum(len(broken.get(o.number, ())) for o in done if o.kind == "backfill")
    return {
        "moment": checkpoint.moment, "t": checkpoint.t, "phase": checkpoint.phase,
        "backfilled": len(backfilled) - kept_old, "kept_old": kept_old,
        "old_items": int((state == OLD).sum()), "new_items": int((state == NEW).sum()),
        "inserted": int((state[inserted] != NOWHERE).sum()), "deleted": len(deleted),
        "old_bytes": measured.old_bytes, "new_bytes": measured.new_bytes, "elapsed_s": measured.elapsed_s,
    }  # fmt: skip


def phases_at(times_s: NDArray[np.float64], entries: Sequence[JournalEntry]) -> NDArray[Any]:
    """The phase of each moment: the only rule by which requests, writes and seconds are assigned to phases.

    The backfill begins with the first measurement, when embedding starts, and ends with its last write.
    """
    measured, written_s = of_type(entries, CheckpointMeasured), [entry.elapsed_s for entry in backfills(entries)]
    first_s = min([*written_s, *(entry.began_s for entry in measured if entry.moment == 0)], default=math.inf)
    begun = np.where(times_s <= max(written_s, default=-math.inf), Phase.DURING, Phase.AFTER)
    phase = np.where(times_s < first_s, Phase.BEFORE, begun)
    for entry in measured:  # times are rounded, and the write before is not part of it
        phase[(entry.began_s < times_s) & (times_s < entry.elapsed_s)] = Phase.MEASURING
    for start_s, end_s in _warm_ups(entries):  # a driver's clock begins with the last write before it
        phase[(start_s < times_s) & (times_s < end_s)] = Phase.WARM_UP
    return phase


def with_phases(events: pd.DataFrame, entries: Sequence[JournalEntry]) -> pd.DataFrame:
    """The events with a column ``phase``. The warm-up of an actor that replaced another one is one, too."""
    phase = phases_at(events.scheduled_s.to_numpy(), entries)
    return events.assign(phase=np.where(events.is_warm_up, Phase.WARM_UP, phase))


def seconds_of(entries: Sequence[JournalEntry], start_s: float, end_s: float) -> "pd.Series[float]":
    """How long each phase lasts between two times, by phase; without those that do not occur."""
    measured = of_type(entries, CheckpointMeasured)
    ends = [(e.began_s, e.elapsed_s) for e in measured] + _warm_ups(entries) + [(start_s, end_s)]
    edges_s = np.unique(np.clip([*np.ravel(ends), *(e.elapsed_s for e in backfills(entries))], start_s, end_s))
    lasting_s = pd.Series(np.diff(edges_s))
    return lasting_s.groupby(phases_at((edges_s[:-1] + edges_s[1:]) / 2, entries)).sum()


def served(events: pd.DataFrame, entries: Sequence[JournalEntry], segment: Segment) -> dict[str, Any]:
    """The fields of ``CheckpointRow`` on traffic and the rate of the backfill, during a segment.

    Every request counts in exactly one segment. Latencies and rates exclude warm-ups and the time in which a checkpoint
    was measured, as the driver's own queries are not traffic. events: ``with_phases``.
    """
    counted = events[(events.scheduled_s >= segment.start_s) & (events.scheduled_s < segment.end_s)]
    within = counted[(counted.scheduled_s <= segment.began_s) & counted.phase.isin(tables.SERVING)]
    seconds = seconds_of(entries, segment.start_s, segment.began_s).reindex(tables.SERVING).sum()
    items = sum(e.items for e in backfills(entries) if segment.start_s < e.elapsed_s <= segment.began_s)
    is_first, waits_ms = segment.start_s == 0, within.latency_ms
    # A quantile needs one request that is expected to be slower.
    quantiles_ms = {
        f"p{share}_ms": float(waits_ms.quantile(share / 100)) if len(waits_ms) * (100 - share) >= 100 else math.nan
        for share in (50, 95, 99)
    }
    return {
        "queries": int(counted.queries[counted.is_answered].sum()),
        "unanswered": int(counted.queries[~counted.is_answered].sum()),
        "retried": int(counted.retries.sum()), "violations": int(counted.violations.sum()),
        "queries_per_s": within.queries[within.is_answered].sum() / seconds if len(within) and seconds > 0 else np.nan,
        **quantiles_ms,
        "items_per_s": np.nan if is_first else items / max(segment.began_s - segment.start_s, 1e-3),
    }  # fmt: skip


def backfills(entries: Sequence[JournalEntry]) -> list[Applied]:
    """The applied backfill operations, without churn and rollback."""
    return [entry for entry in of_type(entries, Applied) if entry.operation == "backfill"]


def _warm_ups(entries: Sequence[JournalEntry]) -> list[tuple[float, float]]:
    """(start, end) of the warm-up of each driver's traffic."""
    return [(e.elapsed_s, e.elapsed_s + e.warm_up_s) for e in of_type(entries, Started)]


def phases(entries: Sequence[JournalEntry], events: pd.DataFrame) -> list[tables.PhaseRow]:
    """The phases that occurred. events: ``with_phases``."""
    written = backfills(entries)
    of_write = phases_at(np.array([entry.elapsed_s for entry in written]), entries)
    lasting_s, rows = seconds_of(entries, 0.0, _end_s(entries, events)), []
    for phase in Phase:
        of, items = events[events.phase == phase], sum(written[i].items for i in np.flatnonzero(of_write == phase))
        if not (phase in lasting_s or len(of) or items):
            continue
        in_second = of.latency_ms.groupby(of.scheduled_s.astype(int))
        p50_ms, p99_ms = (in_second.quantile(q).median() if len(of) >= _ENOUGH else math.nan for q in (0.5, 0.99))
        answered = int(of.queries[of.is_answered].sum())
        unanswered, seconds = int(of.queries.sum()) - answered, float(lasting_s.get(phase, 0.0))
        rows.append(tables.PhaseRow(phase.value, seconds, len(of), answered, unanswered, items, p50_ms, p99_ms))
    return rows


def _end_s(entries: Sequence[JournalEntry], events: pd.DataFrame) -> float:
    return float(max([entry.elapsed_s for entry in entries] + events.scheduled_s.tolist()))


def timeline(entries: Sequence[JournalEntry], events: pd.DataFrame) -> list[tables.SecondRow]:
    """One row per second: queries, latency, items backfilled, and whether a checkpoint was being measured."""
    of_second = events.scheduled_s.astype(int)
    answered = events.queries.where(events.is_answered, 0)
    counts = [queries.groupby(of_second).sum() for queries in (answered, events.queries - answered)]
    waits = [events.latency_ms[events.phase != Phase.WARM_UP].groupby(of_second).quantile(q) for q in (0.5, 0.99)]
    items, leg = np.zeros((2, int(_end_s(entries, events)) + 1), np.int64)
    is_measuring, is_warm_up = np.zeros((2, len(items)), np.bool_)
    for done in backfills(entries):
        items[int(done.elapsed_s)] += done.items
    for measured in of_type(entries, CheckpointMeasured):
        is_measuring[int(measured.began_s) : int(measured.elapsed_s) + 1] = True
    for started in of_type(entries, Started):
        leg[int(started.elapsed_s) :] = started.leg
    for start_s, until_s in _warm_ups(entries):
        if until_s > start_s:
            is_warm_up[int(start_s) : math.ceil(until_s)] = True
    seconds = np.arange(len(items))
    counted = [count.reindex(seconds, fill_value=0) for count in counts]
    waited = [quantile.reindex(seconds) for quantile in waits]
    table = (seconds, *counted, *waited, items, is_measuring, is_warm_up, leg)
    return [tables.SecondRow(*row) for row in zip(*(np.asarray(column).tolist() for column in table), strict=True)]


def incidents(entries: Sequence[JournalEntry], broken: Mapping[int, IntArray]) -> list[tables.IncidentRow]:
    """Incidents by time, those of one moment as they were recorded; also unreadable images, and rollbacks."""
    applied = of_type(entries, Applied)
    applied_s = {entry.applied - 1: entry.elapsed_s for entry in applied}
    rows = [tables.IncidentRow(entry.elapsed_s, entry.what, entry.detail) for entry in of_type(entries, Incident)]
    rows += [
        tables.IncidentRow(applied_s.get(number, 0.0), "broken image", f"item {position}")
        for number, positions in sorted(broken.items())
        for position in sorted(positions.tolist())
    ]
    rows += [tables.IncidentRow(entry.elapsed_s, "rollback", "") for entry in applied if entry.operation == "rollback"]
    return sorted(rows, key=lambda row: row.elapsed_s)
