"""Compilation of inner loops by numba: cached on disk, and without the interpreter's lock.

No fast-math: sums are evaluated in the order in which they are written, so that results are the same on every machine.
Division by zero behaves as in numpy, because checks would prevent vectorisation.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numpy.typing import NDArray

Array = NDArray[Any]

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile ``function`` at its first call, and cache the code beside the source file for later processes."""
    compiled: F
    try:
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither the package's folder nor the user's cache is writable
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
