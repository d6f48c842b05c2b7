"""Which rows of one or two sources belong together, by id, before any vector is read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import track
from ray_backfill.data.sources import BATCH_ROWS, Source
from ray_backfill.data.store import in_words

ONLY_HERE, REPEATED, NO_ID = "only in {}", "duplicate id", "no id"


@dataclass(frozen=True)
class Matched:
    """The rows of the first source that stay, and their partners.

    stays: (N,) whether a row of the first source stays. partner: (N,) the row of the second source with the same id, -1
    if there is none; None with a single source. left_out: (id, reason) of rows that do not stay, of either source.
    """

    stays: NDArray[np.bool_]
    partner: NDArray[np.int64] | None
    left_out: tuple[tuple[str, str], ...]

    @property
    def is_aligned(self) -> bool:
        """Whether the rows of both sources are in the same order, none missing."""
        return self.partner is not None and np.array_equal(self.partner, np.arange(len(self.partner)))


def match(sources: Sequence[Source], id_column: str, drop_broken: bool) -> Matched:
    """Read the ids of one or two sources. Cost: memory for the ids.

    drop_broken: whether rows without an id or with an id that came before are left out instead of refused.

    Raises:
        InputError: Ids are missing or repeated, of different types, or no id is in both sources.
    """
    found = [_ids(source, id_column) for source in sources]
    left_out: list[tuple[str, str]] = []
    for source, ids in zip(sources, found, strict=True):
        _check(source, ids, id_column, drop_broken)
    stays = _first_of_each(found[0])
    left_out += [(_shown(found[0], row), _reason(found[0], row)) for row in np.flatnonzero(~stays)]
    if len(sources) == 1:
        return Matched(stays, None, tuple(left_out))
    if found[0].type != found[1].type:
        raise InputError(
            f"the ids of {sources[0].name} are {in_words(found[0].type)} and those of {sources[1].name} "
            f"{in_words(found[1].type)}; use one type"
        )
    there = pc.index_in(found[0], value_set=found[1]).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    left_out += [
        (_shown(found[0], row), ONLY_HERE.format(sources[0].name)) for row in np.flatnonzero(stays & (there < 0))
    ]
    alone = np.asarray(pc.invert(pc.is_in(found[1], value_set=found[0])))
    left_out += [(_shown(found[1], row), ONLY_HERE.format(sources[1].name)) for row in np.flatnonzero(alone)]
    stays &= there >= 0
    if not stays.any():
        raise InputError(f"no id of {sources[0].name} is in {sources[1].name}; compare the ids, and --id")
    return Matched(stays, there, tuple(left_out))


def _ids(source: Source, column: str) -> pa.Array:
    source.need((column,))
    total = None if source.rows is None else -(-source.rows // BATCH_ROWS)
    batches = track(source.read((column,), 0), f"ids of {source.name}", "batches", total)
    return plain_ids([batch.column(0) for batch in batches], source, column)


def plain_ids(pieces: Sequence[pa.Array], source: Source, column: str) -> pa.Array:
    """Ids as one array of int64 or text. Raises InputError if they are neither."""
    kind = source.columns[column]
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if not is_text and not pa.types.is_integer(kind):
        raise InputError(f"{source.name}, column {column!r} must hold integers or text as ids, not {in_words(kind)}")
    wanted = pa.large_string() if is_text else pa.int64()
    try:
        chunks = [piece.cast(wanted) for piece in pieces]
    except pa.ArrowInvalid as error:
        raise InputError(f"{source.name}, column {column!r} holds ids of 2^63 or more; store them as text") from error
    return pa.chunked_array(chunks, wanted).combine_chunks()


def _first_of_each(ids: pa.Array) -> NDArray[np.bool_]:
    """Whether an id has not come before; False for a missing one. Codes are given in the order of appearance."""
    codes = ids.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
    if not len(codes):
        return np.zeros(0, bool)
    before = np.concatenate([[-1], np.maximum.accumulate(codes)[:-1]])
    return np.asarray(codes > before)


def _check(source: Source, ids: pa.Array, column: str, drop_broken: bool) -> None:
    if not len(ids):
        raise InputError(f"{source.name} has no rows")
    if drop_broken:
        return
    wrong = np.flatnonzero(~_first_of_each(ids))
    if len(wrong):
        row = int(wrong[0])
        what = f"row {row} has no id" if not ids[row].is_valid else f"row {row}: duplicate id {ids[row]}"
        raise InputError(
            f"{source.name}, column {column!r}: {what} ({len(wrong):,} such rows); give --drop-broken to leave them out"
        )


def _reason(ids: pa.Array, row: int | np.intp) -> str:
    return REPEATED if ids[int(row)].is_valid else NO_ID


def _shown(ids: pa.Array, row: int | np.intp) -> str:
    return str(ids[int(row)].as_py()) if ids[int(row)].is_valid else ""


def even(batches: Iterator[pa.RecordBatch], rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly ``rows``, but for the last."""
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        while len(batch):
            taken = batch.slice(0, rows - count)
            held.append(taken)
            count += len(taken)
            batch = batch.slice(len(taken))
            if count == rows:
                yield _one(held)
                held, count = [], 0
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
