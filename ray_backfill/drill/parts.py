"""The embeddings of a drill's operations on disk, so that no failure loses work.

Each operation has one Parquet file, written before any shard sees it. It is written atomically, its pages have
checksums, and a file that cannot be read is set aside and made again. A starting shard reads the old embeddings, these
files and the journal, and so restores its state.

In all functions ``drill`` is the folder of the drill.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import write_checked
from ray_backfill.core.stages import write_whole
from ray_backfill.core.store_path import in_store
from ray_backfill.data.write import vector_column, vectors_of
from ray_backfill.drill.plan import Operation
from ray_backfill.encode.part import TOKENS
from ray_backfill.engine.systems import FloatArray, IntArray

# Metadata of an embeddings file: the operation with its kind, and a JSON list of [position, reason].
_OPERATION, _BROKEN = b"operation", b"broken"


class BadPartError(Exception):
    """The embeddings of an operation cannot be read or belong to other items; they must be made again."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(number, reason)
        self.number, self.reason = number, reason


@dataclass(frozen=True)
class Embedded:
    """The embeddings of an operation. positions: (n,) items that could be read, in the operation's order.

    vectors: model name -> (n, d). broken: (position, reason) for each of the others. tokens: that paid services have
    read, by model; not read back.
    """

    positions: IntArray
    vectors: dict[str, FloatArray]
    broken: tuple[tuple[int, str], ...] = ()
    tokens: Mapping[str, int] = field(default_factory=dict)

    @property
    def broken_positions(self) -> IntArray:
        return np.array([position for position, _ in self.broken], np.int64)


def part_path(drill: Path, number: int) -> Path:
    """Path of an operation's embeddings."""
    return drill / "parts" / f"part-{number:06d}.parquet"


def write_part(drill: Path, operation: Operation, embedded: Embedded) -> None:
    """Write an operation's embeddings atomically, with a checksum for every page."""
    columns = {name: vector_column(values) for name, values in embedded.vectors.items()}
    table = pa.table({"position": pa.array(embedded.positions, pa.int64())} | columns)
    table = table.replace_schema_metadata({
        _OPERATION: f"{operation.number} {operation.kind}", _BROKEN: json.dumps(embedded.broken),
        TOKENS: json.dumps(embedded.tokens),
    })  # fmt: skip
    write_whole(part_path(drill, operation.number), partial(write_checked, table))


def read_part(drill: Path, operation: Operation) -> Embedded:
    """Read the embeddings that ``write_part`` wrote for this operation.

    Raises:
        BadPartError: the file is missing, truncated, damaged, or belongs to another plan.
    """
    path = part_path(drill, operation.number)
    with _reading(path, operation.number), pq.ParquetFile(path, page_checksum_verification=True) as file:
        table = file.read()
        metadata = table.schema.metadata or {}
        name, broken = metadata[_OPERATION].decode(), json.loads(metadata[_BROKEN])
        positions = table["position"].to_numpy()
        vectors = {name: vectors_of(table[name]) for name in table.column_names if name != "position"}
    embedded = Embedded(positions, vectors, tuple((int(p), str(reason)) for p, reason in broken))
    expected = operation.positions[~np.isin(operation.positions, embedded.broken_positions)]
    if name != f"{operation.number} {operation.kind}" or not np.array_equal(positions, expected):
        raise BadPartError(operation.number, f"{path.name} holds other items than its operation")
    return embedded


def read_broken(drill: Path, number: int) -> IntArray:
    """Positions of an operation's items whose image could not be read. Reads the metadata only.

    Raises:
        BadPartError: the file is missing or truncated.
    """
    path = part_path(drill, number)
    with _reading(path, number):
        broken = json.loads((pq.read_schema(path).metadata or {})[_BROKEN])
    return np.array([position for position, _ in broken], np.int64)


@contextmanager
def _reading(path: Path, number: int) -> Iterator[None]:
    """What cannot be read is a bad part, but for a store that does not answer: the part there may be whole."""
    try:
        yield
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        if in_store(path) and isinstance(error, InputError):
            raise
        raise BadPartError(number, f"{path.name} cannot be read: {error}") from error


def set_aside(drill: Path, number: int) -> None:
    """Rename a bad file and keep it for diagnosis."""
    path = part_path(drill, number)
    if path.exists():
        path.replace(path.with_suffix(".bad"))
