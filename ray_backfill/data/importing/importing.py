"""Makes a split of the data contract from vectors in other stores, in bounded memory.

The split is a folder of parts, one for ``PART_ROWS`` rows of the first source. It is made in a hidden folder beside its
place and moved there when it is complete; the same command continues an import that was stopped.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, task
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import (
    OtherSettingsError,
    begin_stage,
    finish_stage,
    other_settings,
    read_json,
    remove_halves,
    write_json,
    write_whole,
)
from ray_backfill.data.importing.import_rows import BrokenRowsError, PartNote, Taken, contract_table, read_batches
from ray_backfill.data.importing.matching import Matched, match
from ray_backfill.data.sources import BATCH_ROWS, Source, open_source
from ray_backfill.data.store import COLUMNS, TEXT, in_words, write_parquet
from ray_backfill.data.store.loose import holds_vectors

PART_ROWS = 4 * BATCH_ROWS
# Readers of folders of Parquet ignore files whose names begin like this.
_MANIFEST = "_manifest.json"


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
    asked = {
        "sources": [{"name": source.name, "fingerprint": source.fingerprint} for source in sources],
        "columns": asdict(names) | {"keep": list(names.keep)},
        "drop_broken": drop_broken,
    }
    key = RunKey("import", asked)
    if _is_there(path, key, overwrite):
        say(f"{path} is there already, imported from the same sources")
        for name in (source.name for source in sources if not source.tells_changes):
            say(f"note: {name} does not tell whether its vectors have changed since; --overwrite imports them again")
        return path
    matched = match(sources, names.id, drop_broken)
    unfinished = path.with_name(f".{path.name}.unfinished")
    begin_stage(unfinished, key, overwrite=True)
    remove_halves(unfinished)
    try:
        left_out = _write_parts(unfinished, sources, columns, names.id, matched, drop_broken)
        _finish(unfinished, path, [*matched.left_out, *left_out])
    except BrokenRowsError:  # with these rows there is nothing to continue
        shutil.rmtree(unfinished)
        raise
    return path


def _columns(sources: Sequence[Source], names: ColumnNames) -> dict[str, Taken]:
    """What to take: contract name -> the source's column. The vectors must exist; ``new`` may be to come."""
    taken: dict[str, Taken] = {}
    last = len(sources) - 1
    for model, theirs, place in (("old", names.old, 0), ("new", names.new, last)):
        source = sources[place]
        if model == "new" and theirs == "new" and theirs not in source.columns and not last:
            say(f"{source.name} has no column 'new': the split will hold old embeddings only (--new names the column)")
            continue
        source.need((theirs,))
        if not holds_vectors(source.columns[theirs]):
            raise InputError(f"{source.name}, column {theirs!r} holds {in_words(source.columns[theirs])}, not vectors")
        taken[model] = Taken(place, theirs, True)
    _check_apart(sources, taken)
    further = [(name, name) for name in dict.fromkeys((*COLUMNS, TEXT, *names.keep)) if name not in ("id", "label")]
    for ours, theirs in (("label", names.label), *further):
        place = next((number for number, source in enumerate(sources) if theirs in source.columns), -1)
        if place >= 0 and theirs != names.id:
            taken[ours] = Taken(place, theirs, False)
        elif theirs in names.keep or (ours == "label" and theirs != "label"):
            sources[0].need((theirs,))
    return taken


def _check_apart(sources: Sequence[Source], taken: dict[str, Taken]) -> None:
    """Raises InputError if old and new are the same column of the same source."""
    read = {model: (os.path.realpath(sources[of.source].name), of.theirs) for model, of in taken.items()}
    if len(read) > len({*read.values()}):
        remedy = "name two sources" if len(sources) > 1 else "give --old and --new"
        raise InputError(
            f"{sources[0].name}, column {taken['old'].theirs!r} would be both the old and the new embeddings; {remedy}"
        )


def _is_there(path: Path, key: RunKey, overwrite: bool) -> bool:
    """Whether the split is finished there. Raises InputError if another one is."""
    if not path.exists():
        return False
    if path.is_file() or not (path / _MANIFEST).exists():
        if overwrite:
            return False
        raise InputError(f"{path} exists and was not made by an import; choose another --out, or give --overwrite")
    found = imported(path)
    difference = key.difference(found)
    if not difference or overwrite:
        return not difference
    earlier = found.get("settings", {}).get("sources", [])
    pairs = list(zip(key.settings["sources"], earlier, strict=False))
    changed = [now["name"] for now, then in pairs if now != then]
    if changed and changed == [then["name"] for now, then in pairs if now != then]:
        raise OtherSettingsError(f"{' and '.join(changed)} changed after the import; give --overwrite to import again")
    raise other_settings(path, difference)


def _write_parts(
    folder: Path, sources: Sequence[Source], columns: dict[str, Taken], id_column: str, matched: Matched,
    drop_broken: bool,
) -> list[tuple[str, str]]:  # fmt: skip
    """Write the parts that are missing; returns (id, reason) of the rows that were left out for their vectors."""
    n_rows = len(matched.stays)
    done = 0
    while _note(folder, done).exists():
        done += 1
    notes = [PartNote(**read_json(_note(folder, number))) for number in range(done)]
    left_out = [(id_, reason) for note in notes for id_, reason in note.left_out]
    dims = notes[-1].dims if notes else {}
    with task("import", n_rows, "rows", done=min(done * PART_ROWS, n_rows)) as bar:
        batches = read_batches(sources, columns, id_column, matched, done * PART_ROWS)
        for number in range(done, -(-n_rows // PART_ROWS)):
            rows = range(number * PART_ROWS, min((number + 1) * PART_ROWS, n_rows), BATCH_ROWS)
            note = PartNote([], dims)
            tables = (contract_table(next(batches), sources, columns, matched, at, note, drop_broken) for at in rows)
            _write_part(folder / f"part-{number:05d}.parquet", tables, bar.advance)
            write_json(_note(folder, number), asdict(note))  # from now on the part is done
            left_out += note.left_out
    return left_out


def _note(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"


def _write_part(path: Path, tables: Iterator[pa.Table | None], advance: Any) -> None:
    """Write tables as row groups of one file, with the options of ``write_parquet``. No file if there are no rows."""
    some = _with_rows(tables, advance)
    first = next(some, None)
    if first is None:
        return

    def write(temporary: Path) -> None:
        plain = [f.name for f in first.schema if not pa.types.is_fixed_size_list(f.type)]
        with pq.ParquetWriter(temporary, first.schema, write_page_checksum=True, use_dictionary=plain) as writer:
            writer.write_table(first)
            for table in some:
                writer.write_table(table)

    write_whole(path, write)


def _with_rows(tables: Iterator[pa.Table | None], advance: Any) -> Iterator[pa.Table]:
    for table in tables:
        advance(BATCH_ROWS)
        if table is not None and len(table):
            yield table


def _finish(unfinished: Path, path: Path, left_out: Sequence[tuple[str, str]]) -> None:
    """Check the parts, write their checksums and what was left out, and move the split to its place."""
    for note in unfinished.glob("part-*.json"):
        note.unlink()
    parts = sorted(unfinished.glob("part-*.parquet"))
    rows = {part.name: pq.read_metadata(part).num_rows for part in parts}
    if not sum(rows.values()):
        raise BrokenRowsError(f"nothing is left of {path.name}: every row is broken")
    reasons = Counter(reason for _, reason in left_out)
    finish_stage(
        unfinished,
        {
            "rows": sum(rows.values()),
            "parts": {part.name: {"rows": rows[part.name], "sha256": _sha256(part)} for part in parts},
            "left_out": dict(reasons),
        },
    )
    listed = path.with_name(f"{path.stem}_left_out.parquet")
    if left_out:
        ids, why = zip(*left_out, strict=True)
        write_parquet(listed, pa.table({"id": pa.array(ids), "reason": pa.array(why)}))
    else:
        listed.unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    (unfinished / "manifest.json").rename(unfinished / _MANIFEST)
    unfinished.rename(path)


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def imported(path: Path) -> dict[str, Any]:
    """The manifest of an imported split."""
    return read_json(path / _MANIFEST)
