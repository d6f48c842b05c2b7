"""A small gallery of synthetic vectors, and drills over it in this process."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import ray

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.data.folder import read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.drill.plan import Operation, read_plan
from ray_backfill.drill.ray.driver import Driver
from ray_backfill.drill.ray.shards import LiveShard
from ray_backfill.drill.run import drill_folder
from ray_backfill.drill.settings import LiveSettings, ShardSettings, TrafficSettings
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context, EmbedActors

ITEMS, QUERIES = 330, 24
EVALUATION = Evaluation(metrics=("mAP@10", "CMC@1"), orders=("random",), points=8)
SETTINGS = LiveSettings(
    method="rm_naive",
    part_items=30,
    quiet_s=0.0,
    shards=ShardSettings(number=2, cpus=0.5),
    # A killed shard comes back before the deadline, even where a busy machine takes a minute to start it.
    traffic=TrafficSettings(rate_per_s=20.0, warm_up_s=0.0, deadline_s=600.0),
)


def write_folder(folder: Path) -> Path:
    """Old and new embeddings of 20 classes; the new model is better."""
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(20, 12))
    for name, rows in (("gallery", ITEMS), ("queries", QUERIES), ("train", 200)):
        label = np.arange(rows) % 20
        old = (signal[label, :8] + 1.2 * rng.normal(size=(rows, 8))).astype(np.float32)
        new = (signal[label] + 0.8 * rng.normal(size=(rows, 12))).astype(np.float32)
        columns = {"id": np.arange(rows) + 500, "label": label, "old": vector_column(old), "new": vector_column(new)}
        columns["tenant"] = np.where(np.arange(rows) % 3, "many", np.where(np.arange(rows) % 2, "some", "few"))
        write_parquet(folder / f"{name}.parquet", pa.table(columns))
    return folder


@dataclass
class Finished:
    """The outcome of a drill: its folder, and every item as the shards served it at the end."""

    folder: Path
    served: dict[int, tuple[str, bytes]] = field(default_factory=dict)

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.folder / f"{name}.parquet")


def _items(actor: LiveShard) -> list[tuple[int, str, bytes]]:
    """Every item of a shard as it is served: position, side and vector."""
    view, found = actor.shard.view, []
    for side, partition in (("old", view.old), ("new", view.new)):
        positions = partition.positions()
        vectors = partition.vectors(positions)
        found += [(int(at), side, vector.tobytes()) for at, vector in zip(positions, vectors, strict=True)]
    return found


@contextmanager
def looking_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, tuple[str, bytes]]]:
    """Fills in position -> (side, vector) of all items when the drill ends; fails if two shards have the same item."""
    served: dict[int, tuple[str, bytes]] = {}
    close = Driver.close

    def close_and_look(driver: Driver) -> None:
        for items in ray.get([shard.__ray_call__.remote(_items) for shard in driver.shards.actors]):
            for position, side, vector in items:
                assert position not in served, "an item is served twice"
                served[position] = side, vector
        close(driver)

    with monkeypatch.context() as patched:
        patched.setattr(Driver, "close", close_and_look)
        yield served


def run(
    data: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: LiveSettings = SETTINGS,
    before_apply: Callable[[Driver, int], None] | None = None,
    evaluation: Evaluation = EVALUATION,
) -> Finished:
    """Run a drill. before_apply: called with the driver and an operation's number before it is applied."""
    apply = Driver.apply

    def meddled(driver: Driver, operation: Operation) -> None:
        if before_apply is not None:
            before_apply(driver, operation.number)
        apply(driver, operation)

    with monkeypatch.context() as patched, looking_at_the_end(monkeypatch) as served:
        patched.setattr(Driver, "apply", meddled)
        actors = EmbedActors(number=2, cpus=0.5)
        folder = drill_folder(data, evaluation, FitSettings(), settings, Context(out, actors=actors, command="test"))
    return Finished(folder, served)


def assert_as_replayed(data: Path, drill: Finished, evaluation: Evaluation = EVALUATION) -> None:
    """Live quality equals M_t of the replay to the last bit at every checkpoint."""
    folder = read_folder(data)
    assert folder.queries is not None
    pair = rb.UpgradePair(
        rb.RetrievalSystem(folder.queries.old, folder.gallery.old),
        rb.RetrievalSystem(folder.queries.new, folder.gallery.new),
    )
    assert folder.queries.label is not None
    assert folder.gallery.label is not None
    truth = rb.GroundTruth.from_labels(folder.queries.label, folder.gallery.label)
    if evaluation.filter:  # items that a query cannot find are left out of its ranking
        of_query, of_item = folder.queries.texts(evaluation.filter), folder.gallery.texts(evaluation.filter)
        truth = truth.without(*np.nonzero(of_query[:, None] != of_item))
    order = read_plan(drill.folder / "plan").order
    curve = rb.replay(pair, truth, order, evaluation.points, evaluation.metrics)
    quality = drill.table("quality")
    assert len(quality) == evaluation.points * len(evaluation.metrics)
    for moment, t, metric, served, exact in quality[["moment", "t", "metric", "live", "exact"]].itertuples(index=False):
        values = curve.per_query[str(metric)][:, int(str(moment))]
        assert t == curve.t[int(str(moment))]
        assert served == exact == math.fsum(values) / len(values)


def assert_nothing_lost(drill: Finished, undisturbed: Finished) -> None:
    """Both serve the same items on the same side with equal vectors; counts and quality match at every checkpoint."""
    assert drill.served == undisturbed.served
    same = ["moment", "t", "backfilled", "old_items", "new_items", "kept_old", "inserted", "deleted", "violations"]
    mine, theirs = drill.table("checkpoints"), undisturbed.table("checkpoints")
    pd.testing.assert_frame_equal(mine[same], theirs[same])
    assert (mine.violations == 0).all()
    assert (mine.old_items + mine.new_items == ITEMS).all()
    pd.testing.assert_frame_equal(drill.table("quality"), undisturbed.table("quality"), check_exact=True)


def with_traffic(**changes: Any) -> LiveSettings:
    return replace(SETTINGS, traffic=replace(SETTINGS.traffic, **changes))
