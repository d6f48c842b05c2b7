"""The exact engine and its versions against brute force over exact distances, to the last bit."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import DISTANCES, exact_distances
from ray_backfill.engine.index import IndexSettings, Partition, make_partition
from ray_backfill.engine.index import exact as exact_module
from ray_backfill.engine.lists import RankedLists
from tests.engine.index.threads import search_while_made

EXACT = IndexSettings()


def brute_force(
    query: np.ndarray, vectors: np.ndarray, position: np.ndarray, k: int, distance: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first k of all rows by (distance, position), padded."""
    found = np.full((len(query), k), np.inf, np.float32), np.full((len(query), k), -1)
    if len(vectors):
        dist_QN = exact_distances(query, vectors, distance)
        for q, row in enumerate(dist_QN):
            order = np.lexsort((position, row))[:k]
            found[0][q, : len(order)], found[1][q, : len(order)] = row[order], position[order]
    return found


def assert_found(found: RankedLists, expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(found.item, expected[1])
    np.testing.assert_array_equal(found.distance.view(np.uint32), expected[0].view(np.uint32))


def draw(rng: np.random.Generator, rows: int, d: int, how: str) -> np.ndarray:
    if how == "random":
        return rng.normal(size=(rows, d))
    if how == "duplicates":
        return rng.integers(1, 3, (rows, d)).astype(float)
    if how == "near duplicates":
        return 1 + 1e-7 * rng.normal(size=(rows, d))
    if how == "of all lengths":
        return rng.normal(size=(rows, d)) * 10.0 ** rng.uniform(-8, 8, (rows, 1))
    if how == "denormal":
        return np.where(rng.random((rows, d)) < 0.5, 1e-44, -3e-42) * rng.integers(1, 9, (rows, d))
    return 1e18 * rng.normal(size=(rows, d))


@given(
    seed=st.integers(0, 2**32),
    how=st.sampled_from(["random", "duplicates", "near duplicates", "of all lengths", "denormal", "huge"]),
    distance=st.sampled_from(DISTANCES),
    d=st.sampled_from([1, 2, 3, 17, 64]),
    n=st.sampled_from([0, 1, 5, 40, 300]),
    b=st.sampled_from([1, 3, 20]),
    k=st.sampled_from([1, 2, 10, 400]),
    dtype=st.sampled_from([np.float32, np.float64, np.float16]),
    tile=st.sampled_from([7, 100, 512]),
    dead=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    zeros=st.booleans(),
)
def test_finds_what_brute_force_finds(
    seed: int, how: str, distance: str, d: int, n: int, b: int, k: int, dtype: type, tile: int, dead: float, zeros: bool
) -> None:
    rng = np.random.default_rng(seed)
    if dtype == np.float16 and how not in ("random", "duplicates"):
        dtype = np.float32
    query: Any = draw(rng, b, d, how).astype(dtype)
    vectors: Any = draw(rng, n, d, how).astype(dtype)
    if zeros and distance != "cosine":
        vectors[::3] = 0
        query[::2] = 0
    position = rng.permutation(10 * n + 10)[:n] * 10**12
    partition = make_partition(EXACT, distance, d, None)
    for part in np.array_split(np.arange(n), 3):
        partition = partition.with_rows(vectors[part], position[part])
    gone = rng.random(n) < dead
    partition = partition.without(position[gone])
    expected = brute_force(query, vectors[~gone], position[~gone], k, distance)
    with (
        patch.object(exact_module, "_LEAST_ROWS", tile),
        patch.object(exact_module, "_PRODUCTS", 1),
        patch.object(exact_module, "_QUERIES", 16),
    ):
        assert_found(partition.search(query, k), expected)
        assert_found(partition.compacted().search(query, k), expected)
    np.testing.assert_array_equal(partition.positions(), np.sort(position[~gone]))
    np.testing.assert_array_equal(partition.vectors(position[~gone]), vectors[~gone].astype(np.float32))


@pytest.mark.parametrize("distance", DISTANCES)
def test_a_system_of_realistic_size_needs_no_second_pass(distance: str) -> None:
    rng = np.random.default_rng(0)
    query, vectors = rng.normal(size=(70, 48)).astype(np.float32), rng.normal(size=(20_000, 48)).astype(np.float32)
    vectors[1000:1010] = vectors[0]
    position = rng.permutation(20_000)
    partition = make_partition(EXACT, distance, 48, None).with_rows(vectors, position)
    with patch.object(exact_module._Search, "_within", side_effect=AssertionError):
        assert_found(partition.search(query, 50), brute_force(query, vectors, position, 50, distance))


@pytest.mark.parametrize("distance", DISTANCES)
def test_more_near_duplicates_than_are_kept_take_a_second_pass(distance: str) -> None:
    rng = np.random.default_rng(0)
    query, vectors = rng.normal(size=(30, 8)).astype(np.float32), rng.normal(size=(3000, 8)).astype(np.float32)
    vectors[500:2500] = query[3] * (5 if distance == "inner_product" else 1.1)
    position = rng.permutation(3000)
    partition = make_partition(EXACT, distance, 8, None).with_rows(vectors, position)
    within = exact_module._Search._within
    with patch.object(exact_module._Search, "_within", autospec=True, side_effect=within) as second:
        assert_found(partition.search(query, 20), brute_force(query, vectors, position, 20, distance))
    assert sum(len(call.args[1]) for call in second.call_args_list) in range(1, 30)


def test_vectors_whose_products_overflow_are_still_found() -> None:
    rng = np.random.default_rng(0)
    query, vectors = rng.normal(size=(5, 4)), rng.uniform(-3e38, 3e38, (200, 4)).astype(np.float32)
    partition = make_partition(EXACT, "cosine", 4, None).with_rows(vectors, np.arange(200))
    assert_found(partition.search(query, 9), brute_force(query, vectors, np.arange(200), 9, "cosine"))
    odd = np.arange(1, 200, 2)
    partition = partition.without(np.arange(0, 200, 2))
    assert_found(partition.search(query, 9), brute_force(query, vectors[odd], odd, 9, "cosine"))


@pytest.mark.parametrize("distance", DISTANCES)
def test_versions_never_change(distance: str) -> None:
    """Also if two versions are derived from the same one."""
    rng = np.random.default_rng(1)
    vectors, query = rng.normal(size=(400, 6)).astype(np.float32), rng.normal(size=(4, 6))
    versions: list[tuple[Partition, set[int]]] = [(make_partition(EXACT, distance, 6, None), set())]
    for _ in range(60):
        partition, alive = versions[rng.integers(max(0, len(versions) - 3), len(versions))]
        out = sorted(set(range(400)) - alive)
        if rng.random() < 0.6 and out:
            some = rng.choice(out, min(len(out), 40), replace=False)
            versions.append((partition.with_rows(vectors[some], some), alive | set(some.tolist())))
        else:
            some = rng.choice(sorted(alive), len(alive) // 3, replace=False) if alive else np.empty(0, np.int64)
            new = partition.without(some)
            versions.append((new.compacted() if rng.random() < 0.3 else new, alive - set(some.tolist())))
    for partition, alive in versions:
        position = np.array(sorted(alive), np.int64)
        assert partition.n == len(alive)
        np.testing.assert_array_equal(partition.positions(), position)
        np.testing.assert_array_equal(partition.vectors(position), vectors[position])
        assert_found(partition.search(query, 12), brute_force(query, vectors[position], position, 12, distance))


def test_threads_search_while_one_updates() -> None:
    """Every result equals brute force over the version that was searched."""
    rng = np.random.default_rng(2)
    vectors, query = rng.normal(size=(3000, 16)).astype(np.float32), rng.normal(size=(6, 16)).astype(np.float32)
    dist_QN = exact_distances(query, vectors, "cosine")

    def versions() -> Iterator[Partition]:
        current = make_partition(EXACT, "cosine", 16, None).with_rows(vectors[:1000], np.arange(1000))
        yield current
        for i in range(100):
            current = current.without(np.arange(10 * i, 10 * i + 10))
            current = current.with_rows(vectors[1000 + 20 * i :][:20], np.arange(1000 + 20 * i, 1020 + 20 * i))
            current = current.compacted() if i % 10 == 9 else current
            yield current

    answers = search_while_made(versions(), lambda partition: partition.search(query, 5), threads=3)
    assert len({id(partition) for partition, _ in answers}) >= 33
    for partition, found in answers:
        position = partition.positions()
        order = np.argsort(dist_QN[:, position], axis=1, kind="stable")[:, :5]
        np.testing.assert_array_equal(found.item, position[order])


def test_a_position_may_come_back_with_another_vector() -> None:
    partition = make_partition(EXACT, "l2", 1, None)
    for turn in range(20):
        partition = partition.with_rows(np.array([[turn], [turn + 0.5]]), np.array([7, turn + 100]))
        assert partition.vectors(np.array([7])).tolist() == [[turn]]
        partition = partition.without(np.array([7]))
    with pytest.raises(ValueError, match="position 7 does not exist"):
        partition.without(np.array([7]))
    assert partition.search(np.array([[3.6]]), 2).item.tolist() == [[103, 104]]


def test_deleted_rows_take_memory_until_compaction_and_a_deleted_prefix_takes_no_time() -> None:
    rng = np.random.default_rng(3)
    vectors = rng.normal(size=(20_000, 8)).astype(np.float32)
    full = make_partition(EXACT, "l2", 8, None).with_rows(vectors, np.arange(20_000))
    late = full.without(np.arange(12_000))
    assert late.size_bytes == full.size_bytes
    assert late.needs_compaction
    compacted = late.compacted()
    assert compacted.size_bytes < 0.41 * full.size_bytes
    assert not compacted.needs_compaction
    assert compacted.compacted() is compacted
    assert full.size_bytes > vectors.nbytes
    with patch("numpy.matmul", wraps=np.matmul) as product:
        late.search(vectors[:1], 10)
    assert sum(call.args[1].shape[1] for call in product.call_args_list) == 8000


def test_spare_capacity_counts_as_memory() -> None:
    partition = make_partition(EXACT, "l2", 8, None).with_rows(np.ones((1000, 8)), np.arange(1000))
    grown = partition.with_rows(np.ones((1, 8)), np.array([1000]))
    assert grown.size_bytes > 1.7 * partition.size_bytes
    more = grown.with_rows(np.ones((900, 8)), np.arange(2000, 2900))
    assert more.size_bytes < 1.3 * grown.size_bytes
    assert more.n == 1901


def test_distances_that_overflow_are_refused() -> None:
    partition = make_partition(EXACT, "inner_product", 2, None).with_rows(np.full((1, 2), 1e20), np.array([0]))
    with pytest.raises(InputError, match="overflow float32"):
        partition.search(np.full((1, 2), 1e20), 1)
