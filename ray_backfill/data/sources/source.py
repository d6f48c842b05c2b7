"""What every source of vectors offers: columns, batch by batch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ray_backfill.core.errors import InputError

# Rows of a batch. 65,536 rows of 1,024 dimensions are 256 MB.
BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Source:
    """Rows of some store, in an order that is the same each time.

    name: for messages. columns: name -> type of the columns that it has. rows: their number, if it is known.
    read: takes names of columns and a number of rows to skip, and yields record batches of at most ``BATCH_ROWS`` rows
    with these columns. fingerprint: changes with the content, as far as that can be told without reading it.
    notes: sentences about what the store has lost. tells_changes: whether the fingerprint changes if a vector does.
    """

    name: str
    columns: Mapping[str, pa.DataType]
    rows: int | None
    read: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]
    fingerprint: str
    notes: tuple[str, ...] = ()
    tells_changes: bool = True

    def need(self, names: Sequence[str]) -> None:
        """Raises InputError for columns that it does not have."""
        for name in names:
            if name not in self.columns:
                raise InputError(f"{self.name} has no column {name!r}; it has: {', '.join(self.columns)}")


@dataclass(frozen=True)
class SourceKind:
    """A kind of store.

    name: for messages. example: how a source of this kind is written. recognises: whether a text names such a source.
    open: opens it; raises InputError.
    """

    name: str
    example: str
    recognises: Callable[[str], bool]
    open: Callable[[str], Source]


def skipping(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The batches without the first rows."""
    for batch in batches:
        if rows >= len(batch):
            rows -= len(batch)
            continue
        yield batch.slice(rows)
        rows = 0


def missing_client(what: str, packages: str, error: ImportError) -> InputError:
    """The error for an optional client that is not installed. packages: as pip calls them."""
    return InputError(f"{what} needs the Python package {error.name}: pip install {packages}")
