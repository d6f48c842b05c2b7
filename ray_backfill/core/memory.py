"""Memory for arrays that may be larger than it."""

import errno
import os
import shutil
from tempfile import TemporaryFile, gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError

# Columns of vectors above this size are mapped from a temporary file.
MAPPED_BYTES = 1 << 30


def room_for(rows: int, width: int, dtype: type[np.floating]) -> NDArray[Any]:
    """Return an uninitialised (rows, width) array: in memory, or above MAPPED_BYTES mapped from a temporary file.

    Raises:
        InputError: The disk is too full. This is checked here because filling a map on a full disk kills the process.
    """
    n_bytes = rows * width * np.dtype(dtype).itemsize
    if n_bytes <= MAPPED_BYTES:
        return np.empty((rows, width), dtype)
    with TemporaryFile() as file:  # the map keeps it open
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, n_bytes)
            elif shutil.disk_usage(gettempdir()).free < n_bytes:  # macOS reserves nothing
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            else:
                file.truncate(n_bytes)
        except OSError as error:
            raise no_room(error) from error
        return np.memmap(file, dtype, mode="r+", shape=(rows, width))


def no_room(error: OSError) -> InputError:
    """The error for a disk of temporary files that is too full."""
    short = f"not enough room for large embeddings in {gettempdir()} ({error})"
    return InputError(f"{short}; set TMPDIR to a folder on a larger disk")
