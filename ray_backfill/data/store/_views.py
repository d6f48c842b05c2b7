"""Further views of the train items, ``train_views.parquet`` in a folder of embeddings.

Shapes: N train items, V views, d dimensions.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.store._columns import kind_of, part_files, read_rows
from ray_backfill.data.store._known import read_columns
from ray_backfill.engine.systems import FloatArray


def read_views(folder: Path, id_N: NDArray[Any] | None, vectors: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Read the further views of the train items: model name -> (V, N, d); empty if the folder has none.

    The file has the rows of the first view, then those of the second, and so on, each in the order of the train split.
    Cost: V times that of the train vectors. Columns above 1 GiB are mapped from a temporary file, as these are.

    Args:
        folder: A folder of the data contract.
        id_N: (N,) ids of the train split; None if there is no such split.
        vectors: Its vectors by the models whose views are read.

    Raises:
        InputError: There is no train split, or the views lack a model, or have other ids or dimensions.
    """
    path = folder / "train_views.parquet"
    if not path.exists():
        return {}
    if id_N is None:
        raise InputError(f"{path} has views of train items, but there is no train.parquet beside it; add it")
    files = part_files(path)
    ids = [read_columns(file, tuple(vectors), are_queries=False)["id"] for file in files]
    _check_ids(np.concatenate([each for each in ids if len(each)] or ids), id_N, path)
    rows = sum(map(len, ids))
    views = read_rows(files, 0, rows, tuple(vectors))
    for name, found in views.items():
        theirs, ours = found.shape[1], vectors[name].shape[1]
        if theirs != ours:
            raise InputError(f"column {name!r} has {theirs} dimensions in {path} and {ours} in train.parquet")
    return {name: found.reshape(rows // len(id_N), len(id_N), -1) for name, found in views.items()}


def _check_ids(ids: NDArray[Any], id_N: NDArray[Any], path: Path) -> None:
    """Raise InputError unless the ids are those of the train split, once or several times."""
    remedy = "it must repeat the ids of train.parquet, in their order, once for each view"
    if kind_of(ids) != kind_of(id_N):
        raise InputError(f"{path}, column 'id' holds {kind_of(ids)}, that of train.parquet {kind_of(id_N)}; {remedy}")
    if not len(ids) or len(ids) % len(id_N):
        raise InputError(f"{path} has {len(ids):,} rows, no multiple of the {len(id_N):,} train items; {remedy}")
    other = np.flatnonzero((ids.reshape(-1, len(id_N)) != id_N).ravel())
    if len(other):
        row = int(other[0])
        wanted = id_N[row % len(id_N)]
        raise InputError(f"{path}, column 'id': {ids[row]} in row {row}, not {wanted}; {remedy}")
