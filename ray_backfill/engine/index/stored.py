"""The vectors that a faiss index file holds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.systems import IntArray


@dataclass(frozen=True)
class StoredVectors:
    """Rows of an index.

    ids: (N,) ids under which they were added; row numbers if they were added without. vectors: returns rows first ..
    last - 1 as (n, d) float32. note: says if the index holds them in fewer bits; "" otherwise.
    """

    rows: int
    dim: int
    ids: IntArray
    vectors: Callable[[int, int], NDArray[np.float32]]
    note: str


def read_stored_vectors(path: Path) -> StoredVectors:
    """Read an index file. Cost: memory for the whole index.

    Raises:
        InputError: The file is no faiss index, or an index that cannot give its vectors back.
    """
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise InputError(f"{path} cannot be read as a faiss index: {_reason(error)}") from error
    inner, ids, held = index, None, None
    if isinstance(faiss.downcast_index(index), faiss.IndexIDMap):
        ids = faiss.vector_to_array(faiss.downcast_index(index).id_map)
        inner = faiss.downcast_index(index).index
    ivf = faiss.try_extract_index_ivf(inner)
    try:
        if ivf is not None:
            lists = (
                faiss.rev_swig_ptr(ivf.invlists.get_ids(number), ivf.invlists.list_size(number)).copy()
                for number in range(ivf.nlist)
                if ivf.invlists.list_size(number)
            )
            held = np.sort(np.concatenate([np.empty(0, np.int64), *lists]))
            ivf.set_direct_map_type(faiss.DirectMap.Hashtable)
            ids = held if ids is None else ids[held]
        else:
            ids = np.arange(index.ntotal) if ids is None else ids

        # owner: the outer index, whose end would be that of ``inner``.
        def read(first: int, last: int, owner: Any = index) -> NDArray[np.float32]:
            if held is not None:  # an inverted file has no order of its own
                return np.asarray(inner.reconstruct_batch(held[first:last]))
            return np.asarray(inner.reconstruct_n(first, last - first))

        if index.ntotal:
            read(0, 1)
    except RuntimeError as error:
        raise InputError(f"{path}: this index does not give its vectors back: {_reason(error)}") from error
    note = "" if _is_exact(inner) else f"{path} holds its vectors in fewer bits: they are not those of the model"
    return StoredVectors(index.ntotal, index.d, np.asarray(ids, np.int64), read, note)


def _is_exact(index: Any) -> bool:
    """Whether the vectors are stored as float32, untransformed."""
    index = faiss.downcast_index(index)
    if isinstance(index, faiss.IndexHNSW | faiss.IndexNSG):
        return _is_exact(index.storage)
    return isinstance(index, faiss.IndexFlat | faiss.IndexIVFFlat)


def _reason(error: RuntimeError) -> str:
    """faiss's message without the place in its source."""
    return " ".join(str(error).split(": ", 1)[-1].split())
