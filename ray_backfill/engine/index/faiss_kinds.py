"""Properties of faiss's kinds of indexes: training, search parameters, deletion, memory.

A factory string names an index, possibly behind transforms of the vectors (OPQ16,IVF256,PQ16). The supported kinds are
those from which rows can be deleted.
"""

import math
import re
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.index.partition import IndexSettings
from ray_backfill.engine.systems import IntArray

# The classes of faiss that support deletion, by type.
_LISTS = ("IndexIVFFlat", "IndexIVFPQ", "IndexIVFScalarQuantizer")
_GRAPHS = ("IndexHNSWFlat", "IndexHNSWPQ", "IndexHNSWSQ")
_FLAT = ("IndexFlat", "IndexFlatIP", "IndexFlatL2")
_CODES = ("IndexPQ", "IndexScalarQuantizer")
# The largest k of a search on a GPU.
GPU_MOST_NEAREST = 2048
# Train vectors per centroid: more cost time without benefit (faiss's own limit).
_TRAIN_PER_CENTROID = 256


@dataclass(frozen=True)
class Kind:
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
        lent = _make_quiet(index)
        _forgo_polysemous_codes(index)
        index.train(vectors)
        for transform, _ in lent:
            transform.pq = None

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


def describe(settings: IndexSettings, distance: str, dim: int) -> Kind:
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
        _check_gpu(settings, name)
    return Kind(
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


def _check_gpu(settings: IndexSettings, name: str) -> None:
    if name not in _LISTS + _FLAT:
        raise InputError(
            f"faiss cannot search the index {settings.kind!r} on a GPU; use device cpu, or the kind Flat or IVF"
        )
    if not hasattr(faiss, "StandardGpuResources"):
        raise InputError("this faiss has no GPU support; install faiss-gpu instead of faiss-cpu, or use device cpu")
    if not faiss.get_num_gpus():
        raise InputError("faiss finds no GPU; use device cpu")


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


def _forgo_polysemous_codes(index: Any) -> None:
    """Turn off polysemous training: half a minute of annealing for a filter that is not used and changes no result."""
    storage = _storage(_inner(index))
    if hasattr(storage, "do_polysemous_training"):
        storage.do_polysemous_training = False


def _make_quiet(index: Any) -> list[tuple[Any, Any]]:
    """Turn off faiss's warnings about few train vectors. Return (transform, quantizer set for the training) pairs."""
    inner = _inner(index)
    if type(inner).__name__ in _LISTS:
        inner.cp.min_points_per_centroid = 1
    for quantizer in _quantizers(inner):
        quantizer.cp.min_points_per_centroid = 1
    lent = []
    for transform in _transforms(index):
        if type(transform).__name__ == "OPQMatrix":
            quantizer = faiss.ProductQuantizer(transform.d_out, transform.M, 8)
            quantizer.cp.min_points_per_centroid = 1
            transform.pq = quantizer
            lent.append((transform, quantizer))
    return lent
