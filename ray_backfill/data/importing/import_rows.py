"""Rows of one or two sources as rows of the data contract, batch by batch. See ``importing``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.memory import room_for
from ray_backfill.data.importing.matching import Matched, even
from ray_backfill.data.sources import BATCH_ROWS, Source
from ray_backfill.data.store import vector_column
from ray_backfill.data.store.loose import FINE, PROBLEMS, ZERO, number_type, read_vectors_loosely


class BrokenRowsError(InputError):
    """Rows without a usable vector."""


class Taken(NamedTuple):
    """A column to take: from which source, what it is called there, whether it holds vectors."""

    source: int
    theirs: str
    is_vector: bool


@dataclass
class PartNote:
    """What a part leaves out, as (id, reason), and the dimension of each model. It lies beside an unfinished part."""

    left_out: list[tuple[str, str]]
    dims: dict[str, int]


class _Read(NamedTuple):
    """Vectors that were read before, with what is wrong with each."""

    vectors: NDArray[Any]
    problems: NDArray[np.uint8]


def read_batches(
    sources: Sequence[Source], columns: dict[str, Taken], id_column: str, matched: Matched, skip: int
) -> Iterator[dict[str, pa.Array]]:
    """Batches of the first source from row ``skip`` on, as contract name -> column, with the second source's beside."""
    of_each = [{ours: taken.theirs for ours, taken in columns.items() if taken.source == number} for number in range(2)]
    theirs = [list(dict.fromkeys([id_column, *of_each[0].values()]))]
    first = even(sources[0].read(theirs[0], skip))
    if len(sources) == 1:
        second: Iterator[dict[str, pa.Array]] | None = None
    elif matched.is_aligned:
        wanted = list(dict.fromkeys(of_each[1].values()))
        read = even(sources[1].read(wanted, skip))
        second = ({ours: batch.column(name) for ours, name in of_each[1].items()} for batch in read)
    else:
        second = _by_partner(sources[1], of_each[1], matched, skip)
    for batch in first:
        found = {"id": batch.column(id_column)}
        found |= {ours: batch.column(name) for ours, name in of_each[0].items()}
        if second is not None:
            found |= next(second)
        yield found


def _by_partner(source: Source, wanted: dict[str, str], matched: Matched, skip: int) -> Iterator[dict[str, pa.Array]]:
    """Columns of the second source in the order of the first. Its vectors pass through a temporary file if large."""
    assert matched.partner is not None
    spool = _Spool(source, wanted)
    row_of = np.full(int(matched.partner.max(initial=0)) + 1, -1)
    has = np.flatnonzero(matched.partner >= 0)
    row_of[matched.partner[has]] = has
    at = 0
    for batch in source.read(list(dict.fromkeys(wanted.values())), 0):
        rows = row_of[at : at + len(batch)] if at < len(row_of) else np.empty(0, np.int64)
        keep = np.flatnonzero(rows >= 0)
        if len(keep):
            spool.put(batch.take(pa.array(keep)), rows[keep], len(matched.partner))
        at += len(batch)
    for first in range(skip, len(matched.partner), BATCH_ROWS):
        yield spool.get(first, min(first + BATCH_ROWS, len(matched.partner)))


class _Spool:
    """Columns of a source by the row of another. Vectors are in an array that may be mapped from a file."""

    def __init__(self, source: Source, wanted: dict[str, str]) -> None:
        self._source, self._wanted = source, wanted
        self._vectors: dict[str, NDArray[Any]] = {}
        self._problems: dict[str, NDArray[np.uint8]] = {}
        self._others: dict[str, list[Any]] = {}

    def put(self, batch: pa.RecordBatch, rows: NDArray[np.int64], n_rows: int) -> None:
        for ours, theirs in self._wanted.items():
            column = batch.column(theirs)
            if ours not in ("old", "new"):
                values = self._others.setdefault(ours, [None] * n_rows)
                for row, value in zip(rows, column.to_pylist(), strict=True):
                    values[row] = value
                continue
            known = self._vectors.get(ours)
            vectors, problems = read_vectors_loosely(column, 0 if known is None else known.shape[1])
            if known is None:
                if not vectors.shape[1]:
                    continue
                known = self._vectors[ours] = room_for(n_rows, vectors.shape[1], number_type(column.type))
                self._problems[ours] = np.full(n_rows, 1, np.uint8)
            known[rows], self._problems[ours][rows] = vectors, problems

    def get(self, first: int, last: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for ours, theirs in self._wanted.items():
            if ours in self._vectors:
                found[ours] = _Read(np.asarray(self._vectors[ours][first:last]), self._problems[ours][first:last])
            else:
                kind = self._source.columns[theirs]
                found[ours] = pa.array(self._others.get(ours, [None] * last)[first:last], kind)
        return found


def contract_table(
    batch: dict[str, Any], sources: Sequence[Source], columns: dict[str, Taken], matched: Matched, first: int,
    note: PartNote, drop_broken: bool,
) -> pa.Table | None:  # fmt: skip
    """The rows of a batch that stay, in the types of the data contract; None if none has vectors of every model."""
    stays = matched.stays[first : first + len(batch["id"])].copy()
    made: dict[str, pa.Array] = {"id": _plain(batch["id"])}
    for name, taken in columns.items():
        if not taken.is_vector:
            made[name] = batch[name]
            continue
        read = batch[name]
        if not isinstance(read, _Read):
            read = _Read(*read_vectors_loosely(read, note.dims.get(name, 0)))
        bad = np.flatnonzero(stays & (read.problems != FINE) & (drop_broken | (read.problems != ZERO)))
        for row in bad:
            id_, problem = str(made["id"][int(row)]), PROBLEMS[int(read.problems[row])]
            if not drop_broken:
                # The rows of a second source may be in another order.
                where = f"row {first + row} (id {id_})" if taken.source == 0 else f"the row of id {id_}"
                raise BrokenRowsError(
                    f"{sources[taken.source].name}, column {taken.theirs!r}: {problem} in {where}; give --drop-broken "
                    "to leave such rows out"
                )
            note.left_out.append((id_, f"{taken.theirs}: {problem}"))
        stays[bad] = False
        if not read.vectors.shape[1]:
            return None
        note.dims.setdefault(name, read.vectors.shape[1])
        made[name] = vector_column(read.vectors)
    table = pa.table(made)
    return table if stays.all() else table.filter(pa.array(stays))


def _plain(ids: pa.Array) -> pa.Array:
    ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    return ids.cast(pa.int64()) if pa.types.is_integer(ids.type) else ids.cast(pa.string())
