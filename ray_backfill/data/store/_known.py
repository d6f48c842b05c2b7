"""The known columns of a split except its vectors, read from a Parquet file."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.parquet import open_checked, reading
from ray_backfill.data.store._columns import as_grades, as_id_lists, as_ids, as_numbers, as_weights, kind_of

# Column -> the function that reads and validates it. Fingerprints follow this order.
COLUMNS: Mapping[str, Callable[[pa.ChunkedArray, Path, str], Any]] = {
    "id": as_ids,
    "label": as_ids,
    "group": as_ids,
    "camera": as_ids,
    "old_score": as_numbers,
    "old_entropy": as_numbers,
    "old_margin": as_numbers,
    "old_class": as_ids,
    "sigma": as_numbers,
    "popularity": as_numbers,
    "order_score": as_numbers,
    "positives": as_id_lists,
    "ignored": as_id_lists,
    "grades": as_grades,
    "weight": as_weights,
}
# Read of the split whose items are the queries. Without them, a folder has the fingerprint that it always had.
OF_QUERIES = ("grades", "weight")
NUMBERS = tuple(name for name, read in COLUMNS.items() if read is as_numbers)


def read_columns(file: Path, needed: Sequence[str], are_queries: bool) -> dict[str, Any]:
    """Read and validate the known columns of one Parquet file except the vectors, as arrays or lists of id arrays."""
    opened = open_checked(file)
    there = opened.schema_arrow.names
    for column in ("id", *needed):
        if column not in there:
            lacking = f"{file} has no column {column!r}; it has: {', '.join(there)}"
            is_before = column == "new" and "old" in there and "gallery.parquet" in file.parts
            raise InputError(f"{lacking}; ray-backfill sample and forecast need few of them" if is_before else lacking)
    present = [name for name in there if name in COLUMNS and (are_queries or name not in OF_QUERIES)]
    for name in (*present, *needed):
        if there.count(name) > 1:
            raise InputError(f"{file} has two columns {name!r}; remove one")
    with reading(file):
        table = opened.read(columns=present)
        return {name: COLUMNS[name](table[name], file, name) for name in present}


def check_equal_columns(files: Sequence[Path], parts: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError if part files differ in their columns or in the types of ids."""
    for file, part in zip(files, parts, strict=True):
        if part.keys() != parts[0].keys():
            raise InputError(
                f"{file} has the columns {', '.join(sorted(part))}, but {files[0]} has {', '.join(sorted(parts[0]))}; "
                "all parts need the same columns"
            )
        for name in (name for name in part if COLUMNS[name] is as_ids):
            kinds = [kind_of(each[name]) for each in (part, parts[0])]
            if kinds[0] != kinds[1]:
                raise InputError(
                    f"column {name!r} holds {kinds[0]} in {file}, but {kinds[1]} in {files[0]}; use one type"
                )
