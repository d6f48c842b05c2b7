"""The embeddings of a drill's operations on disk, so that nothing is lost whatever dies.

Each operation has one Parquet file, written before any shard sees it: it is there whole or not at all, its pages have
checksums, and a file that cannot be read again is set aside and made anew. A shard that starts reads the old
embeddings, these files and the journal, and is where it was.

In all functions ``drill`` is the folder of the drill.
"""

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.files import write_whole
from ray_backfill.live.operations import Operation
from ray_backfill.store import vector_column, vectors_of
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


def part_path(drill: Path, number: int) -> Path:
    """The file of an operation's embeddings."""
    return drill / "parts" / f"part-{number:06d}.parquet"


def write_part(drill: Path, operation: Operation, embedded: Embedded) -> None:
    """Write an operation's embeddings, whole, with a checksum for every page."""
    columns = {name: vector_column(values) for name, values in embedded.vectors.items()}
    table = pa.table({"position": pa.array(embedded.positions, pa.int64())} | columns)
    table = table.replace_schema_metadata(
        {_OPERATION: f"{operation.number} {operation.kind}", _BROKEN: json.dumps(embedded.broken)}
    )
    write_whole(part_path(drill, operation.number), partial(_write_durably, table))


def _write_durably(table: pa.Table, path: Path) -> None:
    """The file is on disk when this returns, so that the journal never knows of embeddings that a machine lost."""
    with path.open("wb") as file:
        pq.write_table(table, file, write_page_checksum=True)
        file.flush()
        os.fsync(file.fileno())


def read_part(drill: Path, operation: Operation) -> Embedded:
    """What ``write_part`` wrote for this operation.

    Raises:
        BadPartError: it is missing, cut, damaged, or of another plan.
    """
    path = part_path(drill, operation.number)
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
        metadata = table.schema.metadata or {}
        name, broken = metadata[_OPERATION].decode(), json.loads(metadata[_BROKEN])
        positions = table["position"].to_numpy()
        vectors = {name: vectors_of(table[name]) for name in table.column_names if name != "position"}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadPartError(operation.number, f"{path.name} cannot be read: {error}") from error
    embedded = Embedded(positions, vectors, tuple((int(p), str(reason)) for p, reason in broken))
    expected = operation.positions[~np.isin(operation.positions, embedded.broken_positions)]
    if name != f"{operation.number} {operation.kind}" or not np.array_equal(positions, expected):
        raise BadPartError(operation.number, f"{path.name} holds other items than its operation")
    return embedded


def read_broken(drill: Path, number: int) -> IntArray:
    """Positions of an operation's items that could not be read. Reads the metadata only.

    Raises:
        BadPartError: it is missing or cut.
    """
    path = part_path(drill, number)
    try:
        broken = json.loads((pq.read_schema(path).metadata or {})[_BROKEN])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise BadPartError(number, f"{path.name} cannot be read: {error}") from error
    return np.array([position for position, _ in broken], np.int64)


def set_aside(drill: Path, number: int) -> None:
    """Move a bad file out of the way, and keep it for whoever wants to know what happened to it."""
    path = part_path(drill, number)
    if path.exists():
        path.replace(path.with_suffix(".bad"))
