"""The code for GPUs, with torch on the CPU: the same bits as the compiled loops, kept or uploaded for each block."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import ray_backfill as rb
from ray_backfill.engine import device
from ray_backfill.engine.distances import DISTANCES, ProductForm
from ray_backfill.engine.replay import shard
from ray_backfill.engine.replay.engine import measure_prepared, split_gallery
from ray_backfill.engine.replay.first import first_lists, prepare_first
from ray_backfill.engine.replay.prepare import Served, prepare_replay
from ray_backfill.engine.replay.shard import LocalShards, make_forms
from tests.engine.replay.cases import CUT_METRICS, METRICS, assert_same, assert_same_lists, random_pair


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("metrics", [METRICS, CUT_METRICS])
@pytest.mark.parametrize("distance", DISTANCES)
def test_torch_gives_the_same_curves(metrics: tuple[str, ...], distance: str, keep: bool) -> None:
    rng = np.random.default_rng(10)
    for tied in (False, True):
        pair = random_pair(rng, 40, 700, tied)
        truth = rb.GroundTruth.from_labels(rng.integers(0, 60, 40), rng.integers(0, 60, 700))
        orders = {name: rng.permutation(700) for name in "ab"}
        here = rb.replay(pair, truth, orders, points=4, metrics=metrics, distance=distance)
        systems, served = [pair.backward, pair.forward], Served(0, 1, orders)
        prepared = prepare_replay(truth, [served], 4, metrics)
        with (
            patch.object(device, "TILE_ITEMS", 256),
            patch.object(shard, "TILE_ITEMS", 16),
            patch.object(shard, "COUNTED_ITEMS", 16),
            patch.object(device, "_KEPT_PART", 0.6 if keep else 0),
        ):
            shards = split_gallery(make_forms(systems, prepared, distance), 1, prepared, torch_device="cpu")
            (there,) = measure_prepared(prepared, truth, LocalShards(shards), 3)
        for name in orders:
            assert_same(there[name], here[name], metrics)


def test_torch_finds_the_same_first_items() -> None:
    rng = np.random.default_rng(3)
    pair = random_pair(rng, 30, 900, tied=True)
    label = rng.integers(0, 9, 900)
    truth = rb.GroundTruth.from_labels(np.arange(30) % 9, label)
    systems, served, rows = [pair.backward, pair.forward], Served(0, 1, {"": rng.permutation(900)}), np.arange(30)
    prepared = prepare_first(served, truth, rows, 5, 3)
    found = []
    for name in (None, "cpu"):
        shards = split_gallery(make_forms(systems, prepared, "cosine"), 1, prepared, torch_device=name)
        found.append(first_lists(prepared, truth, LocalShards(shards), 2)[""])
    assert_same_lists(*found)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_are_scaled_to_the_same_bits_as_on_the_cpu(distance: str, dtype: type) -> None:
    rng = np.random.default_rng(4)
    gallery: Any = (rng.normal(size=(50, 7)) * 3).astype(dtype)
    form = ProductForm.of(rb.RetrievalSystem(gallery[:3], gallery), distance)
    (tiles,) = device.make_tiles([form], "cpu")
    for tiles.keep in (False, True):
        np.testing.assert_array_equal(tiles.tile(10, 40).numpy(), form.tile(10, 40))


def test_what_does_not_fit_together_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.ones((1000, 8), np.float32)
    forms = [ProductForm.of(rb.RetrievalSystem(vectors[:3], vectors), "cosine") for _ in range(4)]
    size = 4 * 1000 * forms[0].columns
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda name: (int(2.5 * size / device._KEPT_PART), 1 << 40))
    assert [tiles.keep for tiles in device.make_tiles(forms, "cuda")] == [True, True, False, False]


def test_four_blocks_at_a_time_use_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    (tiles,) = device.make_tiles([ProductForm.of(rb.RetrievalSystem(vectors, vectors), "cosine")], "cpu")
    inside, most, lock = 0, 0, threading.Lock()
    products = tiles.products

    def counted(*given: Any) -> Any:
        nonlocal inside, most
        with lock:
            inside, most = inside + 1, max(most, inside + 1)
        time.sleep(0.02)
        found = products(*given)
        with lock:
            inside -= 1
        return found

    monkeypatch.setattr(tiles, "products", counted)
    gates = np.full(4, np.inf, np.float32)
    with ThreadPoolExecutor(16) as pool:
        finders = [device.DeviceFinder(tiles, np.arange(4)) for _ in range(16)]
        list(pool.map(lambda finder: finder.passing(0, 64, gates), finders))
    assert most == 4
