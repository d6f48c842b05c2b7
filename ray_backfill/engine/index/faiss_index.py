"""Partitions that faiss searches, of any kind given by a factory string. Distances come from the index, not re-ranked.

A factory string names an index, possibly behind transforms of the vectors (OPQ16,IVF256,PQ16). The supported kinds are
those from which rows can be deleted.

Threads can search a faiss index concurrently, but not while rows are added. Therefore an index never changes once it is
searched: most rows are in ``main``, new ones in a small index ``fresh`` of the same kind, which is cloned for each
batch and merged into a clone of ``main`` once it is large. A selector skips deleted rows if faiss supports one;
otherwise (PQ, any GPU) the search requests more rows and drops the deleted ones. An index numbers its rows from 0.
"""

import math
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances.exact import lengths
from ray_backfill.engine.distances.form import normalise, refuse_zero
from ray_backfill.engine.index.partition import (
    GrowingArray,
    IndexRows,
    IndexSettings,
    as_new_positions,
    as_vectors,
    refuse_living,
    refuse_missing,
    refuse_repeated,
)
from ray_backfill.engine.lists import RankedLists, best_first
from ray_backfill.engine.systems import FloatArray, IntArray

# The classes of faiss that support deletion, by type.
_LISTS = ("IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer")
_GRAPHS = ("IndexHNSWFlat", "IndexHNSWPQ", "IndexHNSWSQ")
_FLAT = ("IndexFlat", "IndexFlatIP", "IndexFlatL2")
_CODES = ("IndexPQ", "IndexScalarQuantizer")
# The largest k and nprobe of a search on a GPU, the numbers of parts of a product quantizer with tables of float32, and
# the scalar quantizers.
GPU_MOST_NEAREST = 2048
_PQ_ON_GPU = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48)
_SQ_ON_GPU = tuple(
    getattr(faiss.ScalarQuantizer, f"QT_{bits}")
    for bits in ("8bit", "8bit_uniform", "8bit_direct", "4bit", "4bit_uniform", "6bit", "fp16")
)
# Train vectors per centroid: more cost time without benefit (faiss's own limit).
_TRAIN_PER_CENTROID = 256


@dataclass(frozen=True)
class FaissKind:
    """Properties of a kind of index.

    name: factory string. effort: nprobe or efSearch. most_nearest: largest number of rows to request in order to skip
    deleted ones; 0 if searches accept a selector. train_rows: rows that the training needs; 0 if none.
    """

    name: str
    effort: int
    is_graph: bool
    has_lists: bool
    is_transformed: bool
    most_nearest: int
    train_rows: int

    def parameters(self, selector: Any | None, k: int, share: float) -> Any | None:
        """Return the parameters of one search; None for faiss's defaults."""
        chosen = {} if selector is None else {"sel": selector}
        parameters = None
        if self.is_graph:
            effort = max(k, math.ceil(self.effort * share))
            parameters = faiss.SearchParametersHNSW(efSearch=effort, **chosen)
        elif self.has_lists:
            parameters = faiss.SearchParametersIVF(nprobe=self.effort, **chosen)
        elif selector is not None:
            parameters = faiss.SearchParameters(sel=selector)
        if self.is_transformed and parameters is not None:
            return faiss.SearchParametersPreTransform(index_params=parameters)
        return parameters

    def train(self, index: Any, vectors: NDArray[np.float32]) -> None:
        """Train an index, deterministically.

        Raises:
            InputError: There are too few vectors.
        """
        if len(vectors) < self.train_rows:
            raise InputError(
                f"index {self.name!r} needs at least {self.train_rows} train embeddings, got {len(vectors)}; provide "
                "more, or use fewer lists or smaller codes"
            )
        most = max(1 << 16, _TRAIN_PER_CENTROID * self.train_rows)
        if len(vectors) > most:
            vectors = vectors[np.sort(np.random.default_rng(0).choice(len(vectors), most, replace=False))]
        inner = _inner(index)
        # Without half a minute of annealing for a filter that is not used and changes no result.
        if hasattr(storage := _storage(inner), "do_polysemous_training"):
            storage.do_polysemous_training = False
        # Without faiss's warnings about few train vectors.
        if type(inner).__name__ in _LISTS:
            inner.cp.min_points_per_centroid = 1
        rotations = [transform for transform in _transforms(index) if type(transform).__name__ == "OPQMatrix"]
        lent = [faiss.ProductQuantizer(rotation.d_out, rotation.M, 8) for rotation in rotations]
        for quantizer in (*_quantizers(inner), *lent):
            quantizer.cp.min_points_per_centroid = 1
        for rotation, quantizer in zip(rotations, lent, strict=True):
            rotation.pq = quantizer
        index.train(vectors)
        for rotation in rotations:
            rotation.pq = None

    def without_dead(self, index: Any, alive: NDArray[np.bool_], none: Any) -> Any:
        """Return a new index of the live rows, renumbered. none: the trained index without rows.

        Nodes cannot be removed from a graph, so a graph is built again from its stored vectors.
        """
        if self.is_graph:
            new = faiss.clone_index(none)
            new.add(index.reconstruct_n(0, index.ntotal)[alive])
            return new
        new = faiss.clone_index(index)
        new.remove_ids(faiss.IDSelectorNot(faiss.IDSelectorBitmap(np.packbits(alive, bitorder="little"))))
        if self.has_lists:  # lists keep the old row numbers
            number = np.cumsum(alive) - 1
            lists = faiss.extract_index_ivf(new).invlists
            for i in range(lists.nlist):
                if size := lists.list_size(i):
                    ids = faiss.rev_swig_ptr(lists.get_ids(i), size)
                    ids[:] = number[ids]
        return new

    def reconstructed(self, index: Any, row: IntArray) -> NDArray[np.float32]:
        """Return the (m, d) vectors of these rows as stored in the index. Cost: lists are copied to map their rows."""
        if self.has_lists:
            index = faiss.clone_index(index)
            faiss.extract_index_ivf(index).make_direct_map()
        return index.reconstruct_batch(row)


def untrained(settings: IndexSettings, distance: str, dim: int) -> Any:
    """Make an empty index from a factory string.

    Raises:
        InputError: faiss rejects the factory string.
    """
    metric = faiss.METRIC_L2 if distance == "l2" else faiss.METRIC_INNER_PRODUCT
    try:
        index = faiss.index_factory(dim, settings.kind, metric)
    except Exception as error:  # faiss raises several types
        reason = re.sub(r"^.*? at \S+:\d+: ", "", str(error), flags=re.DOTALL).strip()
        raise InputError(
            f"faiss rejects the index {settings.kind!r} for {dim} dimensions and the {distance} distance: {reason}; "
            "valid kinds are exact, Flat, IVF256,Flat, HNSW32, or PQ16 if 16 divides the number of dimensions"
        ) from error
    if settings.effort and (lists := faiss.try_extract_index_ivf(index)) is not None:
        lists.nprobe = settings.effort  # GPU indexes read it from here
    return index


def describe(settings: IndexSettings, distance: str, dim: int) -> FaissKind:
    """Return the properties of a kind of index.

    Raises:
        InputError: The settings are invalid as in ``check_index``.
    """
    index = untrained(settings, distance, dim)
    inner = _inner(index)
    name = type(inner).__name__
    if name not in _LISTS + _GRAPHS + _FLAT + _CODES:
        raise InputError(
            f"the index {settings.kind!r} does not support the deletions of a backfill ({name}); use Flat, IVF with "
            "Flat, PQ or SQ, HNSW, PQ or SQ, without refinement (RFlat) or fast scan (fs)"
        )
    if name in _LISTS and inner.nlist < 1:
        raise InputError(f"the index {settings.kind!r} has no lists; use at least one, as in IVF256,Flat")
    if _storage(inner).metric_type != (faiss.METRIC_L2 if distance == "l2" else faiss.METRIC_INNER_PRODUCT):
        raise InputError(
            f"faiss supports the index {settings.kind!r} only with the l2 distance, not {distance}; use another kind"
        )
    if settings.device == "cuda":
        _check_gpu(settings, inner)
    return FaissKind(
        name=settings.kind,
        effort=settings.effort or (inner.hnsw.efSearch if name in _GRAPHS else getattr(inner, "nprobe", 0)),
        is_graph=name in _GRAPHS,
        has_lists=name in _LISTS,
        is_transformed=index is not inner,
        most_nearest=1 << 40 if name == "IndexPQ" else 0,
        train_rows=0 if index.is_trained else _rows_to_train(index),
    )


def held_bytes(index: Any) -> int:
    """Return the bytes of codes, ids, graph, centroids and tables; the rest of an index is negligible."""
    inner = _inner(index)
    name = type(inner).__name__
    held = 0
    if name in _LISTS:
        held += inner.ntotal * (inner.code_size + 8) + held_bytes(faiss.downcast_index(inner.quantizer))
        if name == "IndexIVFPQ":
            held += 4 * inner.precomputed_table.size()
    elif name in _GRAPHS:
        graph = inner.hnsw
        held += 4 * graph.neighbors.size() + 8 * graph.offsets.size() + 4 * graph.levels.size()
        held += held_bytes(faiss.downcast_index(inner.storage))
    else:
        held += inner.ntotal * inner.code_size
    if hasattr(inner, "pq"):
        held += 4 * inner.pq.centroids.size()
    return held


def _check_gpu(settings: IndexSettings, inner: Any) -> None:
    """Raise InputError for a kind that faiss cannot search on a GPU; the machine need not have one.

    Source: faiss, gpu/GpuIndexIVF.cu, gpu/impl/IVFPQ.cu and gpu/impl/GpuScalarQuantizer.cuh.
    """
    name, reason = type(inner).__name__, ""
    if name not in _LISTS + _FLAT:
        reason = "use device cpu, or the kind Flat or IVF"
    elif name in _LISTS and settings.effort > GPU_MOST_NEAREST:
        reason = f"at most {GPU_MOST_NEAREST:,} lists are searched; lower its effort of {settings.effort:,}"
    elif name == "IndexIVFPQ" and (inner.pq.nbits != 8 or inner.pq.M not in _PQ_ON_GPU):
        reason = f"product quantizers need 8 bits and {', '.join(map(str, _PQ_ON_GPU))} parts there"
    elif name == "IndexIVFScalarQuantizer" and inner.sq.qtype not in _SQ_ON_GPU:
        reason = "scalar quantizers need 4, 6 or 8 bits or fp16 there"
    if reason:
        raise InputError(f"faiss cannot search the index {settings.kind!r} on a GPU: {reason}")


def _inner(index: Any) -> Any:
    """Return the index behind all transforms."""
    while type(index).__name__ == "IndexPreTransform":
        index = faiss.downcast_index(index.index)
    return index


def _transforms(index: Any) -> list[Any]:
    if type(index).__name__ != "IndexPreTransform":
        return []
    return [faiss.downcast_VectorTransform(index.chain.at(i)) for i in range(index.chain.size())]


def _storage(inner: Any) -> Any:
    """Return the index that stores the vectors: for a graph a separate one, otherwise ``inner`` itself."""
    return faiss.downcast_index(inner.storage) if type(inner).__name__ in _GRAPHS else inner


def _quantizers(inner: Any) -> list[Any]:
    """Return the product quantizers of an index behind transforms."""
    storage = _storage(inner)
    return [storage.pq] if hasattr(storage, "pq") else []


def _rows_to_train(index: Any) -> int:
    """Return the number of rows that the training needs: one per centroid or fitted dimension."""
    inner = _inner(index)
    needed = [1, *(quantizer.ksub for quantizer in _quantizers(inner))]
    if type(inner).__name__ in _LISTS:
        needed.append(inner.nlist)
    for transform in _transforms(index):
        if not transform.is_trained:
            is_opq = type(transform).__name__ == "OPQMatrix"
            needed.append(max(transform.d_out, 256 if is_opq else 0))
    return max(needed)


# Most rows in ``fresh``, as a number and as a share of main's rows: more are merged, which costs a clone of main.
_MOST_FRESH, _MOST_FRESH_PART = 2048, 1 / 8
# Ratio of deleted to live rows from which compaction is worth its cost. With as many deleted as live rows, a search
# takes two to three times as long; in a graph, they reduce recall instead (0.95 becomes 0.87), and removing them means
# building the graph again.
_MOST_DEAD, _MOST_DEAD_IN_GRAPH, _FEW_DEAD = 0.25, 0.5, 1024
# faiss squares in float32: distances of longer vectors overflow.
_LONGEST = 1e18
# (b, k) values and rows.
_Hits = tuple[NDArray[np.float32], IntArray]
_Searching = Callable[[NDArray[np.float32], int], _Hits]


def make_faiss_partition(
    settings: IndexSettings, distance: str, dim: int, train: FloatArray | None
) -> "FaissPartition":
    """Implement ``make_partition`` for faiss kinds."""
    kind = describe(settings, distance, dim)
    index = untrained(settings, distance, dim)
    if not index.is_trained:
        if train is None:
            raise InputError(
                f"index {settings.kind!r} must be trained; provide at least {kind.train_rows} train embeddings"
            )
        kind.train(index, _prepared(train, distance, dim, "train"))
    empty = _SealedIndex(index, IndexRows.none())
    gpu = _Gpu() if settings.device == "cuda" else None
    return FaissPartition(kind, distance, dim, empty, gpu, empty, empty, _no_vectors(dim))


class _Gpu:
    """One GPU. faiss's GPU memory is not thread-safe, so one thread uses it at a time.

    This includes freeing a copy: the last search of an old copy may free it while another thread searches the new one.
    """

    def __init__(self) -> None:
        if not hasattr(faiss, "StandardGpuResources") or not faiss.get_num_gpus():
            raise InputError("this faiss finds no GPU, or is faiss-cpu; install faiss-gpu, or use device cpu")
        self.resources = faiss.StandardGpuResources()
        self.lock = threading.RLock()  # a thread that holds it may free a copy, when objects are collected

    def copy(self, index: Any, kind: str) -> "_GpuCopy":
        try:
            with self.lock:
                return _GpuCopy(self, faiss.index_cpu_to_gpu(self.resources, 0, index))
        except RuntimeError as error:
            raise InputError(f"faiss cannot copy the index {kind!r} to the GPU: {error}; use device cpu") from error


class _GpuCopy:
    """A copy of an index on a GPU."""

    def __init__(self, gpu: _Gpu, index: Any) -> None:
        self._gpu, self._index = gpu, index

    def __call__(self, query: NDArray[np.float32], k: int) -> _Hits:
        with self._gpu.lock:
            found: _Hits = self._index.search(query, k)
            return found

    def __del__(self) -> None:
        with self._gpu.lock:
            del self._index


@dataclass(frozen=True, eq=False)
class _SealedIndex:
    """An immutable index. selector: selects the live rows; None if all are. search_on_gpu: search of a GPU copy."""

    index: Any
    rows: IndexRows
    selector: Any | None = None
    search_on_gpu: _Searching | None = None

    def without(self, row: IntArray) -> "_SealedIndex":
        if not len(row):
            return self
        rows = self.rows.without(row)
        return replace(self, rows=rows, selector=_selector(rows))


@dataclass(frozen=True, eq=False)
class FaissPartition:
    """A ``Partition`` searched by faiss. fresh_vectors: the rows of ``fresh`` as added. _none: trained, without rows.

    Cost: an update copies ``fresh`` and sometimes main. ``size_bytes`` does not include copies on a GPU.
    """

    kind: FaissKind
    distance: str
    dim: int
    _none: _SealedIndex
    _gpu: _Gpu | None
    _main: _SealedIndex
    _fresh: _SealedIndex
    _fresh_vectors: GrowingArray

    @property
    def n(self) -> int:
        return self._main.rows.n_alive + self._fresh.rows.n_alive

    @property
    def size_bytes(self) -> int:
        of_rows = self._main.rows.size_bytes + self._fresh.rows.size_bytes + self._fresh_vectors.size_bytes
        indexes = {id(segment): segment.index for segment in (self._none, self._main, self._fresh)}
        return of_rows + sum(held_bytes(index) for index in indexes.values())

    @property
    def needs_compaction(self) -> bool:
        dead = self._main.rows.n_dead + self._fresh.rows.n_dead
        return dead > _FEW_DEAD and dead > (_MOST_DEAD_IN_GRAPH if self.kind.is_graph else _MOST_DEAD) * self.n

    def with_rows(self, vectors: FloatArray, position: IntArray) -> "FaissPartition":
        new = _prepared(vectors, self.distance, self.dim, "gallery")
        position = as_new_positions(position, new)
        refuse_repeated(position)
        refuse_living(position, np.maximum(self._main.rows.find(position), self._fresh.rows.find(position)))
        if not len(new):
            return self
        grown = replace(
            self,
            _fresh=replace(self._fresh, rows=self._fresh.rows.extended(position)),
            _fresh_vectors=self._fresh_vectors.extended(new),
        )
        main, n_fresh = len(self._main.rows), len(grown._fresh.rows)
        if not main or n_fresh > max(_MOST_FRESH, main * _MOST_FRESH_PART):
            return grown._merged(drop_dead=False)
        index = faiss.clone_index(self._fresh.index)
        index.add(new)
        rows = grown._fresh.rows
        return replace(grown, _fresh=_SealedIndex(index, rows, _selector(rows)))

    def without(self, position: IntArray) -> "FaissPartition":
        refuse_repeated(position)
        row_of_main, row_of_fresh = self._main.rows.find(position), self._fresh.rows.find(position)
        refuse_missing(position, np.maximum(row_of_main, row_of_fresh))
        return self._without(row_of_main[row_of_main >= 0], row_of_fresh[row_of_fresh >= 0])

    def only(self, stays: NDArray[np.bool_], first: int) -> "FaissPartition":
        return self._without(self._main.rows.others(stays, first), self._fresh.rows.others(stays, first))

    def _without(self, row_of_main: IntArray, row_of_fresh: IntArray) -> "FaissPartition":
        main = self._main.without(row_of_main)
        left = replace(self, _main=main, _fresh=self._fresh.without(row_of_fresh))
        if not left._fresh.rows.n_alive:
            left = replace(left, _fresh=self._none, _fresh_vectors=_no_vectors(self.dim))
        return left if main.rows.n_alive else replace(left, _main=self._none)

    def compacted(self) -> "FaissPartition":
        if not self._main.rows.n_dead and not len(self._fresh.rows):
            return self
        return self._merged(drop_dead=True)

    def positions(self) -> IntArray:
        return np.sort(np.concatenate([self._main.rows.positions(), self._fresh.rows.positions()]))

    def vectors(self, position: IntArray) -> NDArray[np.float32]:
        """As in ``Partition``; scaled to length 1 under cosine. Fresh rows of quantised kinds are still exact."""
        row_of_main, row_of_fresh = self._main.rows.find(position), self._fresh.rows.find(position)
        refuse_missing(position, np.maximum(row_of_main, row_of_fresh))
        out = np.empty((len(position), self.dim), np.float32)
        in_main = row_of_main >= 0
        if in_main.any():
            out[in_main] = self.kind.reconstructed(self._main.index, row_of_main[in_main])
        out[~in_main] = self._fresh_vectors.array[row_of_fresh[~in_main]]
        return out

    def search(self, query: FloatArray, k: int, share: float = 1.0) -> RankedLists:
        query = _prepared(query, self.distance, self.dim, "query")
        queries, distances, positions = [], [], []
        for segment in (self._main, self._fresh):
            k_here = min(k, segment.rows.n_alive)
            if k_here and len(query):
                values, row = self._search_segment(segment, query, k_here, share)
                of_query, place = np.nonzero(row >= 0)
                queries.append(of_query)
                distances.append(_distances(values[of_query, place], self.distance))
                positions.append(segment.rows.position[row[of_query, place]])
        if not queries:
            return RankedLists.nothing(len(query), k)
        of_query, distance, position = np.concatenate(queries), np.concatenate(distances), np.concatenate(positions)
        return best_first(of_query, distance, position, len(query), k)

    def _search_segment(self, segment: _SealedIndex, query: NDArray[np.float32], k: int, share: float) -> _Hits:
        """Return (b, k) values and rows; a row is live or -1."""
        on_gpu = segment.search_on_gpu
        if on_gpu or segment.rows.n_dead:
            search, most = (on_gpu, GPU_MOST_NEAREST) if on_gpu else (segment.index.search, self.kind.most_nearest)
            beyond = _search_beyond_dead(search, segment.rows, query, k, most)
            if beyond is not None:
                return beyond
        # faiss's own ``search``: faiss.contrib.torch_utils replaces it by one without ``params``.
        search = getattr(segment.index, "search_numpy", segment.index.search)
        found: _Hits = search(query, k, params=self.kind.parameters(segment.selector, k, share))
        return found

    def _merged(self, drop_dead: bool) -> "FaissPartition":
        """Move all rows into main."""
        main, fresh = self._main, self._fresh.rows
        rows, index = main.rows, main.index
        new = self._fresh_vectors.array[fresh.alive]
        if drop_dead and rows.n_dead:
            index, rows = self.kind.without_dead(index, rows.alive, self._none.index), rows.compacted()
        else:
            index = faiss.clone_index(index)
        index.add(new)
        rows = rows.extended(fresh.position[fresh.alive])
        if drop_dead:
            index = faiss.clone_index(index)  # a clone has no spare capacity
        on_gpu = None if self._gpu is None else self._gpu.copy(index, self.kind.name)
        main = _SealedIndex(index, rows, _selector(rows), on_gpu)
        return replace(self, _main=main, _fresh=self._none, _fresh_vectors=_no_vectors(self.dim))


def _no_vectors(dim: int) -> GrowingArray:
    return GrowingArray.of(np.empty((0, dim), np.float32))


def _search_beyond_dead(
    search: _Searching, rows: IndexRows, query: NDArray[np.float32], k: int, most: int
) -> _Hits | None:
    """Find the k nearest live rows by requesting more rows; return None if that would take more than ``most``."""
    enough = k + rows.n_dead
    wanted = min(2 * k, enough)
    while wanted <= most:
        values, row = search(query, wanted)
        lives = (row >= 0) & rows.alive[row]
        is_done = (lives.sum(axis=1) >= k) | (row[:, -1] < 0)
        if wanted == enough or is_done.all():
            first = np.argsort(~lives, axis=1, kind="stable")[:, :k]
            row = np.where(lives, row, -1)
            return np.take_along_axis(values, first, 1), np.take_along_axis(row, first, 1)
        wanted = min(2 * wanted, enough)
    return None


def _selector(rows: IndexRows) -> Any | None:
    return faiss.IDSelectorBitmap(np.packbits(rows.alive, bitorder="little")) if rows.n_dead else None


def _prepared(vectors: FloatArray, distance: str, dim: int, side: str) -> NDArray[np.float32]:
    """Convert vectors for faiss: float32, scaled to length 1 under cosine."""
    vectors = as_vectors(vectors, dim, side)
    length = lengths(vectors)
    if distance == "cosine":
        refuse_zero(length, side)
        return normalise(vectors).astype(np.float32)
    if len(length) and length.max() > _LONGEST:
        raise InputError(
            f"{side} row {int(np.argmax(length))} is so long that {distance} distances overflow in faiss; scale the "
            "embeddings down"
        )
    return vectors


def _distances(values: NDArray[np.float32], distance: str) -> NDArray[np.float32]:
    """Convert the values of faiss, inner products or squared distances, to this project's distances."""
    if distance == "l2":
        return np.sqrt(np.maximum(values, np.float32(0)))
    if distance == "cosine":
        return np.clip(np.float32(1) - values, np.float32(0), np.float32(2))
    return np.float32(0) - values
