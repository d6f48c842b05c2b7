"""Compilation of inner loops by numba: kept on disk, and without the interpreter's lock.

No fast-math: sums are evaluated in the order in which they are written, so that results are the same on every machine.
Division by zero behaves as in numpy, because checks would prevent vectorisation. ``sum_of``, ``count_up_to``
and ``widen`` are shared by several rooms.
"""

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import platformdirs
from numpy.typing import NDArray

from ray_backfill.core.progress import detail, is_shown

Array = NDArray[Any]

F = TypeVar("F", bound=Callable[..., object])

# Where compiled code is kept is a global setting of numba.
_deciding = threading.RLock()


def kernel(function: F) -> F:
    """Compile ``function`` at its first call, and keep the code for later processes (``KernelCache``)."""
    return cast(F, Kernel(function))


class Kernel:
    """A function of a module that numba compiles at the first call. Only then numba is imported: readers of results
    need none.

    numba follows the names in a kernel to other kernels, and asks each of these for its type (``_numba_type_``).
    """

    def __init__(self, function: Callable[..., object]) -> None:
        update_wrapper(self, function)
        self._function, self._compiled = function, cast(Any, None)

    def __call__(self, *arguments: Any) -> Any:
        return (self._compiled or self.compiled)(*arguments)

    @property
    def compiled(self) -> Any:
        """numba's function, without the interpreter's lock; it compiles for each combination of argument types."""
        with _deciding:
            if self._compiled is None:
                import numba

                _listen()
                before = numba.config.CACHE_LOCATOR_CLASSES
                numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.KernelCache"
                try:
                    self._compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(self._function)
                except RuntimeError:  # no folder can be written
                    self._compiled = numba.njit(nogil=True, error_model="numpy")(self._function)
                finally:
                    numba.config.CACHE_LOCATOR_CLASSES = before
        return self._compiled

    @property
    def _numba_type_(self) -> Any:
        return self.compiled._numba_type_


class Compilation:
    """Listens to numba: a row below what is shown says that one thread compiles. depth: of kernels that others call."""

    title, depth, _spent_s = "compile loops, once after an installation", 0, 0.0

    def notify(self, event: Any) -> None:
        self.depth += 1 if event.is_start else -1
        if event.is_start and self.depth == 1:
            self._row, self._began_s = ExitStack(), time.monotonic() - self._spent_s
            if is_shown():
                shown = self._row.enter_context(detail(self.title))
                shown.began_s = self._began_s  # dozens of loops are one step
                shown.note("20 to 40 s of computing in all")
        elif event.is_end and not self.depth:
            self._spent_s = time.monotonic() - self._began_s
            self._row.close()


compilation = Compilation()


@cache
def _listen() -> None:
    from numba.core import event

    event.Listener.register(Compilation)
    event.register("numba:compile", compilation)


class KernelCache:
    """Where a kernel's compiled code is kept: in the user's cache folder, under a hash of what it is made from.

    numba's own cache is beside the source file and sees changes of that file alone. It would run old code after a
    kernel or constant that the file imports has changed, and compile again in every copy of the package, such as that
    of a submitted job. NUMBA_CACHE_DIR names another folder; if neither can be written, code is kept beside the source.
    """

    def __init__(self, function: Callable[..., object], path: str, folder: Path) -> None:
        self._py_file = path  # numba names it in its warnings
        self._line = function.__code__.co_firstlineno
        self._stamp = _stamp(function.__module__)
        self._folder = folder / f"{Path(path).stem}-{self._stamp[:16]}"

    @classmethod
    def from_function(cls, function: Callable[..., object], path: str) -> "KernelCache | None":
        """The cache of a function of this source file; None if there is no such file or no folder can be written."""
        source = Path(path)
        if not source.exists():
            return None
        import numba

        of_user = Path(numba.config.CACHE_DIR or platformdirs.user_cache_dir("ray_backfill"))
        for folder in (of_user, source.parent / "__pycache__"):
            cache_there = cls(function, path, folder)
            try:
                cache_there.ensure_cache_path()
            except OSError:
                continue
            return cache_there
        return None

    def ensure_cache_path(self) -> None:
        """Make the folder, without files that a power cut has emptied. Raises OSError if nothing can be written there.

        numba would fail at such files in every process, since it takes what is there as whole.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=self._folder).close()
        for file in self._folder.glob("*.nb[ci]"):
            with file.open("rb") as opened:
                begins = opened.read(1) == b"\x80"  # as a pickle does
                is_whole = begins and opened.seek(-1, os.SEEK_END) and opened.read() == b"."
            if not is_whole:
                file.unlink(missing_ok=True)

    def get_cache_path(self) -> str:
        """The folder."""
        return os.fspath(self._folder)

    def get_source_stamp(self) -> str:
        """Changes with everything that the code is made from."""
        return self._stamp

    def get_disambiguator(self) -> str:
        """Tells functions of one name in a file apart."""
        return str(self._line)


@cache
def _stamp(module: str) -> str:
    """Hash of a module's source, and of the kernels and numbers that it imports. Call it when its imports are done."""
    known = vars(sys.modules[module])
    parts = [Path(known["__file__"]).read_bytes()]
    for name, value in sorted(known.items()):
        if isinstance(value, Kernel) and value.__module__ != module:
            parts.append(f"{name}: {_stamp(value.__module__)}".encode())
        elif isinstance(value, (int, float, np.number)):
            parts.append(f"{name}: {value!r}".encode())
    return hashlib.sha256(b"\n".join(parts)).hexdigest()


@kernel
def sum_of(terms: Array) -> float:
    """Sum with eight running sums, so that additions do not wait for each other."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    whole = len(terms) - len(terms) % 8
    for i in range(0, whole, 8):
        s0 += terms[i]
        s1 += terms[i + 1]
        s2 += terms[i + 2]
        s3 += terms[i + 3]
        s4 += terms[i + 4]
        s5 += terms[i + 5]
        s6 += terms[i + 6]
        s7 += terms[i + 7]
    for i in range(whole, len(terms)):
        s0 += terms[i]
    return ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))


@kernel
def count_up_to(ascending: Array, value: Any) -> Any:
    """The number of entries that are at most ``value``, by bisection. numpy's searchsorted compiles much longer."""
    first, last = 0, len(ascending)
    while first < last:
        middle = (first + last) // 2
        if ascending[middle] <= value:
            first = middle + 1
        else:
            last = middle
    return first


@kernel
def widen(halves: Array, out: Array) -> None:
    """float16 as float32, exactly; numpy takes eight times as long. halves: their bits, int16."""
    for i in range(len(halves)):
        bits = np.int32(halves[i])
        is_finite = (bits & 0x7C00) != 0x7C00
        number = np.int32((bits & 0x7FFF) << 13)
        # The exponent's offset is 127 in place of 15. A small number becomes subnormal, and its product is exact.
        size = (
            number.view(np.float32) * np.float32(2.0**112)
            if is_finite
            else np.int32(number | 0x7F800000).view(np.float32)
        )
        out[i] = -size if bits < 0 else size
