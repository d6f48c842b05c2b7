"""Makes a split of the data contract from vectors in other stores, in bounded memory.

The split is a folder of parts, one for ``PART_ROWS`` rows of the first source. It is made in a hidden folder beside its
place and moved there when it is complete; the same command continues an import that was stopped.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.files import begin_stage, finish_stage, is_finished, look_at_stage, read_json, write_whole
from ray_backfill.progress import say, stage
from ray_backfill.runs.matching import Matched, even, match
from ray_backfill.sources import BATCH_ROWS, Source, open_source
from ray_backfill.store import COLUMNS, TEXT, in_words, room_for, vector_column, write_parquet
from ray_backfill.store.loose import FINE, PROBLEMS, ZERO, holds_vectors, number_type, read_vectors_loosely

PART_ROWS = 4 * BATCH_ROWS


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


class _BrokenRowsError(InputError):
    """Rows without a usable vector."""


class _Taken(NamedTuple):
    """A column to take: from which source, what it is called there, whether it holds vectors."""

    source: int
    theirs: str
    is_vector: bool


@dataclass
class _Counts:
    """What was left out so far, and the dimension of each model."""

    left_out: list[tuple[str, str]] = field(default_factory=list)
    dims: dict[str, int] = field(default_factory=dict)


def import_split(path: Path, texts: Sequence[str], names: ColumnNames, drop_broken: bool, overwrite: bool) -> Path:
    """Import one split, for example ``DIR/gallery.parquet``, from one or two sources.

    texts: the sources; with two, they are joined by id, the first has the old vectors and the second the new ones.
    drop_broken: leave rows out that have no id, a repeated id, no vector, or one that is zero or not finite, instead of
        refusing them; they are listed beside the split, in ``<split>_left_out.parquet``.

    Raises:
        InputError: A source cannot be read, lacks a column or has broken rows; the split is there already, from other
            sources; the disk is full.
    """
    if not 1 <= len(texts) <= 2:
        raise InputError(f"a split comes from one source or two that are joined by id, got {len(texts)}")
    sources = [open_source(text) for text in texts]
    for note in (note for source in sources for note in source.notes):
        say(f"note: {note}")
    columns = _columns(sources, names)
    settings = {
        "sources": [{"name": source.name, "fingerprint": source.fingerprint} for source in sources],
        "columns": asdict(names) | {"keep": list(names.keep)},
        "drop_broken": drop_broken,
    }
    if _is_there(path, settings, overwrite):
        say(f"{path} is there already, imported from the same sources")
        return path
    matched = match(sources, names.id, drop_broken)
    counts = _Counts(list(matched.left_out))
    unfinished = path.with_name(f".{path.name}.unfinished")
    begin_stage(unfinished, "import", settings, overwrite=True)
    try:
        _write_parts(unfinished, sources, columns, names.id, matched, counts, drop_broken)
        _finish(unfinished, path, counts)
    except _BrokenRowsError:  # with these rows there is nothing to continue
        shutil.rmtree(unfinished)
        raise
    return path


def _columns(sources: Sequence[Source], names: ColumnNames) -> dict[str, _Taken]:
    """What to take: contract name -> the source's column. The vectors must exist; ``new`` may be to come."""
    taken: dict[str, _Taken] = {}
    last = len(sources) - 1
    for model, theirs, place in (("old", names.old, 0), ("new", names.new, last)):
        source = sources[place]
        if model == "new" and theirs == "new" and theirs not in source.columns:
            say(f"{source.name} has no column 'new': the split will hold old embeddings only (--new names the column)")
            continue
        source.need((theirs,))
        if not holds_vectors(source.columns[theirs]):
            raise InputError(f"{source.name}, column {theirs!r} holds {in_words(source.columns[theirs])}, not vectors")
        taken[model] = _Taken(place, theirs, True)
    further = [(name, name) for name in dict.fromkeys((*COLUMNS, TEXT, *names.keep)) if name not in ("id", "label")]
    for ours, theirs in (("label", names.label), *further):
        place = next((number for number, source in enumerate(sources) if theirs in source.columns), -1)
        if place >= 0 and theirs != names.id:
            taken[ours] = _Taken(place, theirs, False)
        elif theirs in names.keep or (ours == "label" and theirs != "label"):
            sources[0].need((theirs,))
    return taken


def _is_there(path: Path, settings: dict[str, Any], overwrite: bool) -> bool:
    """Whether the split is finished there. Raises InputError if another one is."""
    if not path.exists() or (overwrite and not (path.is_dir() and is_finished(path))):
        return False
    if path.is_file() or not (path / "manifest.json").exists():
        raise InputError(f"{path} exists and was not made by an import; choose another --out, or give --overwrite")
    try:
        return look_at_stage(path, "import", settings)
    except InputError:
        if overwrite:
            return False
        raise


def _write_parts(
    folder: Path, sources: Sequence[Source], columns: dict[str, _Taken], id_column: str, matched: Matched,
    counts: _Counts, drop_broken: bool,
) -> None:  # fmt: skip
    n_rows = len(matched.stays)
    done = 0
    while (folder / _part(done)).exists():
        done += 1
    with stage("import", n_rows, "rows", done=min(done * PART_ROWS, n_rows)) as bar:
        batches = _batches(sources, columns, id_column, matched, done * PART_ROWS)
        first = done * PART_ROWS
        for number in range(done, -(-n_rows // PART_ROWS)):
            rows = min(PART_ROWS, n_rows - first)

            def write(temporary: Path, rows: int = rows, first: int = first) -> None:
                tables = (
                    _contract_table(next(batches), columns, id_column, matched, at, counts, drop_broken)
                    for at in range(first, first + rows, BATCH_ROWS)
                )
                _write_tables(temporary, tables, bar.advance)

            write_whole(folder / _part(number), write)
            first += rows


def _part(number: int) -> str:
    return f"part-{number:05d}.parquet"


def _write_tables(path: Path, tables: Iterator[pa.Table], advance: Any) -> None:
    """Write tables as row groups of one file, with the options of ``write_parquet``."""
    writer = None
    for table in tables:
        if writer is None:
            plain = [f.name for f in table.schema if not pa.types.is_fixed_size_list(f.type)]
            writer = pq.ParquetWriter(path, table.schema, write_page_checksum=True, use_dictionary=plain)
        writer.write_table(table)
        advance(BATCH_ROWS)
    assert writer is not None
    writer.close()


def _batches(
    sources: Sequence[Source], columns: dict[str, _Taken], id_column: str, matched: Matched, skip: int
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

    def get(self, first: int, last: int) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        for ours, theirs in self._wanted.items():
            if ours in self._vectors:
                fine = np.isin(self._problems[ours][first:last], (FINE, ZERO))
                lists = vector_column(np.asarray(self._vectors[ours][first:last]))
                found[ours] = pa.FixedSizeListArray.from_arrays(
                    lists.flatten(), lists.type.list_size, mask=pa.array(~fine)
                )
            else:
                kind = self._source.columns[theirs]
                found[ours] = pa.array(self._others.get(ours, [None] * last)[first:last], kind)
        return found


def _contract_table(
    batch: dict[str, pa.Array], columns: dict[str, _Taken], id_column: str, matched: Matched, first: int,
    counts: _Counts, drop_broken: bool,
) -> pa.Table:  # fmt: skip
    """The rows of a batch that stay, in the types of the data contract."""
    n_rows = len(batch["id"])
    stays = matched.stays[first : first + n_rows].copy()
    made: dict[str, pa.Array] = {"id": _plain(batch["id"])}
    for name, taken in columns.items():
        if not taken.is_vector:
            made[name] = batch[name]
            continue
        vectors, problems = read_vectors_loosely(batch[name], counts.dims.get(name, 0))
        counts.dims.setdefault(name, vectors.shape[1])
        bad = np.flatnonzero(stays & (problems != FINE) & (drop_broken | (problems != ZERO)))
        for row in bad:
            shown, why = str(made["id"][int(row)]), f"{taken.theirs}: {PROBLEMS[int(problems[row])]}"
            if not drop_broken:
                raise _BrokenRowsError(
                    f"column {taken.theirs!r}: {PROBLEMS[int(problems[row])]} in row {first + row} (id {shown}); give "
                    "--drop-broken to leave such rows out"
                )
            counts.left_out.append((shown, why))
        stays[bad] = False
        made[name] = vector_column(vectors)
    table = pa.table(made)
    return table if stays.all() else table.filter(pa.array(stays))


def _plain(ids: pa.Array) -> pa.Array:
    ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    return ids.cast(pa.int64()) if pa.types.is_integer(ids.type) else ids.cast(pa.string())


def _finish(unfinished: Path, path: Path, counts: _Counts) -> None:
    """Check the parts, write their checksums and what was left out, and move the split to its place."""
    parts = sorted(unfinished.glob("part-*.parquet"))
    rows = {part.name: pq.read_metadata(part).num_rows for part in parts}
    if not sum(rows.values()):
        raise _BrokenRowsError(f"nothing is left of {path.name}: every row is broken")
    reasons = Counter(reason for _, reason in counts.left_out)
    finish_stage(
        unfinished,
        {
            "rows": sum(rows.values()),
            "parts": {part.name: {"rows": rows[part.name], "sha256": _sha256(part)} for part in parts},
            "left_out": dict(reasons),
        },
    )
    listed = path.with_name(f"{path.stem}_left_out.parquet")
    if counts.left_out:
        ids, why = zip(*counts.left_out, strict=True)
        write_parquet(listed, pa.table({"id": pa.array(ids), "reason": pa.array(why)}))
    else:
        listed.unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    unfinished.rename(path)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def imported(path: Path) -> dict[str, Any]:
    """The manifest of an imported split."""
    return read_json(path / "manifest.json")
