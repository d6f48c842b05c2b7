"""Computes the tables of the drill's report, quality included, from the raw answers and logs on disk."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.schema import frame
from ray_backfill.drill.answers import answer_of, read_answers
from ray_backfill.drill.events import read_events
from ray_backfill.drill.journal import CheckpointMeasured, Entry, Journal, of_type
from ray_backfill.drill.operations import NEW, OLD, DrillPlan
from ray_backfill.drill.parts import read_part
from ray_backfill.drill.quality import exact_quality, live_quality, mean, only_alive, recall
from ray_backfill.drill.tables import CheckpointRow, IncidentRow, QualityRow, ReplayedRow, SecondRow
from ray_backfill.drill.timeline import Stretch, counts, incidents, served, timeline
from ray_backfill.engine.index import IndexSettings, Partition, make_partition
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.replay import replay
from ray_backfill.engine.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings
from ray_backfill.learn.sides import Sides, new_models

# Queries per batch of the exact search.
_BATCH = 256


@dataclass(frozen=True)
class Known:
    """The inputs of a drill that are not in its folder. queries, gallery: embeddings by model before the drill."""

    plan: DrillPlan
    sides: Sides
    truth: GroundTruth
    metrics: tuple[str, ...]
    points: int
    queries: Mapping[str, FloatArray]
    gallery: Mapping[str, FloatArray]


def drill_tables(folder: Path, known: Known) -> dict[str, pd.DataFrame]:
    """The tables checkpoints, quality, replayed, timeline and incidents. Cost: one replay per checkpoint."""
    plan, entries = known.plan, Journal(folder).entries()
    embedded, broken = _embeddings(folder, known)
    pair = known.sides.method.pair(embedded, known.sides.network)
    events = read_events(folder)
    checkpoints: list[CheckpointRow] = []
    quality: list[QualityRow] = []
    for checkpoint, (measured, stretch) in zip(plan.checkpoints, _stretches(entries), strict=True):
        state = plan.state(checkpoint.applied, broken)
        live_Qk = read_answers(folder, checkpoint.moment)
        exact_Qk = exact_answers(known.sides, pair, state, live_Qk.shape[1])
        live = live_quality(live_Qk, only_alive(known.truth, state), known.metrics)
        exact = exact_quality(pair, known.truth, state, known.metrics, known.sides.distance, known.sides.merge)
        quality += [QualityRow(checkpoint.moment, checkpoint.t, m, live[m], exact[m]) for m in known.metrics]
        items, queries = counts(plan, checkpoint, state, broken, measured), served(events, entries, stretch)
        old, new = (recall(live_Qk, exact_Qk, state, side) for side in (OLD, NEW))
        checkpoints.append(CheckpointRow(**vars(items), **vars(queries), old_recall=old, new_recall=new))
    is_plain = not broken and not len(plan.held_back) and all(o.kind == "backfill" for o in plan.operations)
    return {
        "checkpoints": frame(CheckpointRow, checkpoints),
        "quality": frame(QualityRow, quality),
        "replayed": frame(ReplayedRow, _replayed(known, embedded, pair, is_plain)),
        "timeline": frame(SecondRow, timeline(entries, events)),
        "incidents": frame(IncidentRow, incidents(entries, broken)),
    }


def _stretches(entries: list[Entry]) -> list[tuple[CheckpointMeasured, Stretch]]:
    """Each measured checkpoint in order, with its stretch of time; the last stretch is open-ended."""
    measured = sorted(of_type(entries, CheckpointMeasured), key=lambda entry: entry.moment)
    ends_s = [0.0, *(entry.elapsed_s for entry in measured[:-1]), math.inf]
    return [(m, Stretch(start, m.began_s, end)) for m, (start, end) in zip(measured, pairwise(ends_s), strict=True)]


def _embeddings(folder: Path, known: Known) -> tuple[Embeddings, dict[int, IntArray]]:
    """All embeddings at the end of the drill, with ones where there are none; and the broken items by operation."""
    n_items = known.plan.n_items
    gallery = {
        model: np.array(known.gallery[model], np.float32)
        if model in known.gallery
        else np.ones((n_items, known.sides.dims[model]), np.float32)
        for model in known.sides.method.models
    }
    broken = {}
    for operation in known.plan.operations:
        if operation.has_vectors:
            part = read_part(folder, operation)
            for model, values in part.vectors.items():
                gallery[model][part.positions] = values
            if part.broken:
                broken[operation.number] = part.broken_positions
    return Embeddings(known.queries, gallery), broken


def exact_answers(sides: Sides, pair: UpgradePair, state: NDArray[np.uint8], k: int) -> IntArray:
    """(Q, k) positions of the best items by exact search over a gallery in this state."""
    prepared, distance = sides.merge.prepare(pair, sides.distance)

    def filled(system: RetrievalSystem, side: int) -> Partition:
        positions = np.flatnonzero(state == side)
        partition = make_partition(IndexSettings(), distance, system.gallery.shape[1], None)
        return partition.with_rows(system.gallery[positions], positions)

    backward, forward = prepared.backward, prepared.forward
    old, new = filled(backward, OLD), filled(forward, NEW)
    found = []
    for first in range(0, pair.n_queries, _BATCH):
        some = slice(first, first + _BATCH)
        both = old.search(backward.query[some], k), new.search(forward.query[some], k)
        found.append(answer_of(*both, sides.merge, k).position)
    return np.concatenate(found)


def _replayed(known: Known, embedded: Embeddings, pair: UpgradePair, is_plain: bool) -> list[ReplayedRow]:
    """The replayed curve, and as references the old service and the finished upgrade.

    is_plain: the drill was only a backfill. Otherwise there is no curve, as the replay describes another gallery.
    """
    plan, sides = known.plan, known.sides
    rows = []
    if is_plain:
        found = replay(pair, known.truth, plan.order, known.points, known.metrics, sides.distance, merge=sides.merge)
        rows = [
            ReplayedRow(metric, t, mean(values_QT[:, i], found.weights), "backfill")
            for metric, values_QT in found.per_query.items()
            for i, t in enumerate(found.t)
        ]
    state = plan.start()
    for model in ("old", "new") if is_plain and "new" in new_models(sides.method) else ("old",):
        system = RetrievalSystem(embedded.query[model], embedded.gallery[model])
        alone = UpgradePair(system, system)
        value = exact_quality(alone, known.truth, state, known.metrics, sides.distance, RAW)
        rows += [ReplayedRow(metric, t, value[metric], model) for metric in known.metrics for t in (0.0, 1.0)]
    return rows
