"""Parquet files with checksums: a page whose bytes changed since it was written is found when it is read.

Files of other programs may have no checksums. What cannot be decoded is found in these, too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core.errors import InputError


def write_checked(table: pa.Table, where: Any, **options: Any) -> None:
    """Write a table to a path or an open file, with a checksum of each page. options: of ``pyarrow.parquet``."""
    pq.write_table(table, where, write_page_checksum=True, **options)


def open_checked(file: Path) -> pq.ParquetFile:
    """Open a Parquet file, whose checksums are verified as pages are read; see ``reading`` for errors."""
    with reading(file):
        return pq.ParquetFile(file, memory_map=True, page_checksum_verification=True)


def read_checked(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read columns of a Parquet file, by default all, and verify its checksums.

    Raises:
        InputError: The file is missing or damaged.
    """
    with reading(file):
        return pq.read_table(file, columns=columns, page_checksum_verification=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of unreadable, truncated and damaged files into an InputError that names ``path``."""
    try:
        yield
    except PermissionError as error:
        raise InputError(f"{error.filename or path} is not readable for this user; change its permissions") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as Parquet: {said}; {_remedy(path)}") from error


def _remedy(path: Path) -> str:
    """What to do about a damaged file: stages of runs can be computed again."""
    names = ("manifest.json", "_manifest.json")
    stage = next((folder for folder in path.parents[:2] if any((folder / name).is_file() for name in names)), None)
    if stage is None:
        return "restore the file, or write it again"
    return f"restore the file, or delete {stage} and run the command that wrote it again"
