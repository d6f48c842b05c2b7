"""A small folder of embeddings for the tests of this room."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.data.folder import read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.learn.training.settings import FitSettings

CLASSES = 6


def vectors(labels: np.ndarray, d: int, noise: float, seed: int) -> np.ndarray:
    centres = np.random.default_rng(9).normal(size=(CLASSES, 8))[:, :d]
    return (centres[labels] + noise * np.random.default_rng(seed).normal(size=(len(labels), d))).astype(np.float32)


def write_split(path: Path, rows: int, first_id: int, **more: Any) -> None:
    labels = np.arange(rows) % CLASSES
    columns = {
        "id": np.arange(first_id, first_id + rows),
        "old": vector_column(vectors(labels, 4, 1.0, first_id)),
        "new": vector_column(vectors(labels, 8, 0.6, first_id + 1)),
        "label": labels,
    } | more
    write_parquet(path, pa.table({k: v for k, v in columns.items() if v is not None}))


def labelled(rows: int, classes: int = CLASSES, seed: int = 0, old: int = 4, new: int = 6) -> dict[str, np.ndarray]:
    """Columns for ``rb.write_folder``: embeddings of these widths that lie around the number of their class."""
    rng, label = np.random.default_rng(seed), np.arange(rows) % classes
    both = {model: rng.normal(size=(rows, dim)) + label[:, None] for model, dim in (("old", old), ("new", new))}
    return both | {"label": label}


def resolved(folder: Path, evaluation: Evaluation) -> Comparison:
    return resolve(read_folder(folder), evaluation.named, FitSettings())
