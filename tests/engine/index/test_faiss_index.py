"""Properties of faiss partitions: distances, fresh rows, deletion without selectors, training, messages."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import faiss
import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import DISTANCES, exact_distances
from ray_backfill.engine.index import IndexSettings, check_index, faiss_index, make_partition
from ray_backfill.engine.index.faiss_index import FaissPartition
from ray_backfill.engine.lists import RankedLists
from tests.engine.index.threads import search_while_made

RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(6000, 16)).astype(np.float32)
QUERIES = RNG.normal(size=(40, 16)).astype(np.float32)


pytestmark = pytest.mark.usefixtures("one_faiss_thread")


@cache
def partition(kind: str, distance: str = "cosine", effort: int = 0) -> FaissPartition:
    """Shared by all tests, which cannot change it."""
    made = make_partition(IndexSettings(kind, effort), distance, 16, VECTORS[:2000])
    assert isinstance(made, FaissPartition)
    return made


def filled(kind: str, distance: str = "cosine", effort: int = 0, rows: int = 6000) -> FaissPartition:
    return partition(kind, distance, effort).with_rows(VECTORS[:rows], np.arange(rows))


def assert_same(a: RankedLists, b: RankedLists) -> None:
    np.testing.assert_array_equal(a.item, b.item)
    np.testing.assert_allclose(a.distance, b.distance, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", ["Flat", "IVF32,Flat"])
def test_distances_are_ours(kind: str, distance: str) -> None:
    found = filled(kind, distance, effort=32).search(QUERIES, 20)
    dist_QN = exact_distances(QUERIES, VECTORS, distance)
    np.testing.assert_array_equal(found.item, np.argsort(dist_QN, axis=1)[:, :20])
    np.testing.assert_allclose(found.distance, np.sort(dist_QN, axis=1)[:, :20], rtol=1e-5, atol=1e-5)


def test_quantised_distances_are_those_to_the_stored_vectors() -> None:
    codes = filled("PQ8x4", "l2", rows=500)
    found = codes.search(QUERIES, 5)
    remembered = exact_distances(QUERIES, codes.vectors(np.arange(500)), "l2")
    np.testing.assert_allclose(found.distance, np.sort(remembered, axis=1)[:, :5], rtol=1e-4)


@pytest.mark.parametrize("kind", ["Flat", "IVF16,Flat", "IVF16,PQ8x4", "PQ8x4"])
def test_rows_one_batch_at_a_time_are_as_good_as_all_at_once(kind: str) -> None:
    at_once = filled(kind, effort=16)
    grown = partition(kind, effort=16)
    fresh = set()
    for i in range(0, 6000, 300):
        grown = grown.with_rows(VECTORS[i : i + 300], np.arange(i, i + 300))
        fresh.add(len(grown._fresh.rows))
    assert max(fresh) == 1800  # up to 2048, then merged
    assert len(grown._fresh.rows) > 0
    assert_same(grown.search(QUERIES, 30), at_once.search(QUERIES, 30))
    assert_same(grown.compacted().search(QUERIES, 30), at_once.search(QUERIES, 30))
    assert not len(grown.compacted()._fresh.rows)


@pytest.mark.parametrize("kind", ["Flat", "IVF16,Flat", "IVF16,PQ8x4", "PQ8x4", "PCA12,IVF16,PQ6x4"])
@pytest.mark.parametrize("most_nearest", [0, 1 << 40, 64])
def test_all_ways_to_skip_dead_rows_agree(kind: str, most_nearest: int) -> None:
    """With a selector, by requesting more rows, and by requesting more rows up to a limit."""
    rng = np.random.default_rng(1)
    gone = np.flatnonzero(rng.random(6000) < 0.7)
    whole = filled(kind, effort=16)
    if not kind.startswith("PQ"):
        whole = replace(whole, kind=replace(whole.kind, most_nearest=most_nearest))
    left = whole.without(gone)
    alive = np.setdiff1d(np.arange(6000), gone)
    built = partition(kind, effort=16).with_rows(VECTORS[alive], alive)
    for k in (1, 20, 2000):
        assert_same(left.search(QUERIES, k), built.search(QUERIES, k))


class Counting:
    """An index that counts its searches."""

    def __init__(self, index: Any) -> None:
        self.index, self.wanted = index, list[int]()

    def search(self, query: np.ndarray, k: int) -> Any:
        self.wanted.append(k)
        return self.index.search(query, k)


def test_requests_for_more_rows_stop_when_the_lists_are_exhausted() -> None:
    """One list of 32 is probed; it has fewer than k live rows, and no larger search can find others."""
    whole = filled("IVF32,Flat", effort=1)
    counting = Counting(whole._main.index)
    main, kind = replace(whole._main, index=counting), replace(whole.kind, most_nearest=1 << 40)
    found = replace(whole, _main=main, kind=kind).without(np.arange(0, 6000, 2)).search(QUERIES, 500)
    assert counting.wanted == [1000]
    assert (found.item[:, -1] == -1).all()
    assert (found.item[:, 0] % 2 == 1).all()


def test_effort_is_nprobe() -> None:
    few, many = (filled("IVF64,Flat", effort=effort).search(QUERIES, 1000) for effort in (2, 64))
    default = filled("IVF64,Flat").search(QUERIES, 1000)
    assert (default.item >= 0).sum() < (few.item >= 0).sum() < (many.item >= 0).sum()


def test_a_graph_takes_its_share_of_the_effort() -> None:
    graph = filled("HNSW8", effort=400)
    truth = filled("Flat").search(QUERIES, 5).item

    def recall(share: float) -> float:
        return float((graph.search(QUERIES, 5, share).item[:, :, None] == truth[:, None]).any(1).mean())

    assert recall(1.0) > 0.98
    assert recall(0.01) < recall(1.0) - 0.05
    for kind, k, share, effort in (
        (graph.kind, 5, 0.1, 40),
        (graph.kind, 50, 0.1, 50),
        (partition("HNSW8").kind, 1, 1, 16),
    ):
        parameters: Any = kind.parameters(None, k, share)
        assert parameters.efSearch == effort


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Flat", "IVF16,Flat", "HNSW8", "PQ8x4"])
def test_threads_search_while_one_updates(kind: str) -> None:
    alive: dict[int, np.ndarray] = {}
    made = []

    def versions() -> Iterator[FaissPartition]:
        for i in range(41):
            if i == 0:
                current = filled(kind, effort=64, rows=1500)
            else:
                current = current.without(np.arange(20 * i - 20, 20 * i))
                rows = np.arange(1400 + 100 * i, 1500 + 100 * i)
                current = current.with_rows(VECTORS[rows], rows)
                current = current.compacted() if i % 10 == 0 else current
            made.append(current)  # kept alive, so that its id stays unique
            alive[id(current)] = np.arange(20 * i, 1500 + 100 * i)
            yield current

    answers = search_while_made(versions(), lambda version: version.search(QUERIES[:3], 5), threads=2)
    assert len({id(version) for version, _ in answers}) >= 14
    flat = exact_distances(QUERIES[:3], VECTORS, "cosine")
    for version, found in answers:
        rows = alive[id(version)]
        assert np.isin(found.item, rows).all()
        if "Flat" in kind:
            expected = rows[np.argsort(flat[:, rows], axis=1)[:, :5]]
            np.testing.assert_array_equal(found.item, expected)


@pytest.mark.parametrize("kind", ["Flat", "IVF16,Flat", "IVF16,PQ8x4", "PQ8x4", "SQ8", "HNSW8", "PCA12,IVF16,SQ8"])
def test_size_is_nearly_what_faiss_would_write(kind: str) -> None:
    held = filled(kind)
    written = sum(faiss.serialize_index(index).nbytes for index in (held._main.index, held._none.index))
    assert held.size_bytes - held._main.rows.size_bytes == pytest.approx(written, rel=0.05)


def test_deleted_and_fresh_rows_take_memory() -> None:
    whole = filled("Flat")
    fewer = whole.without(np.arange(3000))
    assert fewer.size_bytes == whole.size_bytes
    assert fewer.needs_compaction
    assert fewer.compacted().size_bytes == pytest.approx(0.5 * whole.size_bytes, rel=0.05)
    fresh = whole.with_rows(VECTORS[:100], np.arange(7000, 7100))
    assert fresh.size_bytes - whole.size_bytes > 2 * VECTORS[:100].nbytes  # in the index, and as given


def test_training_reports_missing_vectors() -> None:
    for kind, rows in (("IVF300,Flat", 300), ("PQ4", 256), ("IVF4,PQ4", 256), ("OPQ4,Flat", 256), ("HNSW8_PQ4", 256)):
        settings = IndexSettings(kind)
        with pytest.raises(InputError, match=f"must be trained; provide at least {rows} train embeddings"):
            make_partition(settings, "l2", 16, None)
        with pytest.raises(InputError, match=f"needs at least {rows} train embeddings, got {rows - 1}"):
            make_partition(settings, "l2", 16, VECTORS[: rows - 1])
    assert make_partition(IndexSettings("PCA8,Flat"), "l2", 16, VECTORS[:8]).n == 0


def test_training_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    for kind in ("IVF64,Flat", "IVF4,PQ2x4", "OPQ1_1,PQ1x4", "HNSW8_PQ1"):
        make_partition(IndexSettings(kind), "l2", 16, VECTORS[:300])
    output = capfd.readouterr()
    assert output.out + output.err == ""


@pytest.mark.parametrize(
    ("kind", "distance", "message"),
    [
        ("nonsense", "cosine", "faiss rejects the index 'nonsense' .*could not parse index string nonsense"),
        ("PQ5", "cosine", "faiss rejects the index 'PQ5' for 16 dimensions.*multiple of the number of subquantizers"),
        ("IVF9999999999999999999999,Flat", "l2", "faiss rejects"),
        ("IVF0,Flat", "l2", "has no lists"),
        ("IVF4,Flat,RFlat", "l2", "does not support the deletions"),
        ("PQ4x4fs", "l2", "does not support the deletions"),
        ("HNSW8_PQ4", "cosine", "only with the l2 distance, not cosine"),
        ("Flat", "hamming", "unknown distance"),
    ],
)
def test_unsupported_kinds_are_refused(kind: str, distance: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_index(IndexSettings(kind), 16, distance)


def test_graphs_do_not_filter() -> None:
    """Of HNSW, a filter that leaves one item in fifty left three of ten answers."""
    for kind in ("HNSW8", "PCA8,HNSW8"):
        check_index(IndexSettings(kind), 16, "l2")
        with pytest.raises(InputError, match=f"the graph '{kind}' misses most items of a small part"):
            check_index(IndexSettings(kind), 16, "l2", has_filter=True)
    for kind in ("exact", "Flat", "IVF4,Flat", "PCA12,IVF16_HNSW8,SQ8", "PQ4"):
        check_index(IndexSettings(kind), 16, "l2", has_filter=True)


def test_invalid_settings_are_refused() -> None:
    for wrong, message in (
        ({"kind": ""}, "kind is empty"),
        ({"effort": -1}, "must not be negative"),
        ({"device": "tpu"}, "unknown index device"),
        ({"device": "cuda"}, "exact index runs only on the CPU"),
    ):
        with pytest.raises(InputError, match=message):
            IndexSettings(**wrong)


@pytest.mark.parametrize(
    ("kind", "effort", "problem"),
    [
        ("HNSW8", 0, "use device cpu, or the kind Flat or IVF"),
        ("IVF4096,Flat", 3000, "at most 2,048 lists are searched; lower its effort of 3,000"),
        ("IVF16,PQ6", 4, "product quantizers need 8 bits and 1, 2, 3, 4, 8"),
        ("IVF16,PQ8x4", 4, "product quantizers need 8 bits"),
        ("IVF16,SQbf16", 4, "scalar quantizers need 4, 6 or 8 bits or fp16 there"),
    ],
)
def test_what_a_gpu_cannot_search_is_said_before_anything_starts(kind: str, effort: int, problem: str) -> None:
    with pytest.raises(InputError, match=f"cannot search the index '{kind}' on a GPU: .*{problem}"):
        check_index(IndexSettings(kind, effort, "cuda"), 48, "l2")
    check_index(IndexSettings(kind, effort), 48, "l2")


@pytest.mark.parametrize("kind", ["Flat", "IVF16,Flat", "IVF16,PQ8", "IVF16,SQ6", "OPQ8,IVF16,SQfp16"])
def test_the_driver_needs_no_gpu_but_a_partition_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = IndexSettings(kind, 4, "cuda")
    check_index(settings, 48, "l2")
    monkeypatch.delattr(faiss, "StandardGpuResources", raising=False)
    train = np.random.default_rng(0).normal(size=(600, 48)).astype(np.float32)
    with pytest.raises(InputError, match="finds no GPU, or is faiss-cpu; install faiss-gpu"):
        make_partition(settings, "l2", 48, train)


def test_vectors_too_long_for_faiss_are_refused() -> None:
    with pytest.raises(InputError, match="overflow in faiss"):
        partition("Flat", "l2").with_rows(VECTORS * np.float32(1e20), np.arange(6000))


class NoGpu:
    """Stands for a GPU: an index that accepts no selector and returns at most 2048 rows."""

    def __init__(self) -> None:
        self.searches = 0

    def copy(self, index: Any, kind: str) -> Any:
        copy = faiss.clone_index(index)

        def search(query: np.ndarray, k: int) -> Any:
            assert k <= 2048
            self.searches += 1
            return copy.search(query, k)

        return search


@pytest.mark.parametrize("kind", ["Flat", "IVF16,Flat"])
def test_the_cpu_searches_if_the_gpu_cannot(kind: str) -> None:
    gpu: Any = NoGpu()
    whole = filled(kind, effort=16)
    moved = replace(partition(kind, effort=16), _gpu=gpu).with_rows(VECTORS, np.arange(6000))
    for k, gone, searches in ((20, 0, 1), (20, 1000, 6), (20, 5000, 6), (3000, 0, 0), (1500, 3000, 0)):
        nearest = np.argsort(exact_distances(QUERIES[:1], VECTORS, "cosine")[0])[:gone]
        before = gpu.searches
        assert_same(moved.without(nearest).search(QUERIES[:1], k), whole.without(nearest).search(QUERIES[:1], k))
        assert gpu.searches - before == searches  # for 40, 80, ... 1280 rows


def test_a_copy_on_a_gpu_is_freed_under_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """faiss's GPU memory is not thread-safe: another thread may search with the same resources."""
    held: list[bool] = []

    class Copy:
        def search(self, query: Any, k: int) -> Any:
            held.append(gpu.lock._is_owned())

        def __del__(self) -> None:
            held.append(gpu.lock._is_owned())

    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 1, raising=False)
    monkeypatch.setattr(faiss, "index_cpu_to_gpu", lambda resources, number, index: Copy(), raising=False)
    gpu: Any = faiss_index._Gpu()
    copy = gpu.copy(None, "Flat")
    copy(VECTORS[:1], 1)
    del copy
    assert held == [True, True]


@pytest.mark.full
def test_searches_work_with_the_torch_interface_of_faiss() -> None:
    """Some libraries import it; it replaces ``search`` by one without selectors."""
    code = """
import faiss.contrib.torch_utils, numpy as np
from ray_backfill.engine.index import IndexSettings, make_partition
vectors = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
partition = make_partition(IndexSettings("Flat"), "l2", 8, None).with_rows(vectors, np.arange(50)).without(np.arange(5))
print(partition.search(vectors[:9], 1).item.ravel().tolist())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = json.loads(result.stdout)
    assert found[5:] == [5, 6, 7, 8]
    assert min(found) >= 5
