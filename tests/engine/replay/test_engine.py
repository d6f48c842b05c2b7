"""The replay engine against brute force."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.engine.distances import exact_distances
from ray_backfill.engine.replay import Served, replay_pairs
from ray_backfill.engine.replay.prepare import as_served, prepare_replay
from ray_backfill.engine.systems import Switch
from tests import reference
from tests.engine.replay.cases import (
    CUT_METRICS,
    METRICS,
    assert_same,
    candidates_with_room,
    gains_of,
    random_pair,
    random_parts,
    random_truth,
    weights_of,
)
from tests.engine.replay.sharded import replay_sharded


def assert_as_defined(
    curve: rb.Curve, systems: tuple[rb.RetrievalSystem, rb.RetrievalSystem], truth: rb.GroundTruth, order: np.ndarray,
    distance: str, switch: str = "progressively", recalls: int = 0, measure: Callable[..., Any] = reference.distances,
) -> None:  # fmt: skip
    """Each query's values at each point, the means, and what a cascade embeds, against brute force."""
    old, new = (measure(system.query, system.gallery, distance) for system in systems)
    gains = gains_of(truth)
    if truth.filter is not None:
        gains[truth.filter.of_query[:, None] != truth.filter.of_item] = np.nan
    expected, embedded = reference.curves(new, old, gains, order, len(curve.t), list(curve.per_query), switch, recalls)
    scored = np.flatnonzero(np.nansum(gains, axis=1))
    assert curve.scored.tolist() == scored.tolist()
    for metric, values in expected.items():
        np.testing.assert_allclose(curve.per_query[metric], values[scored], rtol=0, atol=1e-9, err_msg=metric)
        mean = np.average(values[scored], axis=0, weights=weights_of(truth)[scored])
        np.testing.assert_allclose(curve.values(metric), mean, rtol=0, atol=1e-9, err_msg=metric)
    if recalls:
        np.testing.assert_array_equal(curve.embedded, embedded[scored])


@given(
    seed=st.integers(0, 2**32 - 1),
    n_queries=st.integers(1, 6),
    n_gallery=st.integers(1, 40),
    points=st.integers(2, 7),
    tied=st.booleans(),
    same_space=st.booleans(),
    dtype=st.sampled_from([np.float16, np.float32]),
    distance=st.sampled_from(["cosine", "l2", "inner_product"]),
    metrics=st.sampled_from([METRICS, CUT_METRICS]),
    n_shards=st.integers(1, 4),
    least_room=st.sampled_from([2, 1024]),
    graded=st.booleans(),
    weighted=st.booleans(),
    switch=st.sampled_from(["progressively", "at_end", "only_backfilled"]),
    recalls=st.sampled_from([0, 1, 3, 10, 90]),
    n_parts=st.sampled_from([1, 1, 2, 4]),
)
def test_equals_brute_force(
    seed: int, n_queries: int, n_gallery: int, points: int, tied: bool, same_space: bool, dtype: type,
    distance: str, metrics: tuple[str, ...], n_shards: int, least_room: int, graded: bool, weighted: bool,
    switch: Switch, recalls: int, n_parts: int,
) -> None:  # fmt: skip
    """Both families of metrics, every kind of service, any shards, ties, filter and truth; also with little room."""
    rng = np.random.default_rng(seed)
    pair = random_pair(rng, n_queries, n_gallery, tied, dtype)
    if same_space:  # then items of the two systems also tie with each other
        pair = rb.UpgradePair(rb.RetrievalSystem(pair.forward.query, pair.forward.gallery), pair.forward)
    systems = [pair.backward, pair.forward]
    truth = random_truth(rng, n_queries, n_gallery, graded, weighted)
    if n_parts > 1:
        truth = truth.with_filter(random_parts(rng, truth, n_parts))
    orders = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    n_shards, recalls = min(n_shards, n_gallery), recalls if switch == "at_end" else 0
    cuts = sorted(rng.choice(np.arange(1, n_gallery), n_shards - 1, replace=False).tolist()) if n_shards > 1 else []
    served = Served(0, 1, orders, switch, recalls=recalls)
    with candidates_with_room(least_room):
        results = [replay_pairs(systems, [served], truth, points, metrics, distance)]
        if n_parts == 1:  # shards of a gallery with a filter are those of its parts
            for device in (None, "cpu"):
                results.append(replay_sharded(systems, [served], truth, points, metrics, distance, cuts, device))
    for (curves,) in results:
        for name, order in orders.items():
            assert_as_defined(curves[name], (systems[0], systems[1]), truth, order, distance, switch, recalls)


@pytest.mark.parametrize("switch", ["progressively", "at_end", "only_backfilled", "cascade"])
def test_a_gallery_of_usual_size_equals_brute_force(switch: str) -> None:
    """Candidates are used where they are cheaper than counts, and lists have their usual room."""
    rng = np.random.default_rng(6)
    pair, truth = random_pair(rng, 9, 900, tied=True), random_truth(rng, 9, 900, graded=True)
    truth, order = truth.with_filter(random_parts(rng, truth, 3)), rng.permutation(900)
    recalls = 40 if switch == "cascade" else 0
    kind: Any = "at_end" if recalls else switch
    served = Served(0, 1, {"": order}, kind, recalls=recalls)
    (curves,) = replay_pairs([pair.backward, pair.forward], [served], truth, 4, CUT_METRICS, "l2")
    assert_as_defined(curves[""], (pair.backward, pair.forward), truth, order, "l2", kind, recalls)


def test_cascades_are_replayed_apart() -> None:
    pair = random_pair(np.random.default_rng(0), 3, 60, tied=False)
    truth = rb.GroundTruth.from_positives([[1]] * 3, n_gallery=60)
    served = [Served(0, 1, {"a": np.arange(60)}), Served(0, 1, {"a": np.arange(60)}, "at_end", recalls=5)]
    with pytest.raises(rb.InputError, match="a pass of their own"):
        replay_pairs([pair.backward, pair.forward], served, truth, 3)


def test_top_1_and_cut_metrics_are_the_same_by_counts_and_by_candidates() -> None:
    rng = np.random.default_rng(8)
    pair = random_pair(rng, 30, 500, tied=True)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 9, 30), rng.integers(0, 9, 500))
    truth = replace(truth, grades=rng.uniform(0.1, 5, len(truth.positives)))
    order = rng.permutation(500)
    assert prepare_replay(truth, [as_served(pair, {"": order})[1]], 11, CUT_METRICS).nearest == 3
    whole = rb.replay(pair, truth, order, metrics=METRICS)
    near = rb.replay(pair, truth, order, metrics=CUT_METRICS[:1])
    deeper = rb.replay(pair, truth, order, metrics=CUT_METRICS)
    assert_same(near, whole, CUT_METRICS[:1])
    assert_same(deeper, whole, CUT_METRICS)


def test_a_gallery_of_one_vector_overflows_no_list() -> None:
    """Every item ties with every other: nothing can be dropped by its product, and positions decide."""
    rng = np.random.default_rng(9)
    system = rb.RetrievalSystem(np.ones((2, 8), np.float32), np.ones((9000, 8), np.float32))
    truth = rb.GroundTruth.from_positives([[0, 5, 8999], [3]], [[1, 2], []], n_gallery=9000)
    curve = rb.replay(rb.UpgradePair(system, system), truth, rng.permutation(9000), points=11, metrics=("mAP@10",))
    expected = [(1 / 1 + 2 / 4) / 3, 1 / 4]  # ranks 1 and 4 (two of five before it are ignored), and 4
    np.testing.assert_allclose(curve.per_query["mAP@10"], np.tile(np.array(expected)[:, None], 11))


@pytest.mark.parametrize("n", [(1 << 16) - 1, (1 << 16) + 2])
def test_counts_hold_the_largest_gallery_of_their_type(n: int) -> None:
    """All items but the closest one and the farthest, which is the right answer, are in one place of one segment."""
    gallery = np.stack([np.ones(n), np.append(0, np.linspace(0.5, 1, n - 1))], axis=1).astype(np.float32)
    system = rb.RetrievalSystem(np.array([[1, 0]], np.float32), gallery)
    truth = rb.GroundTruth.from_labels(np.array([1]), np.arange(n) // (n - 1))
    again = rb.RetrievalSystem(system.query, gallery[::-1].copy())
    curve = rb.replay(rb.UpgradePair(again, system), truth, np.arange(n), points=2, metrics=("MRR",), threads=1)
    # In the old system, the right answer is the query itself, in the new one it is the farthest.
    np.testing.assert_array_equal(curve.per_query["MRR"], [[1, 1 / n]])


def test_flips_and_summary_figures_by_hand() -> None:
    """Two queries, two items, one positive each: query 0 turns right, query 1 turns wrong at t = 1."""
    near, far = [1.0, 0.0], [0.0, 1.0]
    backward = rb.RetrievalSystem(np.array([near, near], np.float32), np.array([near, far], np.float32))
    forward = rb.RetrievalSystem(np.array([near, near], np.float32), np.array([far, near], np.float32))
    truth = rb.GroundTruth.from_positives([[1], [0]], n_gallery=2)
    curve = rb.replay(rb.UpgradePair(backward, forward), truth, np.array([0, 1]), points=2)
    assert curve.top1_correct.tolist() == [[False, True], [True, False]]
    assert curve.negative_flips().tolist() == [0.0, 0.5]
    assert curve.positive_flips().tolist() == [0.0, 0.5]
    assert curve.values("mAP").tolist() == [0.75, 0.75]
    assert curve.auc("mAP") == curve.auc_mean("mAP") == 0.75
    assert curve.frame.columns.tolist() == ["metric", "t", "value"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"points": 1}, "points must be at least 2"),
        ({"order": np.array([0, 0, 2])}, "item 1 is missing"),
        ({"order": np.array([0, 1])}, "one entry for each of the 3"),
        ({"order": {}}, "no order"),
        ({"metrics": ("recall",)}, "known: mAP"),
        ({"metrics": ("recall@k",)}, "known: mAP"),
        ({"metrics": ("CMC",)}, "known: mAP"),
        ({"distance": "manhattan"}, "known: cosine, l2"),
        ({"device": "tpu"}, "known: cpu, cuda"),
        ({"device": "cuda:x"}, "known: cpu, cuda"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"metrics": ()}, "no metric"),
        ({"metrics": ("mAP@99999999999",)}, "exceeds any gallery"),
        ({"points": 1 << 17}, "at most 65536"),
        ({"truth": rb.GroundTruth.from_positives([[]], n_gallery=3)}, "no query has a positive"),
        ({"truth": rb.GroundTruth.from_positives([[0]], n_gallery=4)}, "4 gallery items"),
    ],
)
def test_bad_input_is_named(change: dict[str, object], message: str) -> None:
    system = rb.RetrievalSystem(np.ones((1, 2), np.float32), np.ones((3, 2), np.float32))
    given_: dict[str, object] = {
        "pair": rb.UpgradePair(system, system),
        "truth": rb.GroundTruth.from_positives([[0]], n_gallery=3),
        "order": np.arange(3),
    }
    with pytest.raises(rb.InputError, match=message):
        rb.replay(**(given_ | change))  # type: ignore[call-overload]


@pytest.mark.parametrize("distance", ["cosine", "l2", "inner_product"])
@pytest.mark.parametrize("size", [1.4e-45, 1e-30, 1e15])
@pytest.mark.parametrize("metrics", [METRICS, CUT_METRICS])
def test_vectors_at_the_ends_of_float32(distance: str, size: float, metrics: tuple[str, ...]) -> None:
    """If distances round to zero or to few values, they tie although the products differ."""
    rng = np.random.default_rng(12)
    arrays = [(rng.integers(1, 6, (rows, 2)) * size).astype(np.float32) for rows in (4, 30, 4, 30)]
    pair = rb.UpgradePair(rb.RetrievalSystem(*arrays[:2]), rb.RetrievalSystem(*arrays[2:]))
    truth = rb.GroundTruth.from_labels(rng.integers(0, 4, 4), rng.integers(0, 4, 30))
    order = rng.permutation(30)
    with candidates_with_room():
        curve = rb.replay(pair, truth, order, 4, metrics, distance)
    assert_as_defined(curve, (pair.backward, pair.forward), truth, order, distance, measure=exact_distances)


def test_many_ignored_items_of_one_query_do_not_lengthen_lists() -> None:
    rng = np.random.default_rng(13)
    pair = random_pair(rng, 20, 5000, tied=False)
    ignored = [np.arange(2500) if q == 3 else np.empty(0, np.int64) for q in range(20)]
    truth = rb.GroundTruth.from_positives([[4000 + q] for q in range(20)], ignored, n_gallery=5000)
    assert prepare_replay(truth, [as_served(pair, {"": np.arange(5000)})[1]], 11, ("mAP@100",)).nearest is None
    curve = rb.replay(pair, truth, np.arange(5000), points=3, metrics=("mAP@100",))
    assert_as_defined(curve, (pair.backward, pair.forward), truth, np.arange(5000), "cosine")
