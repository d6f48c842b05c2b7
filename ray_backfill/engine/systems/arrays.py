"""Arrays from what callers give: lists, pandas and torch objects."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError

FloatArray = NDArray[np.float32] | NDArray[np.float16] | NDArray[np.float64]
IntArray = NDArray[np.int64]

_KINDS = {"f": "numbers", "i": "integers", "u": "integers", "U": "text", "b": "true/false values", "S": "bytes"}


def describe_array(array: NDArray[Any]) -> str:
    """Describe an array for an error message: "integers of shape (3,)"."""
    return f"{_KINDS.get(array.dtype.kind, 'Python objects')} of shape {array.shape}"


def as_array(given: Any, what: str) -> NDArray[Any]:
    """Return lists, pandas and torch objects as an array, and an array as it is. what: name for messages.

    Raises:
        InputError: The values have no array form, such as rows of different lengths.
    """
    if isinstance(given, np.ndarray):
        return given
    try:
        if hasattr(given, "detach"):  # a torch tensor: it may need gradients, be on a GPU or have a type of torch's own
            given = given.detach().cpu()
            return np.asarray(given.float() if "bfloat16" in str(given.dtype) else given)
        array = np.asarray(given)
        if array.dtype == object and array.ndim == 1 and len(array):
            if all(isinstance(value, str) for value in array):  # a frame's column of text, or categories
                return array.astype(str)
            if np.ndim(array[0]) == 1:  # a frame's column of vectors
                return np.stack(list(array))
    except (TypeError, ValueError, RuntimeError) as error:
        said = str(error).strip().splitlines()[0]
        reason = "its rows have different lengths" if "inhomogeneous" in said else said
        raise InputError(f"{what} cannot be made a numpy array: {reason}") from error
    return array


def as_vectors(given: Any, what: str) -> FloatArray:
    """Return embeddings as a 2-D float array; lists of integers become float32.

    Raises:
        InputError: They have other dimensions, are empty, or are no numbers.
    """
    array = as_array(given, what)
    if not isinstance(given, np.ndarray) and array.dtype.kind in "iu":
        array = array.astype(np.float32)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise InputError(f"{what} must be a 2-D float array, one row an item, got {describe_array(array)}")
    if array.size == 0:
        raise InputError(f"{what} are empty: shape {array.shape}")
    return array


def as_labels(*given: tuple[Any, str]) -> list[IntArray]:
    """Return labels as 1-D integer arrays; text is numbered, equally in all arrays. given: labels and their names."""
    arrays = [(as_array(labels, what), what) for labels, what in given]
    for labels, what in arrays:
        if labels.ndim != 1 or labels.dtype.kind not in "iuU":
            raise InputError(f"{what} must be a 1-D array of integers or text, got {describe_array(labels)}")
    texts = [labels.dtype.kind == "U" for labels, _ in arrays]
    if any(texts) != all(texts):
        words = " but ".join(
            f"{what} are {'text' if text else 'numbers'}" for (_, what), text in zip(arrays, texts, strict=True)
        )
        raise InputError(f"{words}; use one type")
    if not any(texts):
        return [labels.astype(np.int64, copy=False) for labels, _ in arrays]
    numbers = np.unique(np.concatenate([labels for labels, _ in arrays]), return_inverse=True)[1]
    return np.split(numbers, np.cumsum([len(labels) for labels, _ in arrays])[:-1])
