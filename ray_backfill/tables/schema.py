"""A frozen dataclass is the schema of a table: one field for each column, annotated with its type and its meaning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.errors import InputError
from ray_backfill.files import read_json, write_whole

RowT = TypeVar("RowT")

# Type of a field -> the type of its column, as the docs print it.
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
    str: str,
    int: int,
    float: float,
    bool: bool,
    # bool(NaN) is True, but a flag that was never computed must not read as a condition that holds.
    bool | None: lambda value: None if pd.isna(value) else bool(value),
}


def columns(row_type: type) -> tuple[str, ...]:
    """The names of the columns, in order."""
    return tuple(field.name for field in fields(row_type))


def frame(row_type: type[RowT], rows: Sequence[RowT]) -> pd.DataFrame:
    """The rows as a frame; it has all columns even if there are no rows."""
    return pd.DataFrame([vars(row) for row in rows], columns=list(columns(row_type)))


def block(row_type: type, *values: object) -> pd.DataFrame:
    """Several rows at once: one value for each column, in order; what is no array is the same in every row."""
    return pd.DataFrame(dict(zip(columns(row_type), values, strict=True)))


def arrow_table(row_type: type[RowT], rows: Sequence[RowT]) -> pa.Table:
    """The rows as an Arrow table; its columns have their types even if there are no rows."""
    kinds = {name: _COLUMN_TYPES[kind] for name, (kind, _) in _annotations(row_type).items()}
    return pa.table({name: pa.array([getattr(row, name) for row in rows], kind) for name, kind in kinds.items()})


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Write a frame as a Parquet file, whole or not at all."""
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    write_whole(path, lambda temporary: pq.write_table(arrow, temporary))


def read_table(path: Path, row_type: type, again: str, may_be_empty: bool = False) -> pd.DataFrame:
    """Read a Parquet file that has at least the columns of ``row_type``; returns those, in order.

    again: the remedy that an error names, such as "run simulate again".

    Raises:
        InputError: the file is missing or not Parquet, lacks a column, or has no rows.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: {again}, or give the folder that it wrote")
    try:
        found = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise InputError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}): {again}") from error
    missing = [name for name in columns(row_type) if name not in found.columns]
    if missing:
        raise InputError(f"{path} lacks the column {', '.join(missing)}: {again} with this version")
    if found.empty and not may_be_empty:
        raise InputError(f"{path} has no rows: {again}")
    return found[list(columns(row_type))]


def read_manifest(path: Path, needed: Sequence[str], again: str) -> dict[str, Any]:
    """Read the manifest of a folder of tables. needed: keys that it must have.

    Raises:
        InputError: the file is missing or no JSON object, or lacks a key.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: {again}, or give the folder that it wrote")
    manifest = read_json(path)
    missing = [key for key in needed if key not in manifest]
    if missing:
        raise InputError(f"{path} lacks the key {', '.join(missing)}: {again} with this version")
    return manifest


def rows_of(row_type: type[RowT], table: pd.DataFrame) -> list[RowT]:
    """Each line of a frame as a row, its values cast to the types of the fields."""
    casts = {name: _CASTS[kind] for name, (kind, _) in _annotations(row_type).items()}
    values = (map(cast, table[name].tolist()) for name, cast in casts.items())  # tolist: plain values, twice as fast
    return [row_type(*line) for line in zip(*values, strict=True)]


def describe(row_type: type) -> str:
    """The columns as a Markdown table, for docs/results-format.md. Columns that share a meaning share a line."""
    lines: list[tuple[list[str], str, str]] = []
    for name, (kind, meaning) in _annotations(row_type).items():
        if not meaning and lines and lines[-1][1] == _COLUMN_TYPES[kind]:
            lines[-1][0].append(name)
        else:
            lines.append(([name], _COLUMN_TYPES[kind], meaning))
    body = [f"| {', '.join(names)} | {kind} | {meaning} |" for names, kind, meaning in lines]
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *body])


def _annotations(row_type: type) -> dict[str, tuple[Any, str]]:
    """Field -> its type and its meaning; the meaning is empty where the field before it says it."""
    found = {}
    for name, hint in get_type_hints(row_type, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, meaning = get_args(hint)
            found[name] = (kind, meaning)
        else:
            found[name] = (hint, "")
    return found
