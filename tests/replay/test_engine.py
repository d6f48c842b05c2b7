"""The replay engine against brute force, scikit-learn, pytorch-metric-learning and faiss."""

import importlib
import signal
import threading
import time
from unittest.mock import patch

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import average_precision_score

import ray_backfill as rb
from ray_backfill.distances import exact_distances
from ray_backfill.replay.engine import measure_prepared
from ray_backfill.replay.prepare import prepare_replay
from ray_backfill.replay.shard import GalleryShard, LocalShards
from tests import reference
from tests.replay.sharded import replay_sharded

METRICS = ("mAP", "mAP@3", "mAP@100", "CMC@1", "CMC@2")
CUT_METRICS = ("CMC@1", "mAP@3", "CMC@2")
prepare = importlib.import_module("ray_backfill.replay.prepare")
nearest_module = importlib.import_module("ray_backfill.replay.nearest")
shard_module = importlib.import_module("ray_backfill.replay.shard")


def random_pair(
    rng: np.random.Generator, n_queries: int, n_gallery: int, tied: bool, dtype: type = np.float32
) -> rb.UpgradePair:
    """Embeddings of 3 and 4 dimensions; tied: small integers, so that many distances are exactly equal."""

    def draw(rows: int, columns: int) -> np.ndarray:
        if tied:
            return rng.integers(1, 3, (rows, columns)).astype(dtype)
        return rng.normal(size=(rows, columns)).astype(dtype)

    return rb.UpgradePair(
        backward=rb.RetrievalSystem(draw(n_queries, 3), draw(n_gallery, 3)),
        forward=rb.RetrievalSystem(draw(n_queries, 4), draw(n_gallery, 4)),
    )


def brute_force(
    pair: rb.UpgradePair, truth: rb.GroundTruth, order: np.ndarray, points: int, metric: str, distance: str
) -> list[float]:
    return reference.curve(
        reference.distances(pair.forward.query, pair.forward.gallery, distance),
        reference.distances(pair.backward.query, pair.backward.gallery, distance),
        [set(truth.positives_of(q).tolist()) for q in range(truth.n_queries)],
        [set(truth.ignored_of(q).tolist()) for q in range(truth.n_queries)],
        order,
        points,
        metric,
    )


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
)
def test_equals_brute_force(
    seed: int, n_queries: int, n_gallery: int, points: int, tied: bool, same_space: bool, dtype: type,
    distance: str,
    metrics: tuple[str, ...], n_shards: int, least_room: int,
) -> None:  # fmt: skip
    """Both families of metrics, any shards, any ties, whatever counts; with room for hardly any candidate, too."""
    rng = np.random.default_rng(seed)
    pair = random_pair(rng, n_queries, n_gallery, tied, dtype)
    if same_space:  # then items of the two systems tie with each other, too
        pair = rb.UpgradePair(rb.RetrievalSystem(pair.forward.query, pair.forward.gallery), pair.forward)
    kind = rng.integers(0, 4, (n_queries, n_gallery))  # 0: positive, 1: ignored, else neither
    kind[0, 0] = 0  # one query has a positive, the others may have none
    truth = rb.GroundTruth.from_positives(
        [np.flatnonzero(row == 0) for row in kind], [np.flatnonzero(row == 1) for row in kind], n_gallery=n_gallery
    )
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
        for metric in metrics:
            expected = brute_force(pair, truth, order, points, metric, distance)
            for curves in results:
                np.testing.assert_allclose(curves[name].values(metric), expected, rtol=0, atol=1e-9)


def test_top_1_and_cut_metrics_are_the_same_by_counts_and_by_candidates() -> None:
    rng = np.random.default_rng(8)
    pair = random_pair(rng, 30, 500, tied=True)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 9, 30), rng.integers(0, 9, 500))
    order = rng.permutation(500)
    whole = rb.replay(pair, truth, order, metrics=METRICS)
    near = rb.replay(pair, truth, order, metrics=CUT_METRICS[:1])
    deeper = rb.replay(pair, truth, order, metrics=CUT_METRICS)
    np.testing.assert_array_equal(near.top1_correct, whole.top1_correct)
    for metric in CUT_METRICS:
        np.testing.assert_array_equal(deeper.per_query[metric], whole.per_query[metric])


def test_candidates_equal_counts_where_the_two_systems_tie() -> None:
    """Squared distances are small integers in both systems, so that an item of one often ties with one of the other."""
    rng = np.random.default_rng(14)
    for _ in range(40):
        pair = random_pair(rng, 6, 60, tied=True)
        truth = rb.GroundTruth.from_labels(rng.integers(0, 4, 6), rng.integers(0, 4, 60))
        order = rng.permutation(60)
        counted = rb.replay(pair, truth, order, 5, ("mAP", "mAP@5"), "l2")  # mAP has all counted
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
            patch.object(prepare, "_BLOCK_BYTES", 4000),
            patch.object(shard_module, "TILE_ITEMS", 11),
        ):
            pieces = rb.replay(pair, truth, order, points=3, metrics=metrics, threads=3)
        for metric in metrics:
            np.testing.assert_array_equal(pieces.per_query[metric], whole.per_query[metric])


def test_mean_average_precision_equals_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    pair = random_pair(rng, 30, 200, tied=False)
    gallery_labels, query_labels = rng.integers(0, 5, 200), rng.integers(0, 5, 30)
    truth = rb.GroundTruth.from_labels(query_labels, gallery_labels)
    curve = rb.replay(pair, truth, np.arange(200), points=2)
    for point, system in [(0, pair.backward), (1, pair.forward)]:
        dist_QN = exact_distances(system.query, system.gallery, "cosine")
        expected = [
            average_precision_score(gallery_labels == y, -d) for y, d in zip(query_labels, dist_QN, strict=True)
        ]
        assert curve.values("mAP")[point] == pytest.approx(np.mean(expected), abs=1e-9)


def test_precision_at_1_and_map_at_r_equal_pytorch_metric_learning() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(120, 8)).astype(np.float32)
    labels = np.repeat(np.arange(12), 10)  # every query has R = 9 positives beside itself
    system = rb.RetrievalSystem(vectors, vectors)
    truth = rb.GroundTruth.from_labels(labels, labels, exclude_self=True)
    curve = rb.replay(rb.UpgradePair(system, system), truth, np.arange(120), 2, ("CMC@1", "mAP@9", "mAP"), "l2")
    calculator = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r", "mean_average_precision"), k=119
    )
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    assert curve.values("CMC@1")[0] == pytest.approx(theirs["precision_at_1"], abs=1e-9)
    assert curve.values("mAP@9")[0] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-7)
    assert curve.values("mAP")[0] == pytest.approx(theirs["mean_average_precision"], abs=1e-7)


def test_merged_partitions_equal_two_faiss_indexes() -> None:
    """The law on a real index: search both partitions, merge by distance, and get the replay's top 1."""
    rng = np.random.default_rng(3)
    pair = random_pair(rng, 50, 300, tied=False)
    labels = rng.integers(0, 30, 300)
    query_labels = rng.integers(0, 30, 50)
    order = rng.permutation(300)
    truth = rb.GroundTruth.from_labels(query_labels, labels)
    curve = rb.replay(pair, truth, order, points=4, metrics=("CMC@1",), distance="l2")
    for point in range(4):
        done = order[: point * 100]
        best = []
        for system, rows in ((pair.forward, done), (pair.backward, np.setdiff1d(order, done))):
            if len(rows):
                index = faiss.IndexFlatL2(system.gallery.shape[1])
                index.add(np.ascontiguousarray(system.gallery[rows]))
                squared, found = index.search(system.query.astype(np.float32), 1)
                best.append((np.sqrt(squared[:, 0]), rows[found[:, 0]]))
        nearest = np.argmin([d for d, _ in best], axis=0)
        top1 = np.choose(nearest, [ids for _, ids in best])
        assert curve.values("CMC@1")[point] == (labels[top1] == query_labels)[curve.scored].mean()


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
        ({"points": 1}, "at least 2 points"),
        ({"order": np.array([0, 0, 2])}, "item 1 is missing"),
        ({"order": np.array([0, 1])}, "one entry for each of the 3"),
        ({"order": {}}, "no order"),
        ({"metrics": ("recall",)}, "known: mAP"),
        ({"metrics": ("CMC",)}, "known: mAP"),
        ({"distance": "manhattan"}, "known: cosine, l2"),
        ({"device": "tpu"}, "known: cpu, cuda"),
        ({"device": "cuda:x"}, "known: cpu, cuda"),
        ({"threads": 0}, "at least one thread"),
        ({"metrics": ()}, "no metric"),
        ({"metrics": ("mAP@99999999999",)}, "deeper than any gallery"),
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
    """Where distances round to zero or to few values there are ties that the products do not have."""
    rng = np.random.default_rng(12)
    arrays = [(rng.integers(1, 6, (rows, 2)) * size).astype(np.float32) for rows in (4, 30, 4, 30)]
    pair = rb.UpgradePair(rb.RetrievalSystem(*arrays[:2]), rb.RetrievalSystem(*arrays[2:]))
    truth = rb.GroundTruth.from_labels(rng.integers(0, 4, 4), rng.integers(0, 4, 30))
    order = rng.permutation(30)
    with patch.object(prepare, "_ITEMS_PER_CANDIDATE", 0), patch.object(nearest_module, "_LEAST_ROOM", 2):
        curve = rb.replay(pair, truth, order, 4, metrics, distance)
    exact = [exact_distances(s.query, s.gallery, distance) for s in (pair.forward, pair.backward)]
    for metric in metrics:
        sets = [set(truth.positives_of(q).tolist()) for q in range(4)]
        expected = reference.curve(exact[0], exact[1], sets, [set()] * 4, order, 4, metric)
        np.testing.assert_allclose(curve.values(metric), expected, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_many_ignored_items_of_one_query_do_not_make_lists_long() -> None:
    rng = np.random.default_rng(13)
    pair = random_pair(rng, 20, 5000, tied=False)
    ignored = [np.arange(2500) if q == 3 else np.empty(0, np.int64) for q in range(20)]
    truth = rb.GroundTruth.from_positives([[4000 + q] for q in range(20)], ignored, n_gallery=5000)
    assert prepare_replay(truth, {"a": np.arange(5000)}, 11, ("mAP@100",), pair.switch).nearest is None
    curve = rb.replay(pair, truth, np.arange(5000), points=3, metrics=("mAP@100",))
    expected = brute_force(pair, truth, np.arange(5000), 3, "mAP@100", "cosine")
    np.testing.assert_allclose(curve.values("mAP@100"), expected, atol=1e-9)


def test_full_float32_is_for_the_replay_only() -> None:
    on_device = importlib.import_module("ray_backfill.replay.on_device")
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with on_device.full_float32():
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before


def test_ctrl_c_and_errors_end_a_replay_at_once() -> None:
    """A block of queries over a large gallery can take minutes: what stops one thread stops all."""
    rng = np.random.default_rng(11)
    pair = random_pair(rng, 8, 4000, tied=False)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 5, 8), rng.integers(0, 5, 4000))
    prepared = prepare_replay(truth, {"a": np.arange(4000)}, 3, METRICS, pair.switch)
    main = threading.main_thread().ident
    assert main is not None
    for stop in (KeyboardInterrupt, MemoryError):
        tiles: list[int] = []

        def report(comparisons: int, stop: type = stop, tiles: list[int] = tiles) -> None:
            tiles.append(comparisons)
            if len(tiles) == 5:
                if stop is KeyboardInterrupt:
                    signal.pthread_kill(main, signal.SIGINT)  # as Ctrl-C does; it waits for the others
                else:
                    raise stop
            time.sleep(0.01)

        with patch.object(shard_module, "TILE_ITEMS", 4):
            shard = GalleryShard(pair, 0, prepared.slices_ON, 3, "cosine", report)
            with pytest.raises(stop):
                measure_prepared(prepared, truth, LocalShards([shard]), threads=2)
        assert len(tiles) < 500  # of 2 x 2 x 1,000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
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
            for metric in metrics:
                np.testing.assert_array_equal(there[name].per_query[metric], here[name].per_query[metric])
