"""Vectors from other stores, batch by batch, as Arrow columns. Knows nothing of the data contract.

``SOURCES`` of a module are the kinds of stores that it reads; modules are found by name.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.core.secrets import cleaned, hide_in_chain, learn, needs_encoding
from ray_backfill.data.identity import Identities

# Rows of a batch. 65,536 rows of 1,024 dimensions are 256 MB.
BATCH_ROWS = 16_384


@dataclass(frozen=True)
class Source:
    """Rows of some store, in an order that is the same each time.

    name: for messages. columns: name -> type of the columns that it has. rows: their number, if it is known.
    read: takes names of columns and a number of rows to skip, and yields record batches of at most ``BATCH_ROWS`` rows
    with these columns. fingerprint: changes with the content, as far as that can be told without reading it.
    notes: sentences about what the store has lost. tells_changes: whether the fingerprint changes if a vector does.
    models: what files state of the models of columns.
    """

    name: str
    columns: Mapping[str, pa.DataType]
    rows: int | None
    read: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]
    fingerprint: str
    notes: tuple[str, ...] = ()
    tells_changes: bool = True
    models: Identities = field(default_factory=dict)

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


def batches_of(
    rows: Iterable[Any], columns: Mapping[str, pa.DataType], value: Callable[[Any, str], Any]
) -> Iterator[pa.RecordBatch]:
    """Rows that come one by one, as batches with these columns. value: a row's value of the column of this name."""
    rows = iter(rows)
    while some := list(islice(rows, BATCH_ROWS)):
        arrays = [pa.array([value(row, name) for row in some], kind) for name, kind in columns.items()]
        yield pa.record_batch(arrays, list(columns))


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Whatever a client raises, of several HTTP and gRPC libraries, as an InputError. what: the subject of its line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: {' '.join(str(error).split())}") from error


def skipping(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The batches without the first rows, in pieces of at most ``BATCH_ROWS``."""
    for batch in batches:
        for first in range(rows, len(batch), BATCH_ROWS):
            yield batch.slice(first, BATCH_ROWS)
        rows = max(0, rows - len(batch))


@contextmanager
def client_of(what: str, packages: str) -> Iterator[None]:
    """For the import of an optional client: if it is lacking, says what ``what`` needs. packages: as pip calls them."""
    try:
        yield
    except ImportError as error:
        raise InputError(f"{what} needs the Python package {error.name}: pip install {packages}") from error


def all_kinds() -> list[SourceKind]:
    """Every kind of source. Importing them loads no client."""
    return own_rows(sys.modules[__name__], "SOURCES") + rows_from_outside("SOURCES")


def open_source(text: str) -> Source:
    """Open the source that ``text`` names. Its name, its notes and all errors are without the secrets in ``text``.

    Raises:
        InputError: No kind of source is written like this, or it cannot be opened.
    """
    if not text:
        raise InputError("the name of a source of vectors is empty")
    learn(text)
    if needs_encoding(text):
        raise InputError(
            f"{text}: its password holds characters that must be percent-encoded (%2F for /, %40 for @, %23 for #); "
            "better, leave it out and give it in the environment, as docs/import.md says"
        )
    for kind in all_kinds():
        if kind.recognises(text):
            with _without_secrets():
                return _hidden(kind.open(text))
    if re.fullmatch(r"[\w./~-]+", text) and not Path(text).exists():
        raise InputError(f"{text} does not exist")
    known = "; ".join(f"{kind.name}: {kind.example}" for kind in all_kinds())
    raise InputError(f"{text!r} is not a recognised vector source. {known}")


def _hidden(source: Source) -> Source:
    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        with _without_secrets():
            yield from source.read(names, skip)

    return replace(source, name=cleaned(source.name), notes=tuple(cleaned(source.notes)), read=read)


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Hide secrets in errors of clients, which a caller in Python may print with all their causes."""
    try:
        yield
    except Exception as error:
        hide_in_chain(error)
        raise
