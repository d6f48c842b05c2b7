"""Tables in Parquet files: their schema is a frozen dataclass, and their pages have checksums.

A row type has one field per column, annotated with its type and meaning. A page whose bytes changed since it was
written is found when it is read. Files of other programs may have no checksums; what cannot be decoded is found in
these, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core.errors import InputError
from ray_backfill.core.printable import printable, printable_in
from ray_backfill.core.runkey import other_format
from ray_backfill.core.stages import read_json, write_whole
from ray_backfill.core.store_path import in_store, regular_file

if TYPE_CHECKING:
    import pandas as pd  # slow to import: options and help do without

RowT = TypeVar("RowT")
# Verdicts on a condition.
YES, NO, UNDECIDED = "yes", "no", "undecided"
# Bytes at the end of a file that a store is first asked for: more than the footers of most parts have.
_FOOTER_BYTES = 1 << 12

# Type of a field -> type of its column in Arrow and in the docs.
_COLUMN_TYPES: Mapping[Any, str] = {
    str: "string",
    int: "int64",
    float: "float64",
    bool: "bool",
    bool | None: "bool",
    list[int]: "list of int64",
    list[float]: "list of float32",
}
_CASTS: Mapping[Any, Callable[[Any], Any]] = {
    str: lambda value: printable(str(value)),
    int: int,
    float: float,
    bool: bool,
    # bool(NaN) is True, but a flag that was never computed must not be read as true.
    bool | None: lambda value: None if value is None or value != value else bool(value),
}


def columns(row_type: type) -> tuple[str, ...]:
    """Return the names of the columns, in order."""
    return tuple(field.name for field in fields(row_type))


def frame(row_type: type[RowT], rows: Sequence[RowT]) -> "pd.DataFrame":
    """Return the rows as a DataFrame, which has all columns even without rows."""
    import pandas as pd

    return pd.DataFrame([vars(row) for row in rows], columns=list(columns(row_type)))


def block(row_type: type, *values: object) -> "pd.DataFrame":
    """Build a DataFrame from one array or scalar per column, in order; scalars are repeated."""
    import pandas as pd

    return pd.DataFrame(dict(zip(columns(row_type), values, strict=True)))


def arrow_table(row_type: type[RowT], rows: Sequence[RowT]) -> pa.Table:
    """Return the rows as an Arrow table, whose columns have their types even without rows."""
    kinds = {name: _COLUMN_TYPES[kind] for name, (kind, _) in _annotations(row_type).items()}
    return pa.table({name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in kinds.items()})


def write_table(path: Path, table: "pd.DataFrame") -> None:
    """Write a DataFrame to a Parquet file atomically."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    write_whole(path, lambda temporary: write_checked(arrow, temporary))


def read_table(path: Path, row_type: type, again: str, may_be_empty: bool = False) -> "pd.DataFrame":
    """Read a Parquet file and return the columns of ``row_type``, in order.

    Args:
        path: Parquet file, which may have further columns.
        row_type: Schema of the table.
        again: Remedy for error messages, such as "run simulate again".
        may_be_empty: Accept a table without rows.

    Raises:
        InputError: The file is missing or not Parquet, lacks a column, or has no rows.
    """
    import pandas as pd

    if not path.is_file():
        raise InputError(f"{path} is missing: {again}, or give the folder of a run that wrote it")
    try:
        table = pd.read_parquet(path, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}): {again}") from error
    missing = [name for name in columns(row_type) if name not in table.columns]
    if missing:
        raise InputError(f"{path} lacks the column {', '.join(missing)}: {again} with this version")
    if table.empty and not may_be_empty:
        raise InputError(f"{path} has no rows: {again}")
    return table[list(columns(row_type))]


def read_manifest(path: Path, needed: Sequence[str], again: str, format: int = 1) -> dict[str, Any]:
    """Read the manifest of a folder of tables; its texts are ``printable``.

    needed: keys that it must have. again: remedy for error messages. format: that its key must have, see ``RunKey``.

    Raises:
        InputError: The file is missing, is not a JSON object, is of another format, or lacks a key.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: {again}, or give the folder of a run that wrote it")
    manifest = read_json(path)
    if other := other_format(manifest.get("settings", {}), format):
        raise InputError(f"{path} was {other}; {again} with --overwrite")
    missing = [key for key in needed if key not in manifest]
    if missing:
        raise InputError(f"{path} lacks the key {', '.join(missing)}: {again} with this version")
    return {key: printable_in(value) for key, value in manifest.items()}


def rows_of(row_type: type[RowT], table: "pd.DataFrame") -> list[RowT]:
    """Convert each line of a DataFrame to a row, with values of the types of the fields; texts are ``printable``."""
    casts = {name: _CASTS[kind] for name, (kind, _) in _annotations(row_type).items()}
    values = (map(cast, table[name].tolist()) for name, cast in casts.items())  # tolist: plain values, twice as fast
    return [row_type(*line) for line in zip(*values, strict=True)]


def describe(row_type: type) -> str:
    """Return the columns as a Markdown table, for docs/results-format.md; columns with one meaning share a line."""
    lines: list[tuple[list[str], str, str]] = []
    for name, (kind, meaning) in _annotations(row_type).items():
        if not meaning and lines and lines[-1][1] == _COLUMN_TYPES[kind]:
            lines[-1][0].append(name)
        else:
            lines.append(([name], _COLUMN_TYPES[kind], meaning))
    body = [f"| {', '.join(names)} | {kind} | {meaning} |" for names, kind, meaning in lines]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *body])


def _annotations(row_type: type) -> dict[str, tuple[Any, str]]:
    """Return the type and the meaning of each field; an empty meaning is shared with the field before."""
    annotations = {}
    for name, hint in get_type_hints(row_type, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, meaning = get_args(hint)
            annotations[name] = (kind, meaning)
        else:
            annotations[name] = (hint, "")
    return annotations


def write_checked(table: pa.Table, where: Any, **options: Any) -> None:
    """Write a table to a path or an open file, with a checksum of each page. options: of ``pyarrow.parquet``."""
    pq.write_table(table, where, write_page_checksum=True, **options)


def open_checked(file: Path) -> pq.ParquetFile:
    """Open a Parquet file, whose checksums are verified as pages are read; see ``reading`` for errors."""
    with reading(file):
        return pq.ParquetFile(regular_file(file), memory_map=True, page_checksum_verification=True)


def footers(files: Sequence[Path]) -> list[pq.FileMetaData]:
    """What Parquet files say of themselves. In a store only the last bytes of each are read, of several at a time."""
    with ThreadPoolExecutor(16 if any(map(in_store, files)) else 1) as pool:
        return list(pool.map(_footer, files))


def _footer(file: Path) -> pq.FileMetaData:
    if not in_store(file):
        return open_checked(file).metadata
    with reading(file):
        end = file.bucket.tail(file.key, _FOOTER_BYTES)
        size = int.from_bytes(end[-8:-4], "little") + 8
        end = end if size <= len(end) else file.bucket.tail(file.key, size)
        return pq.read_metadata(BytesIO(b"PAR1" + end[-size:]))


def read_checked(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read columns of a Parquet file, by default all, and verify its checksums.

    Raises:
        InputError: The file is missing or damaged.
    """
    with reading(file):
        return pq.read_table(regular_file(file), columns=columns, page_checksum_verification=True)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn the errors of unreadable, truncated and damaged files into an InputError that names ``path``."""
    try:
        yield
    except PermissionError as error:
        raise InputError(f"{error.filename or path} is not readable for this user; change its permissions") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        said = " ".join(str(error).split())
        names = ("manifest.json", "_manifest.json")
        stage = next((folder for folder in path.parents[:2] if any((folder / name).is_file() for name in names)), None)
        remedy = "restore the file, or write it again"
        if stage is not None:  # it can be computed again
            remedy = f"restore the file, or delete {stage} and run the command that wrote it again"
        raise InputError(f"{path} cannot be read as Parquet: {said}; {remedy}") from error
