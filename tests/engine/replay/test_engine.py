"""The replay engine against brute force."""

import importlib
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.engine.distances import exact_distances
from tests import reference
from tests.engine.replay.cases import CUT_METRICS, METRICS, gains_of, random_pair, random_truth, weights_of
from tests.engine.replay.sharded import prepare_pair, replay_sharded

prepare = importlib.import_module("ray_backfill.engine.replay.prepare")
nearest_module = importlib.import_module("ray_backfill.engine.replay.nearest")


def brute_force(
    pair: rb.UpgradePair, truth: rb.GroundTruth, order: np.ndarray, points: int, metrics: Sequence[str], distance: str
) -> dict[str, list[float]]:
    forward, backward = (reference.distances(s.query, s.gallery, distance) for s in (pair.forward, pair.backward))
    return reference.curves(forward, backward, gains_of(truth), weights_of(truth), order, points, metrics)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
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
)
def test_equals_brute_force(
    seed: int, n_queries: int, n_gallery: int, points: int, tied: bool, same_space: bool, dtype: type,
    distance: str, metrics: tuple[str, ...], n_shards: int, least_room: int, graded: bool, weighted: bool,
) -> None:  # fmt: skip
    """Both families of metrics, any shards, any ties and any ground truth; also with room for few candidates."""
    rng = np.random.default_rng(seed)
    pair = random_pair(rng, n_queries, n_gallery, tied, dtype)
    if same_space:  # then items of the two systems also tie with each other
        pair = rb.UpgradePair(rb.RetrievalSystem(pair.forward.query, pair.forward.gallery), pair.forward)
    truth = random_truth(rng, n_queries, n_gallery, graded, weighted)
    orders = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    n_shards = min(n_shards, n_gallery)
    cuts = sorted(rng.choice(np.arange(1, n_gallery), n_shards - 1, replace=False).tolist()) if n_shards > 1 else []
    with (
        patch.object(prepare, "_ITEMS_PER_CANDIDATE", 0),
        patch.object(nearest_module, "_LEAST_ROOM", least_room),
    ):
        results = [
            rb.replay(pair, truth, orders, points=points, metrics=metrics, distance=distance),
            replay_sharded(pair, truth, orders, points, metrics, distance, cuts),
            replay_sharded(pair, truth, orders, points, metrics, distance, cuts, torch_device="cpu"),
        ]
    for name, order in orders.items():
        expected = brute_force(pair, truth, order, points, metrics, distance)
        for metric in metrics:
            for curves in results:
                np.testing.assert_allclose(curves[name].values(metric), expected[metric], rtol=0, atol=1e-9)


def test_top_1_and_cut_metrics_are_the_same_by_counts_and_by_candidates() -> None:
    rng = np.random.default_rng(8)
    pair = random_pair(rng, 30, 500, tied=True)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 9, 30), rng.integers(0, 9, 500))
    truth = replace(truth, grades=rng.uniform(0.1, 5, len(truth.positives)))
    order = rng.permutation(500)
    assert prepare_pair(pair, truth, {"": order}, 11, CUT_METRICS)[1].nearest == 3
    whole = rb.replay(pair, truth, order, metrics=METRICS)
    near = rb.replay(pair, truth, order, metrics=CUT_METRICS[:1])
    deeper = rb.replay(pair, truth, order, metrics=CUT_METRICS)
    np.testing.assert_array_equal(near.top1_correct, whole.top1_correct)
    for metric in CUT_METRICS:
        np.testing.assert_array_equal(deeper.per_query[metric], whole.per_query[metric])


def test_candidates_equal_counts_where_the_two_systems_tie() -> None:
    """Squared distances are small integers in both systems, so that items of different systems often tie."""
    rng = np.random.default_rng(14)
    for _ in range(40):
        pair = random_pair(rng, 6, 60, tied=True)
        truth = rb.GroundTruth.from_labels(rng.integers(0, 4, 6), rng.integers(0, 4, 60))
        order = rng.permutation(60)
        counted = rb.replay(pair, truth, order, 5, ("mAP", "mAP@5"), "l2")  # mAP needs counting
        with patch.object(prepare, "_ITEMS_PER_CANDIDATE", 0), patch.object(nearest_module, "_LEAST_ROOM", 2):
            found = rb.replay(pair, truth, order, 5, ("mAP@5",), "l2")
        np.testing.assert_array_equal(found.per_query["mAP@5"], counted.per_query["mAP@5"])


def test_a_gallery_of_one_vector_overflows_no_list() -> None:
    """Every item ties with every other: nothing can be dropped by its product, and positions decide."""
    rng = np.random.default_rng(9)
    system = rb.RetrievalSystem(np.ones((2, 8), np.float32), np.ones((9000, 8), np.float32))
    truth = rb.GroundTruth.from_positives([[0, 5, 8999], [3]], [[1, 2], []], n_gallery=9000)
    curve = rb.replay(rb.UpgradePair(system, system), truth, rng.permutation(9000), points=11, metrics=("mAP@10",))
    expected = [(1 / 1 + 2 / 4) / 3, 1 / 4]  # ranks 1 and 4 (two of five before it are ignored), and 4
    np.testing.assert_allclose(curve.per_query["mAP@10"], np.tile(np.array(expected)[:, None], 11))


def test_ties_go_to_the_earlier_gallery_position() -> None:
    same = np.ones((3, 2), np.float32)
    system = rb.RetrievalSystem(same[:1], same)
    for positive, expected in [(0, 1.0), (1, 1 / 2), (2, 1 / 3)]:
        truth = rb.GroundTruth.from_positives([[positive]], n_gallery=3)
        curve = rb.replay(rb.UpgradePair(system, system), truth, np.arange(3), points=2)
        assert curve.values("mAP").tolist() == pytest.approx([expected, expected])


def test_offline_stays_old_until_the_end() -> None:
    rng = np.random.default_rng(4)
    pair = random_pair(rng, 10, 50, tied=False)
    truth = rb.GroundTruth.from_labels(np.arange(10) % 3, np.arange(50) % 3)
    offline = rb.UpgradePair(pair.backward, pair.forward, switch="at_end")
    merged = rb.replay(pair, truth, np.arange(50), points=5).values("mAP")
    expected = [merged[0]] * 4 + [merged[-1]]
    assert rb.replay(offline, truth, np.arange(50), points=5).values("mAP").tolist() == expected


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
    with patch.object(prepare, "_ITEMS_PER_CANDIDATE", 0), patch.object(nearest_module, "_LEAST_ROOM", 2):
        curve = rb.replay(pair, truth, order, 4, metrics, distance)
    exact = [exact_distances(s.query, s.gallery, distance) for s in (pair.forward, pair.backward)]
    expected = reference.curves(exact[0], exact[1], gains_of(truth), weights_of(truth), order, 4, metrics)
    for metric in metrics:
        np.testing.assert_allclose(curve.values(metric), expected[metric], rtol=0, atol=1e-9)


@pytest.mark.slow
def test_many_ignored_items_of_one_query_do_not_lengthen_lists() -> None:
    rng = np.random.default_rng(13)
    pair = random_pair(rng, 20, 5000, tied=False)
    ignored = [np.arange(2500) if q == 3 else np.empty(0, np.int64) for q in range(20)]
    truth = rb.GroundTruth.from_positives([[4000 + q] for q in range(20)], ignored, n_gallery=5000)
    assert prepare_pair(pair, truth, {"a": np.arange(5000)}, 11, ("mAP@100",))[1].nearest is None
    curve = rb.replay(pair, truth, np.arange(5000), points=3, metrics=("mAP@100",))
    expected = brute_force(pair, truth, np.arange(5000), 3, ("mAP@100",), "cosine")
    np.testing.assert_allclose(curve.values("mAP@100"), expected["mAP@100"], atol=1e-9)
