"""Replays of a gallery in parts against replays of the whole."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.data.write import vector_column
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.replay import Served, replay_pairs
from ray_backfill.engine.replay.shard import Found, GalleryShard
from ray_backfill.engine.streamed import replay_pairs_streamed, replay_streamed
from tests.engine.replay.cases import CUT_METRICS, random_pair, random_parts, random_truth
from tests.engine.replay.test_merged import random_map


@given(
    seed=st.integers(0, 2**32 - 1),
    n_gallery=st.sampled_from([1, 7, 60, 400]),
    points=st.integers(2, 7),
    tied=st.booleans(),
    distance=st.sampled_from(["cosine", "l2", "inner_product"]),
    is_mapped=st.booleans(),
)
def test_parts_give_the_curves_of_the_whole(
    seed: int, n_gallery: int, points: int, tied: bool, distance: str, is_mapped: bool
) -> None:
    """Of two pairs that share a system, one of which hides what is not backfilled, each with two orders."""
    rng = np.random.default_rng(seed)
    pair = random_pair(rng, 5, n_gallery, tied, np.float16 if seed % 2 else np.float32)
    truth = random_truth(rng, 5, n_gallery, graded=True, weighted=True)
    lowest = -10.0 if distance == "inner_product" else -1.0
    merge = Merge("mapped", random_map(rng, lowest), random_map(rng, lowest)) if is_mapped else rb.RAW
    orders = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    served = [Served(0, 1, orders, merge=merge), Served(0, 1, orders, "only_backfilled")]
    cuts = np.unique([0, *rng.integers(0, n_gallery, 4), n_gallery])
    systems = [pair.backward, pair.forward]
    parts = ([system.gallery[a:b] for system in systems] for a, b in pairwise(cuts))
    queries = [system.query for system in systems]
    found = replay_pairs_streamed(queries, parts, served, truth, points, CUT_METRICS, distance)
    whole = replay_pairs(systems, served, truth, points, CUT_METRICS, distance)
    for own, expected in zip(found, whole, strict=True):
        for name, curve in own.items():
            np.testing.assert_array_equal(curve.top1_correct, expected[name].top1_correct)
            for metric, values in curve.per_query.items():
                np.testing.assert_allclose(values, expected[name].per_query[metric], rtol=0, atol=1e-15)


def test_one_pair_by_names() -> None:
    rng = np.random.default_rng(0)
    pair, truth = random_pair(rng, 4, 90, tied=False), random_truth(rng, 4, 90)
    galleries = pair.backward.gallery, pair.forward.gallery
    parts = [[gallery[a : a + 30].tolist() for gallery in galleries] for a in (0, 90, 30, 60)]  # one is empty
    curve = replay_streamed((pair.backward.query, pair.forward.query), parts, truth, metrics="MRR@5", progress=True)
    np.testing.assert_array_equal(
        curve.values("MRR@5"), rb.replay(pair, truth, "random", metrics="MRR@5").values("MRR@5")
    )


def test_parts_from_parquet(tmp_path: Path) -> None:
    """Row groups and files are no limits of parts; float16 stays as it is."""
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(100, 3)).astype(np.float16), rng.normal(size=(100, 4)).astype(np.float32)
    for name, a, b in (("a", 0, 45), ("b", 45, 100)):
        table = pa.table({"old": vector_column(old[a:b]), "new": vector_column(new[a:b])})
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=20)
    for rows, lengths in ((30, [30, 30, 30, 10]), (7, [7] * 14 + [2]), (None, [100]), (200, [100])):
        parts = list(rb.stream_vectors(tmp_path, "old", "new", rows=rows))
        assert [len(part[0]) for part in parts] == lengths
        for stored, vectors in zip((old, new), zip(*parts, strict=True), strict=True):
            np.testing.assert_array_equal(np.concatenate(vectors), stored, strict=True)
    pq.write_table(pa.table({"old": vector_column(old), "new": vector_column(old)}), tmp_path / "c.parquet")
    with pytest.raises(rb.InputError, match=r"c.parquet, column 'new': 3 dimensions, but 4 before"):
        list(rb.stream_vectors(tmp_path, "old", "new"))
    with pytest.raises(rb.InputError, match="has no column 'v2'; its columns are old, new"):
        list(rb.stream_vectors(tmp_path, "old", "v2"))
    for number in (0, -1):
        with pytest.raises(rb.InputError, match=f"rows must be at least 1, got {number}"):
            list(rb.stream_vectors(tmp_path, "old", rows=number))
    for names in ((), ("old", "old")):
        with pytest.raises(rb.InputError, match="one or more columns of vectors, each once"):
            list(rb.stream_vectors(tmp_path, *names))


def test_farther_parts_have_no_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(3, 4)).astype(np.float32)
    near = np.repeat(queries, 40, axis=0) + rng.normal(scale=0.01, size=(120, 4)).astype(np.float32)
    truth = rb.GroundTruth.from_labels(np.arange(3), np.tile(np.repeat(np.arange(3), 40), 2))
    numbers: list[list[int]] = []
    search = GalleryShard.nearest

    def counted(*given: Any) -> list[Found]:
        found = search(*given)
        numbers.append([len(rows) for rows, _ in found])
        return found

    monkeypatch.setattr(GalleryShard, "nearest", counted)
    replay_streamed((queries, queries), [(near, near), (-near, -near)], truth, metrics="CMC@1", points=3, threads=1)
    assert len(numbers) == 2
    assert min(numbers[0]) >= 3
    assert numbers[1] == [0, 0]


def test_a_later_item_that_is_hardly_nearer_is_found() -> None:
    """Nearer by less than the error of a float32 product: exact distances decide."""
    angles = np.array([1.0, 1.0 - 2e-7])
    items, query = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32), np.array([[1.0, 0.0]])
    parts = [(items[:1], items[:1]), (items[1:], items[1:])]
    truth = rb.GroundTruth.from_positives([[1]], n_gallery=2)
    curve = replay_streamed((query, query), parts, truth, points=2, metrics="CMC@1")
    np.testing.assert_array_equal(curve.values("CMC@1"), 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": "mAP"}, "metrics that are cut"),
        ({"merge": "rrf"}, "a merge of distances"),
        ({"order": "centroid_cosine"}, "needs the gallery"),
        ({"gallery": [(np.ones((30, 3)), np.ones((30, 4)))]}, "but the parts only 30"),
        ({"gallery": [(np.ones((99, 3)), np.ones((99, 4)))]}, "the parts have more"),
        ({"gallery": [(np.ones((90, 3)), np.ones((80, 4)))]}, "got lengths 90, 80"),
        ({"gallery": [(np.ones((90, 3)),)]}, "2 arrays"),
        ({"queries": (np.ones((3, 3)), np.ones((4, 4)))}, "but 3 and 4 are given"),
        ({"truth": "filtered"}, "without a filter"),
        ({"threads": 0}, "threads must be at least 1"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    rng = np.random.default_rng(0)
    pair, truth = random_pair(rng, 4, 90, tied=False), random_truth(rng, 4, 90)
    if changes.get("truth"):
        changes = {"truth": truth.with_filter(random_parts(rng, truth, 2))}
    given: dict[str, Any] = {
        "queries": (pair.backward.query, pair.forward.query),
        "gallery": [(pair.backward.gallery, pair.forward.gallery)],
        "truth": truth,
    }
    with pytest.raises(rb.InputError, match=said):
        replay_streamed(**(given | changes))
