"""The contract of every kind of partition: after any updates, searches find each live row once and no deleted row."""

from functools import cache
from unittest.mock import patch

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import DISTANCES, exact_distances
from ray_backfill.engine.index import IndexSettings, Partition, check_index, make_partition
from ray_backfill.engine.index.faiss_index import FaissKind
from ray_backfill.engine.lists import RankedLists
from tests.contracts import one_of_each

D, ROWS = 16, 4000

# Kind -> (effort with which all rows are found, smallest share of the true 10 nearest that it must find).
KINDS = {
    "exact": (0, 1.0),
    "Flat": (0, 1.0),
    "IVF16,Flat": (16, 1.0),
    "IVF16,PQ8x4": (16, 0.2),
    "PQ8x4": (0, 0.2),
    "SQ8": (0, 0.9),
    "HNSW16": (200, 0.9),
    "PCA12,IVF16_HNSW8,SQ8": (16, 0.3),
}


def family(kind: str) -> str:
    """What searches: an exact scan, lists, codes, or a graph."""
    return next((name for name in ("IVF", "PQ", "HNSW", "SQ") if name in kind), kind)


EXHAUSTIVE = [kind for kind in KINDS if "HNSW16" not in kind]
ALL_KINDS = pytest.mark.parametrize("kind", one_of_each(KINDS, family))
ALL_DISTANCES = pytest.mark.parametrize("distance", DISTANCES)

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(ROWS, D)).astype(np.float32)
QUERIES = RNG.normal(size=(30, D)).astype(np.float32)
TRUE = {distance: exact_distances(QUERIES, VECTORS, distance) for distance in DISTANCES}


pytestmark = pytest.mark.usefixtures("one_faiss_thread")


@cache
def empty(kind: str, distance: str) -> Partition:
    """Shared by all tests, which cannot change it."""
    return make_partition(IndexSettings(kind, KINDS[kind][0]), distance, D, VECTORS[:600])


def assert_lawful(partition: Partition, found: RankedLists, alive: np.ndarray) -> None:
    """Results ascend by (distance, position) and are padded at the end; each position occurs once and is live."""
    np.testing.assert_array_equal(partition.positions(), alive)
    assert partition.n == len(alive)
    assert found.distance.dtype == np.float32
    assert found.item.dtype == np.int64
    for distance, position in zip(found.distance, found.item, strict=True):
        there = position >= 0
        assert not there[np.argmin(there) :].any() or there.all()
        np.testing.assert_array_equal(np.isinf(distance), ~there)
        np.testing.assert_array_equal(position[~there], -1)
        listed = position[there]
        assert len(np.unique(listed)) == len(listed)
        assert np.isin(listed, alive).all()
        np.testing.assert_array_equal(np.lexsort((listed, distance[there])), np.arange(len(listed)))


@ALL_DISTANCES
@ALL_KINDS
def test_a_backfill_leaves_each_row_in_one_partition(kind: str, distance: str) -> None:
    """Move small batches from the old partition, whose rows are in backfill order, to the new one."""
    order = np.random.default_rng(1).permutation(ROWS)
    old, new = empty(kind, distance).with_rows(VECTORS[order], order), empty(kind, distance)
    started = old
    done = 0
    for size in (1, 300, 5, 2400, 60, 700, 500):
        batch = order[done : done + size]
        done += size
        old, new = old.without(batch), new.with_rows(VECTORS[batch], batch)
        if old.needs_compaction:
            old = old.compacted()
        for partition, rows in ((old, order[done:]), (new, order[:done])):
            assert_lawful(partition, partition.search(QUERIES, 10), np.sort(rows))
    assert_lawful(started, started.search(QUERIES, 10), np.arange(ROWS))


@ALL_KINDS
def test_rows_come_and_go(kind: str) -> None:
    """Also rows that were added last, and before a batch that is large enough to merge all rows."""
    rng = np.random.default_rng(3)
    partition, alive = empty(kind, "l2"), np.empty(0, np.int64)
    out = rng.permutation(ROWS)
    for size in (600, 150, 150, 200, 2200, 100):
        batch, out = out[:size], out[size:]
        partition = partition.with_rows(VECTORS[batch], batch)
        alive = np.sort(np.concatenate([alive, batch]))
        assert_lawful(partition, partition.search(QUERIES, 10), alive)
        gone = np.concatenate(
            [batch[: size // 3], rng.choice(np.setdiff1d(alive, batch), (len(alive) - size) // 3, False)]
        )
        partition, alive = partition.without(gone), np.setdiff1d(alive, gone)
        assert_lawful(partition, partition.search(QUERIES, 10), alive)
        out = np.concatenate([out, gone])  # some come back later


@ALL_DISTANCES
@ALL_KINDS
def test_the_truly_nearest_are_found_before_and_after_compaction(kind: str, distance: str) -> None:
    rng = np.random.default_rng(2)
    gone = rng.random(ROWS) < 0.6
    partition = empty(kind, distance)
    for part in np.array_split(rng.permutation(ROWS), 5):
        partition = partition.with_rows(VECTORS[part], part)
    partition = partition.without(np.flatnonzero(gone))
    alive = np.flatnonzero(~gone)
    truth = alive[np.argsort(TRUE[distance][:, alive], axis=1)[:, :10]]
    compacted = partition.compacted()
    assert compacted.size_bytes < 0.6 * partition.size_bytes
    assert compacted.compacted() is compacted
    for version in (partition, compacted):
        found = version.search(QUERIES, 10)
        assert_lawful(version, found, alive)
        recall = np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(found.item, truth, strict=True)])
        assert recall >= KINDS[kind][1]


@pytest.mark.parametrize("kind", one_of_each(EXHAUSTIVE, family))
def test_some_rows_are_searched_as_if_there_were_no_others(kind: str) -> None:
    """Of a partition with deleted and fresh rows, whose positions begin at 7."""
    rng = np.random.default_rng(4)
    partition, stays = empty(kind, "l2"), rng.random(1000) < 0.1
    for part in np.array_split(rng.permutation(1000), 3):
        partition = partition.with_rows(VECTORS[part], part + 7)
    partition = partition.without(np.arange(100, 800, 2) + 7)
    left = np.intersect1d(partition.positions() - 7, np.flatnonzero(stays))
    found, alone = (
        of.search(QUERIES, 12)
        for of in (partition.only(stays, 7), empty(kind, "l2").with_rows(VECTORS[left], left + 7))
    )
    assert_lawful(partition.only(stays, 7), found, left + 7)
    np.testing.assert_array_equal(found.item, alone.item)
    assert partition.n == 650, "it is as it was"
    assert partition.only(stays & False, 7).search(QUERIES, 2).item.tolist() == [[-1] * 2] * 30


@ALL_DISTANCES
@pytest.mark.parametrize("kind", one_of_each(EXHAUSTIVE, family))
def test_a_search_for_more_than_there_are_finds_all(kind: str, distance: str) -> None:
    partition = empty(kind, distance)
    for part in np.array_split(np.arange(900), 4):
        partition = partition.with_rows(VECTORS[part], part)
    partition = partition.without(np.arange(100, 800, 2))
    for version in (partition, partition.compacted()):
        found = version.search(QUERIES, 700)
        assert_lawful(version, found, version.positions())
        assert ((found.item >= 0).sum(axis=1) == 550).all()


@ALL_KINDS
def test_nothing_in_nothing_out(kind: str) -> None:
    partition = empty(kind, "cosine")
    assert partition.search(QUERIES, 3).item.tolist() == [[-1] * 3] * 30
    assert partition.n == 0
    assert partition.compacted() is partition
    assert not partition.needs_compaction
    one = partition.with_rows(VECTORS[:1], np.array([5]))
    assert one.search(QUERIES, 2).item.tolist() == [[5, -1]] * 30
    assert one.search(QUERIES[:0], 2).item.shape == (0, 2)
    assert one.search(QUERIES, 0).item.shape == (30, 0)
    assert one.with_rows(VECTORS[:0], np.empty(0, np.int64)).n == 1
    assert one.without(np.empty(0, np.int64)).n == 1
    gone = one.without(np.array([5]))
    assert_lawful(gone, gone.search(QUERIES, 2), np.empty(0, np.int64))
    again = gone.with_rows(VECTORS[:300], np.arange(300))
    assert_lawful(again, again.search(QUERIES, 2), np.arange(300))


@ALL_KINDS
def test_broken_invariants_are_reported(kind: str) -> None:
    partition = empty(kind, "l2").with_rows(VECTORS[:20], np.arange(20)).with_rows(VECTORS[:5], np.arange(30, 35))
    less = partition.without(np.array([3, 31]))
    for position, message in (
        ([3], "position 3 does not"),
        ([31, 4], "position 31 does not"),
        ([4, 4], "4 is given twice"),
    ):
        with pytest.raises(ValueError, match=message):
            less.without(np.array(position))
    for position, message in (
        ([50, 4], "position 4 exists already"),
        ([50, 32], "position 32 exists already"),
        ([50, 50], "position 50 is given twice"),
        ([50, -1], "position -1 is negative"),
        ([50], "2 vectors need as many positions"),
    ):
        with pytest.raises(ValueError, match=message):
            less.with_rows(VECTORS[:2], np.array(position))
    with pytest.raises(ValueError, match="position 3 does not exist"):
        less.vectors(np.array([2, 3]))
    assert less.with_rows(VECTORS[:2], np.array([3, 31])).n == 25


@ALL_KINDS
def test_invalid_vectors_are_refused(kind: str) -> None:
    partition = empty(kind, "cosine").with_rows(VECTORS[:20], np.arange(20))
    row, position = VECTORS[:1], np.array([50])
    for bad, message in (
        (row[:, :5], "of 16 columns"),
        (row.astype(int), "float array"),
        (row * np.nan, "NaN or infinite"),
        (row * 0, "zero vector"),
    ):
        with pytest.raises(InputError, match=message):
            partition.with_rows(bad, position)
        with pytest.raises(InputError, match=message):
            partition.search(bad, 3)


@ALL_DISTANCES
@ALL_KINDS
def test_stored_vectors_can_be_read_back(kind: str, distance: str) -> None:
    partition = empty(kind, distance)
    for part in np.array_split(np.arange(1000), 2):
        partition = partition.with_rows(VECTORS[part], part + 7)
    partition = partition.without(np.arange(100) + 7)
    given = VECTORS[[999, 100, 500]]
    if distance == "cosine" and kind != "exact":
        given = given / np.linalg.norm(given, axis=1, keepdims=True)
    lossless = {"exact": 0.0, "Flat": 1e-6, "IVF16,Flat": 1e-6, "HNSW16": 1e-6, "SQ8": 0.1}
    tolerance = lossless.get(kind, 2.5)
    for version in (partition, partition.compacted()):
        np.testing.assert_allclose(version.vectors(np.array([999, 100, 500]) + 7), given, rtol=0, atol=tolerance)


@ALL_KINDS
def test_results_are_deterministic(kind: str) -> None:
    def made() -> RankedLists:
        trained = make_partition(IndexSettings(kind, KINDS[kind][0]), "cosine", D, VECTORS[:600])
        partition = trained.with_rows(VECTORS[:900], np.arange(900))
        return partition.without(np.arange(200)).search(QUERIES, 10)

    first, second = made(), made()
    np.testing.assert_array_equal(first.item, second.item)
    np.testing.assert_array_equal(first.distance, second.distance)


@ALL_DISTANCES
@ALL_KINDS
def test_the_early_check_accepts_all_kinds_without_training(kind: str, distance: str) -> None:
    with patch.object(FaissKind, "train") as train:
        check_index(IndexSettings(kind), D, distance)
    train.assert_not_called()
    assert empty(kind, distance).n == 0  # what the check accepts can be made
    with pytest.raises(InputError, match="at least one dimension"):
        check_index(IndexSettings(kind), 0, distance)
