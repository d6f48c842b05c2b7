"""The replay over Ray actors gives what one process gives."""

import gc
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
import ray
import torch

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.ray.shards import replay_in_shards
from ray_backfill.compare.replay import replay_here
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import Task
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.learn.models.apply import save_network
from ray_backfill.learn.papers.rank_merge import Heads
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers import waiting
from ray_backfill.workers.settings import ReplayPlace


def embeddings(path: Path) -> EmbeddingFolder:
    """400 items in 4 parts and row groups that no shard's edge meets, many equal to another one, and 20 queries."""
    rng = np.random.default_rng(0)

    def columns(rows: int, first: int) -> dict[str, Any]:
        old, new = rng.normal(size=(rows, 4)).astype(np.float16), rng.normal(size=(rows, 6)).astype(np.float32)
        old[1::3], new[1::3] = old[0], new[0]
        label = rng.integers(0, 8, rows)
        return {"id": first + np.arange(rows), "old": vector_column(old), "new": vector_column(new), "label": label}

    for part in range(4):
        write_parquet(path / "gallery.parquet" / f"part-{part}.parquet", pa.table(columns(100, 100 * part)))
    write_parquet(path / "queries.parquet", pa.table(columns(20, 1000)))
    write_parquet(path / "train.parquet", pa.table(columns(80, 2000)))
    return read_folder(path)


def comparison_of(path: Path, evaluation: Evaluation) -> Comparison:
    return resolve(embeddings(path), evaluation.named, FitSettings())


@pytest.mark.parametrize(
    "metrics",
    [("mAP", "mAP@5", "CMC@1", "nDCG"), pytest.param(("mAP@5", "CMC@1", "nDCG@5"), marks=pytest.mark.heavy)],
)
def test_any_number_of_shards_gives_the_curves_of_one_process(
    ray_session: None, tmp_path: Path, metrics: tuple[str, ...]
) -> None:
    torch.manual_seed(0)
    save_network(tmp_path / "rm", Heads(4, 6, learn_new=True).eval())
    evaluation = Evaluation(
        ("offline", "rm_naive", "rm"), ("random", "centroid_cosine"), ("raw", "quantile", "csls", "rrf"), metrics
    )
    comparison = comparison_of(tmp_path / "data", evaluation).fitted({"rm": tmp_path / "rm"})
    rng, truth = np.random.default_rng(1), comparison.truth
    truth = replace(truth, grades=rng.uniform(1, 4, len(truth.positives)), weights=rng.uniform(1, 4, truth.n_queries))
    comparison = replace(comparison, truth=truth)
    one = replay_here(comparison)
    three = replay_in_shards(comparison, 3)
    assert three.keys() == one.keys()
    for key, curve in one.items():
        np.testing.assert_array_equal(three[key].top1_correct, curve.top1_correct)
        for metric in metrics:
            np.testing.assert_array_equal(three[key].curve.per_query[metric], curve.curve.per_query[metric])
            np.testing.assert_array_equal(three[key].values[metric], curve.values[metric])
        if curve.flips is None:
            assert three[key].flips is None
            continue
        for name, values in vars(curve.flips).items():
            np.testing.assert_array_equal(getattr(three[key].flips, name), values)
    assert sum(len(curve.flips.query) for curve in one.values() if curve.flips) > 10


def test_a_block_of_few_queries_and_many_items_tells_how_far_it_is(
    ray_session: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, n = np.random.default_rng(0), 300_000
    for name, rows in (("gallery", n), ("queries", 300)):
        columns = {model: vector_column(rng.normal(size=(rows, 8)).astype(np.float32)) for model in ("old", "new")}
        write_parquet(
            tmp_path / f"{name}.parquet", pa.table({"id": np.arange(rows), "label": np.arange(rows) % 5000, **columns})
        )
    evaluation = Evaluation(("offline",), ("random",), metrics=("mAP",))
    comparison = resolve(read_folder(tmp_path), evaluation.named, FitSettings())
    told: list[int] = []

    def advance(bar: Task, amount: int = 1) -> None:
        bar.done += amount
        if bar.title == "compare":
            told.append(bar.done)

    monkeypatch.setattr(Task, "advance", advance)
    monkeypatch.setattr(waiting, "_LOOK_S", 0.02)
    replay_in_shards(comparison, 1)
    assert max(told) == 300 * n * 2, "both systems, as many pairs as were announced"
    steps = np.unique([0, *told])
    assert len(steps) > 5, "a block of all queries is not one step"
    assert np.diff(steps).max() < 0.5 * max(told)


def test_shards_leave_no_actor_behind(ray_session: None, tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path / "data", Evaluation(("offline",), ("random",)))
    broken = replace(comparison.folder, gallery=replace(comparison.folder.gallery, path=tmp_path / "elsewhere"))
    gc.disable()  # which would end the actors at some time
    try:
        replay_in_shards(comparison, 2)
        with pytest.raises(InputError, match="elsewhere is missing"):
            replay_in_shards(replace(comparison, folder=broken), 2)
        deadline = time.monotonic() + 20
        while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
            assert time.monotonic() < deadline, "a shard still holds its CPU"
            time.sleep(0.1)
    finally:
        gc.enable()


def test_more_shards_than_cpus_are_refused(ray_session: None, tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path / "data", Evaluation(("offline",), ("random",)))
    with pytest.raises(InputError, match=r"500 gallery shards need 500 CPUs, .* lower --shards"):
        replay_in_shards(comparison, 500)


def test_what_goes_wrong_in_a_shard_is_one_line(ray_session: None, tmp_path: Path) -> None:
    comparison = comparison_of(tmp_path / "data", Evaluation(("offline",), ("random",)))
    folder = comparison.folder
    # The driver has read the folder; a node that does not share it has nothing.
    moved = replace(folder, gallery=replace(folder.gallery, path=tmp_path / "elsewhere"))
    with pytest.raises(InputError, match=r"^in a gallery shard: \S+elsewhere is missing.*$"):
        replay_in_shards(replace(comparison, folder=moved), 2)
    # A process that ends stands for the kernel ending it for want of memory.
    with (
        patch("ray_backfill.compare.ray.actor.ShardActor.make_systems", lambda self, networks: os._exit(1)),
        pytest.raises(InputError, match=r"a gallery shard died, .* more --shards$"),
    ):
        replay_in_shards(comparison, 2)


def test_a_gallery_is_sharded_when_asked_or_when_it_does_not_fit() -> None:
    assert ReplayPlace().shards_for(10 << 20) == 0
    assert ReplayPlace(shards=3).shards_for(10 << 20) == 3
    assert ReplayPlace().shards_for(100 << 40) == (100 << 40) // (4 << 30)
    with pytest.raises(InputError, match="must not be negative"):
        ReplayPlace(shards=-1)
