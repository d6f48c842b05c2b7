"""What a drill keeps on disk, so that nothing is lost whatever dies: its embeddings and its journal.

The embeddings of an operation are one Parquet file, written before any shard sees them: it is there whole or not at
all, its pages have checksums, and a file that cannot be read again is set aside and made anew. The journal is a file of
JSON lines that only grows; a half-written last line counts as never written. A shard that starts reads the old
embeddings, the files and the journal, and is where it was.
"""

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.files import write_whole
from ray_backfill.live.operations import Operation
from ray_backfill.store import vector_column
from ray_backfill.systems import FloatArray, IntArray

# Metadata of a file of embeddings: the operation, its kind, and JSON lists of [position, reason].
_OPERATION, _BROKEN = b"operation", b"broken"


class BadPartError(Exception):
    """The embeddings of an operation cannot be read, or are of other items: they have to be made again."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


@dataclass(frozen=True)
class Embedded:
    """The embeddings of an operation. positions: (n,) of those that could be read, in the operation's order.

    vectors: by the model's name (n, d). broken: (position, reason) of the others.
    """

    positions: IntArray
    vectors: dict[str, FloatArray]
    broken: tuple[tuple[int, str], ...] = ()

    @property
    def broken_positions(self) -> IntArray:
        return np.array([position for position, _ in self.broken], np.int64)


def part_path(folder: Path, number: int) -> Path:
    """The file of an operation's embeddings."""
    return folder / f"part-{number:06d}.parquet"


def write_part(folder: Path, operation: Operation, embedded: Embedded) -> None:
    """Write an operation's embeddings, whole, with a checksum for every page."""
    columns = {name: vector_column(values) for name, values in embedded.vectors.items()}
    table = pa.table({"position": pa.array(embedded.positions, pa.int64())} | columns)
    table = table.replace_schema_metadata(
        {_OPERATION: f"{operation.number} {operation.kind}", _BROKEN: json.dumps(embedded.broken)}
    )
    write_whole(part_path(folder, operation.number), partial(_write_durably, table))


def _write_durably(table: pa.Table, path: Path) -> None:
    """On disk when this returns, so that the journal never knows of embeddings that a dying machine took along."""
    with path.open("wb") as file:
        pq.write_table(table, file, write_page_checksum=True)
        file.flush()
        os.fsync(file.fileno())


def read_part(folder: Path, operation: Operation) -> Embedded:
    """What ``write_part`` wrote for this operation.

    Raises:
        BadPartError: it is missing, cut, damaged, or of another plan.
    """
    path = part_path(folder, operation.number)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        metadata = table.schema.metadata or {}
        name, broken = metadata[_OPERATION].decode(), json.loads(metadata[_BROKEN])
        positions = table["position"].to_numpy()
        vectors = {name: _matrix(table[name]) for name in table.column_names if name != "position"}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadPartError(operation.number, f"{path.name} cannot be read: {error}") from error
    embedded = Embedded(positions, vectors, tuple((int(p), str(reason)) for p, reason in broken))
    expected = operation.positions[~np.isin(operation.positions, embedded.broken_positions)]
    if name != f"{operation.number} {operation.kind}" or not np.array_equal(positions, expected):
        raise BadPartError(operation.number, f"{path.name} holds other items than its operation")
    return embedded


def read_broken(folder: Path, number: int) -> IntArray:
    """Positions of an operation's items that could not be read. Reads the metadata only.

    Raises:
        BadPartError: it is missing or cut.
    """
    path = part_path(folder, number)
    try:
        broken = json.loads((pq.read_schema(path).metadata or {})[_BROKEN])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadPartError(number, f"{path.name} cannot be read: {error}") from error
    return np.array([position for position, _ in broken], np.int64)


def set_aside(folder: Path, number: int) -> None:
    """Move a bad file out of the way, and keep it for whoever wants to know what happened to it."""
    path = part_path(folder, number)
    if path.exists():
        path.replace(path.with_suffix(".bad"))


def _matrix(column: pa.ChunkedArray) -> FloatArray:
    values = column.combine_chunks()
    width = values.type.list_size
    flat: NDArray[Any] = values.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(-1, width)


class Journal:
    """What has happened, one JSON object a line, in the order in which it happened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[dict[str, Any]]:
        """All that were written whole. Cost: one read of the file."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [json.loads(line) for line in lines[:-1] if line]  # what comes after the last line end is half a line

    def add(self, kind: str, **facts: Any) -> dict[str, Any]:
        """Append an entry; it is on disk when this returns."""
        entry = {"kind": kind, **facts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps(entry).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return entry

    def mend(self) -> None:
        """Cut half a line off the end, so that the next entry starts on a line of its own."""
        if self.path.exists():
            whole = self.path.read_bytes().rpartition(b"\n")[0]
            os.truncate(self.path, len(whole) + 1 if whole else 0)

    def applied(self) -> int:
        """How many operations all shards have applied."""
        return max((entry["applied"] for entry in self.entries() if entry["kind"] == "applied"), default=0)
