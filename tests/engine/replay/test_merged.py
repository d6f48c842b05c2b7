"""Merged replays against full sorts by (score, distance, position), and against literal lists of ranks."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.engine.merges import RAW, Merge, ScoreMap
from ray_backfill.engine.replay import shard
from ray_backfill.engine.replay.prepare import as_served
from tests import reference
from tests.engine.replay.cases import (
    assert_same,
    candidates_with_room,
    gains_of,
    random_pair,
    random_system,
    random_truth,
    weights_of,
)
from tests.engine.replay.sharded import replay_sharded

WHOLE = ("mAP", "mAP@3", "CMC@1", "CMC@2", "recall@4", "MRR", "nDCG", "nDCG@4")
CUT = ("CMC@1", "mAP@3", "recall@2", "MRR@2", "nDCG@3")
RRF = Merge("rrf", by_rank=True)

# (forward distances, backward distances, which items are backfilled) of one query -> its ranking.
Ranking = Callable[[np.ndarray, np.ndarray, np.ndarray], list[int]]


def literal_score(score_map: ScoreMap, d: float) -> float:
    """The definition, in Python floats: linear from the knot before d, capped at the next knot."""
    x, y = score_map.distances.tolist(), score_map.scores.tolist()
    if len(x) == 1:
        return float(y[0])
    slopes = [(y1 - y0) / (x1 - x0) for (x0, x1), (y0, y1) in zip(pairwise(x), pairwise(y), strict=True)]
    if d < x[0]:
        return float(y[0] + (d - x[0]) * slopes[0])
    k = max(i for i in range(len(x)) if x[i] <= d)
    if k == len(x) - 1:
        return float(y[k] + (d - x[k]) * slopes[-1])
    return float(min(y[k] + (d - x[k]) * slopes[k], y[k + 1]))


def by_scores(merge: Merge) -> Ranking:
    def ranking(forward: np.ndarray, backward: np.ndarray, backfilled: np.ndarray) -> list[int]:
        assert merge.forward is not None
        assert merge.backward is not None
        keys = [
            (literal_score(merge.forward, float(f)), f) if done else (literal_score(merge.backward, float(b)), b)
            for f, b, done in zip(forward, backward, backfilled, strict=True)
        ]
        return sorted(range(len(keys)), key=lambda g: (*keys[g], g))

    return ranking


def fuse(forward: np.ndarray, backward: np.ndarray, backfilled: np.ndarray, ignored: set[int]) -> list[int]:
    """Rank both lists on their own, then sort all items by 1 / (60 + rank), high first, distance and position."""
    score, d = {}, np.where(backfilled, forward, backward)
    for is_of_list in (backfilled, ~backfilled):
        own = [g for g in np.flatnonzero(is_of_list).tolist() if g not in ignored]
        for rank, g in enumerate(sorted(own, key=lambda g: (d[g], g)), start=1):
            score[g] = 1 / (60 + rank)
    return sorted(score, key=lambda g: (-score[g], d[g], g))


def assert_as_defined(
    curves: Sequence[rb.Curve], pair: rb.UpgradePair, truth: rb.GroundTruth, order: np.ndarray, metrics: Sequence[str],
    distance: str, merge: Merge,
) -> None:  # fmt: skip
    """Against full sorts."""
    points = len(curves[0].t)
    forward, backward = (reference.distances(s.query, s.gallery, distance) for s in (pair.forward, pair.backward))
    gains, values = gains_of(truth), {metric: list[float]() for metric in metrics}
    for i in range(points):
        backfilled = np.zeros(len(order), bool)
        backfilled[order[: math.floor(i * len(order) / (points - 1) + 1e-12)]] = True
        rankings = []
        for q in range(truth.n_queries):
            ignored = set(truth.ignored_of(q).tolist())
            if merge.by_rank:
                ranking = fuse(forward[q], backward[q], backfilled, ignored)
            else:
                ranking = [g for g in by_scores(merge)(forward[q], backward[q], backfilled) if g not in ignored]
            rankings.append([float(gains[q, g]) for g in ranking])
        for metric in metrics:
            values[metric].append(reference.mean_score(rankings, weights_of(truth), metric))
    for curve in curves:
        for metric in metrics:
            np.testing.assert_allclose(curve.values(metric), values[metric], rtol=0, atol=1e-9, err_msg=metric)


def random_map(rng: np.random.Generator, lowest: float) -> ScoreMap:
    """A map with knots on a coarse grid, so that distances often are knots and scores often tie; it may be flat."""
    n = rng.integers(1, 7)
    x = np.sort(rng.choice(np.arange(17), n, replace=False)) / 4 + lowest
    y = np.cumsum(rng.integers(0, 3, n)) / 4 - rng.integers(0, 3)
    return ScoreMap(x, y)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_queries=st.integers(1, 4),
    n_gallery=st.integers(1, 25),
    points=st.integers(2, 6),
    tied=st.booleans(),
    same=st.sampled_from(["neither", "space", "system"]),
    distance=st.sampled_from(["cosine", "l2", "inner_product"]),
    is_cut=st.booleans(),
    by_rank=st.booleans(),
    n_shards=st.integers(1, 3),
    least_room=st.sampled_from([2, 1024]),
    graded=st.booleans(),
    weighted=st.booleans(),
    tile=st.sampled_from([7, 100]),
)
def test_merged_replays_equal_brute_force(
    seed: int, n_queries: int, n_gallery: int, points: int, tied: bool, same: str, distance: str, is_cut: bool,
    by_rank: bool, n_shards: int, least_room: int, graded: bool, weighted: bool, tile: int,
) -> None:  # fmt: skip
    """Also with a few queries at a time, where one tile holds all items."""
    rng = np.random.default_rng(seed)
    forward = random_system(rng, n_queries, n_gallery, 4, tied)
    backward = {
        "neither": random_system(rng, n_queries, n_gallery, 3, tied),
        "space": rb.RetrievalSystem(forward.query, forward.gallery),
        "system": forward,
    }[same]
    pair = rb.UpgradePair(backward, forward)
    truth = random_truth(rng, n_queries, n_gallery, graded, weighted)
    lowest = -6.0 if distance == "inner_product" else -1.0
    merge = RRF if by_rank else Merge("random", random_map(rng, lowest), random_map(rng, lowest))
    orders = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    n_shards = min(n_shards, n_gallery)
    cuts = sorted(rng.choice(np.arange(1, n_gallery), n_shards - 1, replace=False).tolist()) if n_shards > 1 else []
    metrics, (systems, served) = CUT if is_cut else WHOLE, as_served(pair, orders, merge)
    with (
        candidates_with_room(least_room),
        patch.object(shard, "TILE_ITEMS", 7),
        patch.object(shard, "COUNTED_ITEMS", tile),
        patch.object(shard, "_COUNTED_BYTES", 1),
        patch.object(shard, "_FEWEST_QUERIES", 2),
    ):
        results = [rb.replay(pair, truth, orders, points, metrics, distance, merge=merge)]
        for device in (None, "cpu"):
            results += replay_sharded(systems, [served], truth, points, metrics, distance, cuts, device)
    for name, order in orders.items():
        assert_as_defined([curves[name] for curves in results], pair, truth, order, metrics, distance, merge)


def scores_on_knots(rng: np.random.Generator, n_gallery: int) -> tuple[rb.UpgradePair, Merge]:
    """One-dimensional vectors, so that every inner product is a small integer, on a knot or beyond the ends."""
    one = np.ones((1, 1), np.float32)
    a, b = (rb.RetrievalSystem(one, rng.integers(-6, 7, (n_gallery, 1)).astype(np.float32)) for _ in "ab")
    map_a, map_b = (ScoreMap(np.arange(-3.0, 4.0), np.cumsum(rng.integers(0, 2, 7)).astype(float)) for _ in "ab")
    return rb.UpgradePair(a, b), Merge("steps", map_a, map_b)


def test_equal_scores_go_to_the_smaller_distance_then_the_earlier_position() -> None:
    """Items of the two systems share scores and distances; checked with counts and with candidates."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        pair, merge = scores_on_knots(rng, 30)
        truth = rb.GroundTruth.from_positives([rng.choice(30, 5, replace=False)], n_gallery=30)
        order = rng.permutation(30)
        with candidates_with_room():
            for metrics in (WHOLE, CUT):
                curve = rb.replay(pair, truth, order, 4, metrics, "inner_product", merge=merge)
                assert_as_defined([curve], pair, truth, order, metrics, "inner_product", merge)


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
@pytest.mark.parametrize("shift", [-1e30, -5.0, 5.0, 1e30])
def test_all_scores_of_one_system_before_the_other(distance: str, shift: float) -> None:
    """Every threshold of one system is outside the range of the other system's distances."""
    rng = np.random.default_rng(1)
    pair, truth = random_pair(rng, 4, 60, tied=False), random_truth(rng, 4, 60)
    order, ends = rng.permutation(60), np.array([-100.0, 100.0])
    merge = Merge("apart", ScoreMap(ends, ends), ScoreMap(ends, ends + shift))
    with candidates_with_room():
        for metrics in (WHOLE, CUT):
            curve = rb.replay(pair, truth, order, 5, metrics, distance, merge=merge)
            assert_as_defined([curve], pair, truth, order, metrics, distance, merge)


def test_one_strictly_increasing_map_for_both_systems_changes_nothing() -> None:
    """It gives the same result as raw distances, to the last bit and at every point."""
    rng = np.random.default_rng(2)
    pair = random_pair(rng, 40, 3000, tied=False)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 50, 40), rng.integers(0, 50, 3000))
    same = ScoreMap(np.array([0.0, 0.5, 1.0, 2.0]), np.array([3.0, 4.0, 8.0, 8.25]))
    for metrics in (("mAP",), ("mAP@10",)):
        raw = rb.replay(pair, truth, np.arange(3000), 7, metrics)
        mapped = rb.replay(pair, truth, np.arange(3000), 7, metrics, merge=Merge("same", same, same))
        assert_same(mapped, raw, metrics)


def test_candidates_equal_counts_under_maps() -> None:
    rng = np.random.default_rng(3)
    for k in range(10):
        pair, truth = random_pair(rng, 6, 400, tied=k % 2 == 0), random_truth(rng, 6, 400)
        merge = Merge("random", random_map(rng, -0.5), random_map(rng, -0.5))
        order = rng.permutation(400)
        counted = rb.replay(pair, truth, order, 6, ("mAP", "mAP@5"), merge=merge)
        with candidates_with_room(1024):
            found = rb.replay(pair, truth, order, 6, ("mAP@5",), merge=merge)
        assert_same(found, counted, ("mAP@5",))


def test_offline_backfills_and_flips_can_be_merged() -> None:
    rng = np.random.default_rng(4)
    pair, truth = random_pair(rng, 8, 50, tied=False), random_truth(rng, 8, 50)
    offline = dataclasses.replace(pair, switch="at_end")
    for merge in (RAW, RRF, Merge("random", random_map(rng, 0), random_map(rng, 0))):
        curve = rb.replay(offline, truth, np.arange(50), 5, merge=merge)
        raw = rb.replay(pair, truth, np.arange(50), 5)
        assert curve.values("mAP").tolist() == [raw.values("mAP")[0]] * 4 + [raw.values("mAP")[-1]]
        np.testing.assert_array_equal(curve.top1_correct[:, [0, -1]], raw.top1_correct[:, [0, -1]])
