"""Vectors from columns of any numeric type, with what is wrong with each row, where the strict reader would refuse."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.data.store._columns import is_list, plain_type

FINE, MISSING, LENGTH, NOT_FINITE, ZERO = range(5)
# What is wrong with a row, in words.
PROBLEMS: Mapping[int, str] = {
    MISSING: "no vector",
    LENGTH: "another number of dimensions",
    NOT_FINITE: "NaN or infinite values",
    ZERO: "a zero vector",
}


def holds_vectors(kind: pa.DataType) -> bool:
    """Whether a column of this type may hold vectors: lists of numbers, or text such as ``[0.1, 0.2]``."""
    kind = plain_type(kind)
    if is_list(kind):
        return bool(pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def number_type(kind: pa.DataType) -> type[np.floating[Any]]:
    """float16 for lists of float16, float32 for everything else."""
    kind = plain_type(kind)
    return np.float16 if is_list(kind) and pa.types.is_float16(kind.value_type) else np.float32


def read_vectors_loosely(array: pa.Array, dim: int = 0) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read some rows of a column of vectors.

    Args:
        array: n rows; see ``holds_vectors``.
        dim: the number of dimensions; 0: that of the first row that has any.

    Returns:
        (n, d) float16 or float32 vectors, zero where a row has none, and what is wrong with each row: a key of
        PROBLEMS, or FINE. d is 0 if no row has a vector.
    """
    dtype = number_type(array.type)
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    if not is_list(array.type):
        array = _parsed(array)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    dim = dim or int(next(iter(lengths[lengths > 0]), 0))
    problems = np.where(lengths == dim, FINE, LENGTH).astype(np.uint8)
    problems[np.asarray(array.is_null()) | (lengths == 0)] = MISSING
    fits = problems == FINE
    values = (array if fits.all() else array.filter(pa.array(fits))).flatten()
    values = pc.fill_null(values, float("nan")) if values.null_count else values
    with np.errstate(over="ignore", invalid="ignore"):  # values beyond the type become infinite
        fitting = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False).reshape(-1, dim or 1)
    if fits.all():
        vectors = fitting
    else:
        vectors = np.zeros((len(array), dim), dtype)
        vectors[fits] = fitting[: int(fits.sum())]
    # A sum is finite if all terms are, but for overflow, which is looked at again.
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = np.flatnonzero(~np.isfinite(vectors.sum(axis=1, dtype=np.float64)))
    problems[suspect[~np.isfinite(vectors[suspect]).all(axis=1)]] = NOT_FINITE
    problems[(problems == FINE) & ~vectors.any(axis=1)] = ZERO
    return vectors, problems


def _parsed(texts: pa.Array) -> pa.Array:
    """Lists of numbers from texts such as ``[0.1, 0.2]``, ``{0.1,0.2}`` or ``0.1 0.2``; no list for anything else."""

    def numbers(text: str | None) -> list[float] | None:
        if text is None:
            return None
        try:
            return [float(word) for word in text.strip().strip("[]{}()").replace(",", " ").split()]
        except ValueError:
            return None

    return pa.array([numbers(text) for text in texts.to_pylist()], pa.list_(pa.float32()))
