"""Execution of a replay: blocks, threads, interruption and GPUs do not change its result."""

import signal
import threading
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import ray_backfill as rb
from ray_backfill.engine.device import full_float32
from ray_backfill.engine.distances.form import Products
from ray_backfill.engine.replay import counting, engine, prepare
from ray_backfill.engine.replay import shard as shard_module
from ray_backfill.engine.replay.bins import make_bins
from ray_backfill.engine.replay.engine import measure_prepared
from ray_backfill.engine.replay.shard import GalleryShard, LocalShards, make_forms
from tests.engine.replay.cases import CUT_METRICS, METRICS, assert_same, random_pair


def test_blocks_and_tiles_do_not_change_the_result() -> None:
    rng = np.random.default_rng(5)
    pair = random_pair(rng, 40, 60, tied=True)
    labels = rng.integers(0, 6, 60)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 6, 40), labels)
    order = rng.permutation(60)
    for metrics in (METRICS, CUT_METRICS):
        whole = rb.replay(pair, truth, order, points=3, metrics=metrics)
        with (
            patch.object(prepare, "_BLOCK_QUERIES", 7),
            patch.object(prepare, "_BLOCK_QUERIES_OF_CANDIDATES", 7),
            patch.object(prepare, "_BLOCK_BYTES", 4000),
            patch.object(shard_module, "TILE_ITEMS", 11),
            patch.object(shard_module, "COUNTED_ITEMS", 11),
        ):
            pieces = rb.replay(pair, truth, order, points=3, metrics=metrics, threads=3)
        with patch.object(shard_module, "_COUNTED_BYTES", 1), patch.object(shard_module, "_FEWEST_QUERIES", 3):
            few = rb.replay(pair, truth, order, points=3, metrics=metrics)
        with (
            patch.object(prepare, "_LEAST_ITEMS", 9),
            patch.object(engine, "split_gallery", wraps=engine.split_gallery) as split,
        ):
            parts = rb.replay(pair, truth, order, points=3, metrics=metrics, threads=3)
        assert split.call_args.args[1] == 3  # few queries: the threads share the gallery
        for curve in (pieces, few, parts):
            assert_same(curve, whole, metrics)


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_parts_of_products_change_no_result(distance: str) -> None:
    """Distances are so close that one product leaves many pairs undecided: the engine then chooses parts by itself."""
    rng = np.random.default_rng(12)
    centre = rng.normal(size=(1, 200))
    old, new = (
        rb.RetrievalSystem(*((centre + 0.02 * rng.normal(size=(rows, 200))).astype(np.float32) for rows in (30, 700)))
        for _ in range(2)
    )
    truth = rb.GroundTruth.from_labels(rng.integers(0, 2, 30), rng.integers(0, 3, 700))
    found = {}
    for parts in (None, 0, 1, 2, 7, 200):
        given = {"side_effect": counting.parts_of_products} if parts is None else {"return_value": parts}
        with patch.object(shard_module, "parts_of_products", **given) as choose:
            found[parts] = rb.replay(rb.UpgradePair(old, new), truth, "random", metrics=METRICS, distance=distance)
        assert choose.called
    for curve in found.values():
        assert_same(curve, found[1], METRICS)


def test_undecided_pairs_that_are_counted_in_several_goes_change_no_result() -> None:
    """Of almost equal vectors nearly all pairs are undecided: 144,000 at a time, or 4,200."""
    rng = np.random.default_rng(15)
    centre = rng.normal(size=(1, 40))
    old, new = (
        rb.RetrievalSystem(*((centre + 1e-7 * rng.normal(size=(rows, 40))).astype(np.float32) for rows in (240, 600)))
        for _ in range(2)
    )
    assert 2 * counting._UNSURE < 240 * 600
    truth = rb.GroundTruth.from_labels(rng.integers(0, 3, 240), rng.integers(0, 3, 600))
    found = []
    for most in (1024, 7):
        with (
            patch.object(prepare, "_BLOCK_QUERIES", most),
            patch.object(shard_module, "_FEWEST_QUERIES", most),
            patch.object(shard_module, "parts_of_products", return_value=1),
        ):
            found.append(rb.replay(rb.UpgradePair(old, new), truth, "random", metrics=METRICS, threads=1))
    assert_same(found[0], found[1], METRICS)


def test_products_and_their_bounds_have_the_same_parts() -> None:
    rng = np.random.default_rng(14)
    pair, truth = random_pair(rng, 20, 90, tied=False), rb.GroundTruth.from_labels(np.arange(20) % 3, np.arange(90) % 3)
    for parts in (0, 1, 3):
        with (
            patch.object(shard_module, "parts_of_products", return_value=parts),
            patch.object(counting, "Products", wraps=Products) as products,
            patch.object(counting, "make_bins", wraps=make_bins) as bins,
        ):
            rb.replay(pair, truth, "random", points=3, metrics="mAP")
        assert {call.args[-1] for call in (*products.call_args_list, *bins.call_args_list)} == {parts}


@pytest.mark.parametrize(("dims", "right", "expected"), [(16, 2, {1}), (512, 20, set(range(2, 32))), (512, 1500, {0})])
def test_products_are_made_in_parts_where_that_costs_less(dims: int, right: int, expected: set[int]) -> None:
    """One part of few dimensions; the more, the more dimensions; float64 numbers with many right answers."""
    rng = np.random.default_rng(13)
    vectors = rng.normal(size=(3000, dims)).astype(np.float32)
    system, labels = rb.RetrievalSystem(vectors[:40], vectors), np.arange(3000) % (3000 // right)
    truth = rb.GroundTruth.from_labels(labels[:40], labels)
    chosen = set()

    def choose(*arguments: Any) -> int:
        chosen.add(parts := parts_of_products(*arguments))
        return parts

    parts_of_products = counting.parts_of_products
    with patch.object(shard_module, "parts_of_products", choose):
        rb.replay(rb.UpgradePair(system, system), truth, "random", metrics="mAP")
    assert chosen <= expected


def test_full_float32_is_set_only_during_the_replay() -> None:
    backends: Any = torch.backends
    places = backends.cuda.matmul, backends.cudnn.conv
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "tf32"
    try:
        with full_float32():
            assert [place.fp32_precision for place in places] == ["ieee", "ieee"]
        assert [place.fp32_precision for place in places] == ["tf32", "tf32"]
    finally:
        for place, earlier in zip(places, before, strict=True):
            place.fp32_precision = earlier


def test_ctrl_c_and_errors_end_a_replay_at_once() -> None:
    """A block of queries over a large gallery can take minutes: an error in one thread stops all threads."""
    rng = np.random.default_rng(11)
    pair = random_pair(rng, 8, 4000, tied=False)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 5, 8), rng.integers(0, 5, 4000))
    systems, served = prepare.as_served(pair, {"a": np.arange(4000)})
    prepared = prepare.prepare_replay(truth, [served], 3, METRICS)
    main = threading.main_thread().ident
    assert main is not None
    for stop in (KeyboardInterrupt, MemoryError):
        tiles: list[int] = []

        def report(comparisons: int, stop: type = stop, tiles: list[int] = tiles) -> None:
            tiles.append(comparisons)
            if len(tiles) == 5:
                if stop is KeyboardInterrupt:
                    signal.pthread_kill(main, signal.SIGINT)  # as Ctrl-C does; it waits for the other threads
                else:
                    raise stop
            time.sleep(0.01)

        with patch.object(shard_module, "COUNTED_ITEMS", 4):
            shard = GalleryShard(make_forms(systems, prepared, "cosine"), 0, prepared, report)
            with pytest.raises(stop):
                measure_prepared(prepared, truth, LocalShards([shard]), threads=2)
        assert len(tiles) < 500  # of 2 x 2 x 1,000


@pytest.mark.gpu
@pytest.mark.parametrize("metrics", [METRICS, CUT_METRICS])
@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
def test_a_gpu_gives_the_same_curves(metrics: tuple[str, ...], distance: str) -> None:
    rng = np.random.default_rng(10)
    for tied in (False, True):
        pair = random_pair(rng, 300, 70_000, tied)
        truth = rb.GroundTruth.from_labels(rng.integers(0, 900, 300), rng.integers(0, 900, 70_000))
        orders = {name: rng.permutation(70_000) for name in "ab"}
        here = rb.replay(pair, truth, orders, metrics=metrics, distance=distance)
        there = rb.replay(pair, truth, orders, metrics=metrics, distance=distance, device="cuda")
        for name in orders:
            assert_same(there[name], here[name], metrics)
