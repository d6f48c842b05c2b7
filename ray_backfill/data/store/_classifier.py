"""The new model's classifier, ``classifier.parquet`` in a folder of embeddings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.parquet import open_checked, reading
from ray_backfill.data.store._columns import as_ids, as_numbers, as_vectors, float_type


@dataclass(frozen=True, eq=False)
class Classifier:
    """A linear classifier on a model's embeddings."""

    label: NDArray[Any]
    """(C,) unique classes."""
    weight: NDArray[np.float32]
    """(C, d) float32."""
    bias: NDArray[np.float32]
    """(C,) float32."""


def read_classifier(folder: Path) -> Classifier | None:
    """Read the new model's classifier, if the folder has one."""
    path = folder / "classifier.parquet"
    if not path.exists():
        return None
    file = open_checked(path)
    for column in ("label", "weight", "bias"):
        if column not in file.schema_arrow.names:
            raise InputError(f"{path} has no column {column!r}; it needs the columns label, weight and bias")
    float_type("weight", [file], [path])
    with reading(path):
        table = file.read(columns=["label", "weight", "bias"])
        label = as_ids(table["label"], path, "label")
    if not len(label):
        raise InputError(f"{path} has no rows; give one row for each class, or delete the file")
    if len(np.unique(label)) != len(label):
        raise InputError(f"{path}, column 'label': duplicate classes; give one row for each class")
    weight = as_vectors(table["weight"].combine_chunks(), path, "weight", 0, np.float32)
    return Classifier(label, weight, as_numbers(table["bias"], path, "bias", np.float32))
