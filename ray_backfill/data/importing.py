"""Makes a split of the data contract from vectors in other stores, in bounded memory.

The split is a folder of parts, one for ``PART_ROWS`` rows of the first source. It is made in a hidden folder beside its
place and moved there when it is complete; the same command continues an import that was stopped.

Shapes: N rows of the first source.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.memory import room_for
from ray_backfill.core.progress import say, task, track
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.schema import footers
from ray_backfill.core.stages import (
    OtherSettingsError,
    begin_stage,
    complete,
    damaged_files,
    finish_stage,
    other_settings,
    put_in_place,
    read_json,
    remove_folder,
    remove_halves,
    sync,
    write_json,
    write_whole,
)
from ray_backfill.core.store_path import in_store
from ray_backfill.data.columns import COLUMNS, MODELS, TEXT, in_words, is_text, plain_type
from ray_backfill.data.folder import left_out_file
from ray_backfill.data.identity import Identities, as_identities, one_model_each, stating
from ray_backfill.data.sources import BATCH_ROWS, Source, open_source
from ray_backfill.data.vectors import FINE, MISSING, PROBLEMS, ZERO, Decoded, decode, is_vectors, may_be_vectors
from ray_backfill.data.write import vector_column, write_parquet

PART_ROWS = 4 * BATCH_ROWS
# Readers of folders of Parquet ignore files whose names begin like this.
_MANIFEST = "_manifest.json"


class BrokenRowsError(InputError):
    """Rows without a usable vector."""


class Taken(NamedTuple):
    """A column to take: from which source, and what it is called there."""

    source: int
    theirs: str


@dataclass
class PartNote:
    """What a part leaves out, as (id, reason), the dimension of each model, and the rows of its file, which is missing
    if there are none. It lies beside an unfinished part.
    """

    left_out: list[tuple[str, str]]
    dims: dict[str, int]
    rows: int = 0


@dataclass(frozen=True)
class ColumnNames:
    """What the sources call the columns."""

    id: str = "id"
    """Column of ids: integers or text, unique."""
    old: str = "old"
    """Column of the old model's embeddings."""
    new: str = "new"
    """Column of the new model's embeddings. With two sources, it is a column of the second one."""
    label: str = "label"
    """Column of labels: items with the same label are right answers to each other. It may be missing."""
    keep: tuple[str, ...] = ()
    """Further columns to take, under their own names: titles, tenants, prices. Columns that the data contract knows
    (positives, weight, group, ...) and texts are always taken."""


def import_split(
    path: Path, texts: Sequence[str], names: ColumnNames, drop_broken: bool, overwrite: bool,
    models: Mapping[str, str] | None = None, beside: Iterable[tuple[str, Identities]] = (),
) -> Path:  # fmt: skip
    """Import one split, for example ``DIR/gallery.parquet``, from one or two sources.

    texts: the sources; with two, they are joined by id, the first has the old vectors and the second the new ones.
    drop_broken: leave rows out that have no id, a repeated id, no vector, or one that is zero or not finite, instead of
        refusing them; they are listed beside the split, in ``<split>_left_out.parquet``.
    models: "old" or "new" -> the name of its model; it counts with what the sources state. beside: places that state
        the models of the other splits, see ``identity.stated``.

    Raises:
        InputError: A source cannot be read, lacks a column or has broken rows; the split is there already, from other
            sources; a column has another model than beside it; the disk is full.
    """
    if not 1 <= len(texts) <= 2:
        raise InputError(f"a split comes from one source or two that are joined by id, got {len(texts)}")
    sources = [open_source(text) for text in texts]
    for note in (note for source in sources for note in source.notes):
        say(f"note: {note}")
    columns = _columns(sources, names)
    named = {column: name for column, name in (models or {}).items() if name and column in columns}
    places = [(f"--{ours}-model", as_identities({ours: name}, "the option")) for ours, name in named.items()]
    for ours, (number, theirs) in columns.items():
        if (model := sources[number].models.get(theirs)) is not None:
            places.append((sources[number].name, {ours: model}))
    identities = one_model_each(places)
    one_model_each([*beside, (path.name, identities)])
    asked = {
        "sources": [{"name": source.name, "fingerprint": source.fingerprint} for source in sources],
        "columns": asdict(names) | {"keep": list(names.keep)},
        "drop_broken": drop_broken,
    } | ({"models": named} if named else {})
    key = RunKey("import", asked)
    unfinished, replaced = (path.with_name(f".{path.name}.{state}") for state in ("unfinished", "old"))
    # The process may have died while ``_finish`` put the split in its place.
    complete(unfinished, path)
    if replaced.exists() and not path.exists():
        replaced.rename(path)
    remove(replaced)
    if (unfinished / _MANIFEST).exists():
        (unfinished / _MANIFEST).rename(unfinished / "manifest.json")
    if _is_there(path, key, overwrite):
        if in_store(path):
            remove_folder(unfinished)
        say(f"{path} is there already, imported from the same sources")
        for name in (source.name for source in sources if not source.tells_changes):
            say(f"note: {name} does not tell whether its vectors have changed since; --overwrite imports them again")
        return path
    stays, partner, unmatched = _match(sources, names.id, drop_broken)
    begin_stage(unfinished, key, overwrite=True)
    remove_halves(unfinished)
    try:
        left_out = _Import(sources, columns, stays, partner, drop_broken, identities).write_parts(unfinished)
        _finish(unfinished, path, [*unmatched, *left_out])
    except InputError as error:
        if isinstance(error, BrokenRowsError) or not _note(unfinished, 0).exists():  # there is nothing to continue
            remove_folder(unfinished)
        raise
    return path


def _columns(sources: Sequence[Source], names: ColumnNames) -> dict[str, Taken]:
    """What to take: contract name -> the source's column. The vectors must exist; ``new`` may be to come."""
    taken = {"id": Taken(0, names.id)}
    last = len(sources) - 1
    for model, theirs, place in zip(MODELS, (names.old, names.new), (0, last), strict=True):
        source = sources[place]
        if model == "new" and theirs == "new" and theirs not in source.columns and not last:
            say(f"{source.name} has no column 'new': the split will hold old embeddings only (--new names the column)")
            continue
        source.need((theirs,))
        if not may_be_vectors(source.columns[theirs]):
            raise InputError(f"{source.name}, column {theirs!r} holds {in_words(source.columns[theirs])}, not vectors")
        taken[model] = Taken(place, theirs)
    vectors = [taken[model] for model in MODELS if model in taken]
    if len({(os.path.realpath(sources[place].name), theirs) for place, theirs in vectors}) < len(vectors):
        remedy = "name two sources" if len(sources) > 1 else "give --old and --new"
        raise InputError(
            f"{sources[0].name}, column {taken['old'].theirs!r} would be both the old and the new embeddings; {remedy}"
        )
    further = [(name, name) for name in dict.fromkeys((*COLUMNS, TEXT, *names.keep)) if name not in ("id", "label")]
    for ours, theirs in (("label", names.label), *further):
        place = next((number for number, source in enumerate(sources) if theirs in source.columns), -1)
        if place >= 0 and theirs != names.id:
            taken[ours] = Taken(place, theirs)
        elif theirs in names.keep or (ours == "label" and theirs != "label"):
            sources[0].need((theirs,))
    return taken


def _is_there(path: Path, key: RunKey, overwrite: bool) -> bool:
    """Whether the split is finished there. Raises InputError if another one is."""
    if not path.exists():
        return False
    if path.is_file() or not (path / _MANIFEST).exists():
        if overwrite:
            return False
        raise InputError(f"{path} exists and was not made by an import; choose another --out, or give --overwrite")
    manifest = imported(path)
    difference = key.difference(manifest)
    if not difference and (damaged := damaged_files(path, manifest)):
        say(f"{damaged[0]} is damaged; {path.name} is imported again")
        return False
    if not difference or overwrite:
        return not difference
    earlier = manifest.get("settings", {}).get("sources", [])
    pairs = list(zip(key.settings["sources"], earlier, strict=False))
    changed = [now["name"] for now, then in pairs if now != then]
    if changed and changed == [then["name"] for now, then in pairs if now != then]:
        raise OtherSettingsError(f"{' and '.join(changed)} changed after the import; give --overwrite to import again")
    raise other_settings(path, difference)


def _match(
    sources: Sequence[Source], id_column: str, drop_broken: bool
) -> tuple[NDArray[np.bool_], NDArray[np.int64] | None, list[tuple[str, str]]]:
    """Read the ids of one or two sources. Cost: memory for the ids.

    Returns ``stays`` and ``partner`` of ``_Import``, and (id, reason) of the rows that do not stay, of either source.

    Raises:
        InputError: Ids are missing or repeated, of different types, or no id is in both sources.
    """
    ids = []
    for source in sources:
        source.need((id_column,))
        total = None if source.rows is None else -(-source.rows // BATCH_ROWS)
        batches = track(source.read((id_column,), 0), f"ids of {source.name}", "batches", total)
        ids.append(plain_ids([batch.column(0) for batch in batches], source, id_column))
    stays, *_ = [_firsts(source, own, id_column, drop_broken) for source, own in zip(sources, ids, strict=True)]
    left_out = _without(ids[0], ~stays)
    if len(sources) == 1:
        return stays, None, left_out
    if ids[0].type != ids[1].type:
        raise InputError(
            f"the ids of {sources[0].name} are {in_words(ids[0].type)} and those of {sources[1].name} "
            f"{in_words(ids[1].type)}; use one type"
        )
    there = pc.index_in(ids[0], value_set=ids[1]).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    left_out += _without(ids[0], stays & (there < 0), f"only in {sources[0].name}")
    alone = np.asarray(pc.invert(pc.is_in(ids[1], value_set=ids[0])))
    left_out += _without(ids[1], alone, f"only in {sources[1].name}")
    stays &= there >= 0
    if not stays.any():
        raise InputError(f"no id of {sources[0].name} is in {sources[1].name}; compare the ids, and --id")
    return stays, there, left_out


def plain_ids(pieces: Sequence[pa.Array], source: Source, column: str) -> pa.Array:
    """Ids as one array of int64 or text. Raises InputError if they are neither."""
    kind = plain_type(source.columns[column])
    if not is_text(kind) and not pa.types.is_integer(kind):
        raise InputError(f"{source.name}, column {column!r} must hold integers or text as ids, not {in_words(kind)}")
    wanted = pa.large_string() if is_text(kind) else pa.int64()
    try:
        chunks = [piece.cast(wanted) for piece in pieces]
    except pa.ArrowInvalid as error:
        raise InputError(f"{source.name}, column {column!r} holds ids of 2^63 or more; store them as text") from error
    return pa.chunked_array(chunks, wanted).combine_chunks()


def _firsts(source: Source, ids: pa.Array, column: str, drop_broken: bool) -> NDArray[np.bool_]:
    """Whether an id has not come before; False for a missing one. Raises InputError for such ids, or without rows."""
    if not len(ids):
        raise InputError(f"{source.name} has no rows")
    codes = ids.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)  # in order of appearance
    firsts = np.asarray(codes > np.concatenate([[-1], np.maximum.accumulate(codes)[:-1]]))
    wrong = np.flatnonzero(~firsts)
    if len(wrong) and not drop_broken:
        row = int(wrong[0])
        what = f"row {row} has no id" if not ids[row].is_valid else f"row {row}: duplicate id {ids[row]}"
        raise InputError(
            f"{source.name}, column {column!r}: {what} ({len(wrong):,} such rows); give --drop-broken to leave them out"
        )
    return firsts


def _without(ids: pa.Array, rows: NDArray[np.bool_], reason: str = "") -> list[tuple[str, str]]:
    """(id, reason) of these rows; by default that the id is missing or came before."""
    named = [ids[int(row)] for row in np.flatnonzero(rows)]
    return [(str(id_), reason or "duplicate id") if id_.is_valid else ("", reason or "no id") for id_ in named]


def _even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of exactly ``BATCH_ROWS``, but for the last."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        while sum(map(len, held)) >= BATCH_ROWS:
            table = pa.Table.from_batches(held)
            yield table.slice(0, BATCH_ROWS).combine_chunks().to_batches()[0]
            held = table.slice(BATCH_ROWS).to_batches()
    if any(map(len, held)):
        yield pa.Table.from_batches(held).combine_chunks().to_batches()[0]


# Rows of the import: contract name -> column; vectors may be decoded.
_Columns = dict[str, Any]


@dataclass(frozen=True)
class _Import:
    """What is imported: the sources, the columns to take by their contract names, and the rows that belong together.

    stays: (N,) whether a row of the first source stays. partner: (N,) the row of the second source with the same id, -1
    if there is none; None with a single source. drop_broken: leave out rows without a usable vector or id. models: what
    the parts state.
    """

    sources: Sequence[Source]
    columns: dict[str, Taken]
    stays: NDArray[np.bool_]
    partner: NDArray[np.int64] | None
    drop_broken: bool
    models: Identities

    def batches(self, skip: int) -> Iterator[_Columns]:
        """Rows of the first source from row ``skip`` on, each with its partner's columns."""
        wanted = [
            {ours: taken.theirs for ours, taken in self.columns.items() if taken.source == number}
            for number in range(len(self.sources))
        ]
        streams = [_in_order(self.sources[0], wanted[0], skip)]
        if self.partner is not None:
            is_aligned = np.array_equal(self.partner, np.arange(len(self.partner)))  # the same order, none missing
            read = _in_order if is_aligned else partial(_by_partner, self.partner)
            streams.append(read(self.sources[1], wanted[1], skip))
        for batches in zip(*streams, strict=False):
            yield {ours: column for batch in batches for ours, column in batch.items()}

    def table(self, batch: _Columns, first: int, note: PartNote) -> pa.Table | None:
        """The rows of a batch that stay, in the types of the data contract; None if none has vectors of every model."""
        ids = batch["id"]
        ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
        ids = ids.cast(pa.int64()) if pa.types.is_integer(ids.type) else ids.cast(pa.string())
        stays = self.stays[first : first + len(ids)].copy()
        made: dict[str, pa.Array] = batch | {"id": ids}
        for model in (model for model in MODELS if model in batch):
            read = batch[model]
            if not isinstance(read, Decoded):
                read = decode(read, note.dims.get(model, 0))
            bad = np.flatnonzero(stays & (read.problems != FINE) & (self.drop_broken | (read.problems != ZERO)))
            for row in bad.tolist():
                source, theirs = self.columns[model]
                problem = PROBLEMS[int(read.problems[row])]
                if not self.drop_broken:
                    # The rows of a second source may be in another order.
                    where = f"row {first + row} (id {ids[row]})" if source == 0 else f"the row of id {ids[row]}"
                    raise BrokenRowsError(
                        f"{self.sources[source].name}, column {theirs!r}: {problem} in {where}; give --drop-broken to "
                        "leave such rows out"
                    )
                note.left_out.append((str(ids[row]), f"{theirs}: {problem}"))
            stays[bad] = False
            if not read.vectors.shape[1]:
                return None
            note.dims.setdefault(model, read.vectors.shape[1])
            made[model] = vector_column(read.vectors)
        table = stating(pa.table(made), self.models)
        return table if stays.all() else table.filter(pa.array(stays))

    def write_parts(self, folder: Path) -> list[tuple[str, str]]:
        """Write the parts that are missing; returns (id, reason) of the rows that were left out for their vectors."""
        n_rows, notes = len(self.stays), list[PartNote]()
        while (path := _note(folder, len(notes))).exists():
            note = PartNote(**read_json(path))
            if note.rows and not path.with_suffix(".parquet").exists():  # it was damaged
                break
            notes.append(note)
        done = len(notes)
        left_out = [(id_, reason) for note in notes for id_, reason in note.left_out]
        dims = notes[-1].dims if notes else {}
        with task("import", n_rows, "rows", done=min(done * PART_ROWS, n_rows)) as bar:
            batches = self.batches(done * PART_ROWS)
            for number in range(done, -(-n_rows // PART_ROWS)):
                rows = range(number * PART_ROWS, min((number + 1) * PART_ROWS, n_rows), BATCH_ROWS)
                note = PartNote([], dims)
                tables = (self.table(next(batches), first, note) for first in rows)
                note.rows = _write_part(folder / f"part-{number:05d}.parquet", tables, bar.advance)
                write_json(_note(folder, number), asdict(note))  # from now on the part is done
                left_out += note.left_out
        return left_out


def _in_order(source: Source, wanted: dict[str, str], skip: int) -> Iterator[_Columns]:
    for batch in _even(source.read(list(dict.fromkeys(wanted.values())), skip)):
        yield {ours: batch.column(theirs) for ours, theirs in wanted.items()}


def _by_partner(partner: NDArray[np.int64], source: Source, wanted: dict[str, str], skip: int) -> Iterator[_Columns]:
    """Columns of the second source in the order of the first. Its vectors pass through a temporary file if large."""
    n_rows = len(partner)
    vectors: dict[str, Decoded] = {}
    others: dict[str, list[Any]] = {ours: [None] * n_rows for ours in wanted if ours not in MODELS}
    row_of = np.full(int(partner.max(initial=0)) + 1, -1)
    has = np.flatnonzero(partner >= 0)
    row_of[partner[has]] = has
    at = 0
    for batch in source.read(list(dict.fromkeys(wanted.values())), 0):
        rows = row_of[at : at + len(batch)]
        keep = np.flatnonzero(rows >= 0)
        at += len(batch)
        for ours, theirs in wanted.items() if len(keep) else ():
            column, places = batch.column(theirs).take(pa.array(keep)), rows[keep]
            if ours in MODELS:
                _keep(vectors, ours, column, places, n_rows)
            else:
                for row, value in zip(places, column.to_pylist(), strict=True):
                    others[ours][row] = value
    for first in range(skip, n_rows, BATCH_ROWS):
        here = slice(first, min(first + BATCH_ROWS, n_rows))
        found: _Columns = {ours: Decoded(*(part[here] for part in read)) for ours, read in vectors.items()}
        for ours in wanted.keys() - vectors:
            values = others[ours][here] if ours in others else [None] * (here.stop - first)
            found[ours] = pa.array(values, source.columns[wanted[ours]])
        yield found


def _keep(vectors: dict[str, Decoded], model: str, column: pa.Array, rows: NDArray[np.int64], n_rows: int) -> None:
    """Put some vectors at their rows. Nothing is kept before the first one, which tells the dimension."""
    known = vectors.get(model)
    read = decode(column, 0 if known is None else known.vectors.shape[1])
    if known is None and read.vectors.shape[1]:
        room = room_for(n_rows, read.vectors.shape[1], read.vectors.dtype.type)
        known = vectors[model] = Decoded(room, np.full(n_rows, MISSING, np.uint8))
    if known is not None:
        known.vectors[rows], known.problems[rows] = read


def _note(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"


def _write_part(path: Path, tables: Iterator[pa.Table | None], advance: Callable[[int], None]) -> int:
    """Write tables as row groups of one file, with the options of ``write_parquet``; returns the number of rows.

    There is no file if there are no rows.
    """
    rows = 0

    def with_rows() -> Iterator[pa.Table]:
        for table in tables:
            advance(BATCH_ROWS)
            if table is not None and len(table):
                yield table

    some = with_rows()
    first = next(some, None)
    if first is None:
        return rows

    def write(temporary: Path) -> None:
        nonlocal rows
        plain = [field.name for field in first.schema if not is_vectors(field.type)]
        with pq.ParquetWriter(temporary, first.schema, write_page_checksum=True, use_dictionary=plain) as writer:
            for table in chain([first], some):
                writer.write_table(table)
                rows += len(table)

    write_whole(path, write)
    return rows


def _finish(unfinished: Path, path: Path, left_out: Sequence[tuple[str, str]]) -> None:
    """Check the parts, write their checksums and what was left out, and move the split to its place."""
    for note in (*unfinished.glob("part-*.json"), *unfinished.glob(".*.json")):
        note.unlink()
    parts = sorted(unfinished.glob("part-*.parquet"))
    rows = {part.name: footer.num_rows for part, footer in zip(parts, footers(parts), strict=True)}
    if not sum(rows.values()):
        raise BrokenRowsError(f"nothing is left of {path.name}: every row is broken")
    facts: dict[str, dict[str, Any]] = {}
    for part in parts:
        with part.open("rb") as opened:
            facts[part.name] = {"rows": rows[part.name], "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}
    reasons = dict(Counter(reason for _, reason in left_out))
    finish_stage(unfinished, {"rows": sum(rows.values()), "parts": facts, "left_out": reasons})
    left_out_file(path).unlink(missing_ok=True)
    if left_out:
        ids, why = zip(*left_out, strict=True)
        write_parquet(left_out_file(path), pa.table({"id": pa.array(ids), "reason": pa.array(why)}))
    (unfinished / "manifest.json").rename(unfinished / _MANIFEST)
    sync(unfinished)
    put_in_place(unfinished, path)
    remove(path.with_name(f".{path.name}.old"))


def remove(path: Path) -> None:
    """Delete a file or a folder, if it is there."""
    if path.is_dir():
        remove_folder(path)
    path.unlink(missing_ok=True)


def imported(path: Path) -> dict[str, Any]:
    """The manifest of an imported split."""
    return read_json(path / _MANIFEST)
