"""From what a drill left on disk to the tables that its report reads. Quality is computed here, from raw answers.

The tables are described in docs/results-format.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.index import IndexSettings, make_partition
from ray_backfill.live.answers import Answer, merge_answers
from ray_backfill.live.operations import NEW, OLD, Checkpoint, DrillPlan
from ray_backfill.live.parts import Journal, read_part
from ray_backfill.live.quality import exact_quality, live_quality, mean, only_alive, recall
from ray_backfill.live.sides import Sides, new_models
from ray_backfill.live.timeline import Stretch, counts, incidents, read_events, served, timeline
from ray_backfill.merges import RAW
from ray_backfill.methods import Embeddings
from ray_backfill.replay import replay
from ray_backfill.systems import FloatArray, GroundTruth, IntArray, RetrievalSystem, UpgradePair

Tables = dict[str, pd.DataFrame]
# Queries whose exact answers are searched together.
_BATCH = 256


@dataclass(frozen=True)
class Known:
    """What a drill was about, beside its folder. queries, gallery: embeddings by model, as they were before it."""

    plan: DrillPlan
    sides: Sides
    truth: GroundTruth
    metrics: tuple[str, ...]
    k: int
    points: int
    queries: Mapping[str, FloatArray]
    gallery: Mapping[str, FloatArray]


def drill_tables(folder: Path, known: Known) -> Tables:
    """checkpoints, quality, replayed, timeline and incidents. Cost: a replay for every checkpoint."""
    plan, entries = known.plan, Journal(folder / "journal.jsonl").entries()
    embedded, broken = _embeddings(folder, known)
    pair = known.sides.method.pair(embedded, known.sides.network)
    events = read_events(folder)
    measured = {entry["moment"]: entry for entry in entries if entry["kind"] == "checkpoint"}
    checkpoints, quality = [], []
    ends_s = [measured[checkpoint.moment]["elapsed_s"] for checkpoint in plan.checkpoints]
    for i, checkpoint in enumerate(plan.checkpoints):
        entry = measured[checkpoint.moment]
        stretch = Stretch(ends_s[i - 1] if i else 0.0, entry["began_s"], ends_s[i] if i < len(ends_s) - 1 else math.inf)
        state = plan.state(checkpoint.applied, broken)
        answers = _read_answers(folder, checkpoint.moment)
        rows, exact_Qk = _quality(known, checkpoint, state, answers, pair)
        quality += rows
        row = counts(plan, checkpoint, state, broken) | {name: entry[name] for name in ("old_bytes", "new_bytes")}
        row |= {"elapsed_s": entry["elapsed_s"]} | served(events, entries, stretch)
        row |= {
            "old_recall": recall(answers, exact_Qk, state, OLD),
            "new_recall": recall(answers, exact_Qk, state, NEW),
        }
        checkpoints.append(row)
    table = pd.DataFrame(quality)
    is_plain = not broken and not len(plan.held_back) and all(o.kind == "backfill" for o in plan.operations)
    return {
        "checkpoints": pd.DataFrame(checkpoints),
        "quality": table,
        "replayed": _replayed(known, embedded, pair, is_plain),
        "timeline": timeline(entries, events),
        "incidents": incidents(entries, broken),
    }


def _embeddings(folder: Path, known: Known) -> tuple[Embeddings, dict[int, IntArray]]:
    """All embeddings of gallery items that there are at the end, ones elsewhere; and who was broken when."""
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
            part = read_part(folder / "parts", operation)
            for model, values in part.vectors.items():
                gallery[model][part.positions] = values
            if part.broken:
                broken[operation.number] = part.broken_positions
    return Embeddings(known.queries, gallery), broken


def _quality(
    known: Known, checkpoint: Checkpoint, state: NDArray[np.uint8], live_Qk: IntArray, pair: UpgradePair
) -> tuple[list[dict[str, Any]], IntArray]:
    live = live_quality(live_Qk, only_alive(known.truth, state), known.metrics)
    sides = known.sides
    exact = exact_quality(pair, known.truth, state, known.metrics, sides.distance, sides.merge)
    rows = [
        {"moment": checkpoint.moment, "t": checkpoint.t, "metric": metric, "live": live[metric], "exact": exact[metric]}
        for metric in known.metrics
    ]
    return rows, exact_answers(sides, pair, state, live_Qk.shape[1])


def exact_answers(sides: Sides, pair: UpgradePair, state: NDArray[np.uint8], k: int) -> IntArray:
    """(Q, k) positions of the best items of a gallery in this state, by exact search."""
    prepared, distance = sides.merge.prepare(pair, sides.distance)
    found = []
    for system, side in ((prepared.backward, OLD), (prepared.forward, NEW)):
        positions = np.flatnonzero(state == side)
        partition = make_partition(IndexSettings(), distance, system.gallery.shape[1], None)
        if len(positions):
            partition = partition.with_rows(system.gallery[positions], positions)
        found.append((partition, system, side == NEW))
    answers = []
    for first in range(0, pair.n_queries, _BATCH):
        of_sides = []
        for partition, system, is_new in found:
            best = partition.search(system.query[first : first + _BATCH], k)
            flags = np.full(best.position.shape, is_new)
            score = sides.merge.scores(best.distance.ravel(), flags.ravel()).reshape(flags.shape)
            score[best.position < 0] = np.inf
            of_sides.append(Answer(best.position, best.distance, score, flags))
        answers.append(merge_answers(of_sides, k).position)
    return np.concatenate(answers)


def _replayed(known: Known, embedded: Embeddings, pair: UpgradePair, is_plain: bool) -> pd.DataFrame:
    """The curve that was promised, and beside it the old service and the finished upgrade, each alone.

    is_plain: nothing but the backfill happened; else there is no curve: what was promised is of another gallery.
    """
    plan, sides = known.plan, known.sides
    frames = []
    if is_plain:
        found = replay(pair, known.truth, plan.order, known.points, known.metrics, sides.distance, merge=sides.merge)
        rows = [
            {"metric": metric, "t": t, "value": mean(values_QT[:, i]), "serving": "backfill"}
            for metric, values_QT in found.per_query.items()
            for i, t in enumerate(found.t)
        ]
        frames.append(pd.DataFrame(rows))
    state = plan.start()
    for model in ("old", "new") if is_plain and "new" in new_models(sides.method) else ("old",):
        system = RetrievalSystem(embedded.query[model], embedded.gallery[model])
        alone = UpgradePair(system, system)
        value = exact_quality(alone, known.truth, state, known.metrics, sides.distance, RAW)
        rows = [{"metric": m, "t": t, "value": value[m], "serving": model} for m in known.metrics for t in (0.0, 1.0)]
        frames.append(pd.DataFrame(rows))
    return pd.concat(frames, ignore_index=True)


def _read_answers(folder: Path, moment: int) -> IntArray:
    table = pq.read_table(folder / "answers" / f"checkpoint-{moment:04d}.parquet", columns=["position"])
    lists = table["position"].combine_chunks()
    return lists.flatten().to_numpy().reshape(-1, lists.type.list_size)
