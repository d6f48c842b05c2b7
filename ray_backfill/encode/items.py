"""What is to be embedded: texts or images of a user, as a gallery, queries and a train split, written in parts.

Texts come from any source of tables (``data.sources``) or from a folder as BEIR has it (corpus.jsonl, queries.jsonl,
qrels); images from a folder, whose subfolders are classes, a table of their paths, or tar shards as WebDataset has
them. Where there is one source only, queries and a train split are drawn from it at random.
"""

import csv
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ray_backfill.core.errors import InputError, regular_file
from ray_backfill.core.progress import say, step
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.core.schema import read_checked
from ray_backfill.core.stages import begin_stage, finish_stage, read_json, remove_halves
from ray_backfill.data.columns import is_text, part_files
from ray_backfill.data.sources import open_source
from ray_backfill.data.text import lines_of
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import TEXT
from ray_backfill.images.archives import why_no_end

SPLITS = ("gallery", "queries", "train")
# Names that columns usually have, the first that is there counts. A title stands before its text.
_IDS = ("id", "_id", "doc_id", "docid", "pid", "query_id")
_TEXTS = ("text", "content", "body", "passage", "sentence", "question", "query")
_IMAGES = ("image", "path", "file", "file_name", "filename")
# Columns that say where an image is: its file or shard, and there the first byte and the number of bytes.
PLACE = ("image", "offset", "bytes")
_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
# Largest share of a single source that becomes queries, and train items.
_QUERY_SHARE, _TRAIN_SHARE = 0.1, 0.25
# A split has at least this many parts, of at least so many items: progress shows, and actors end together.
_PARTS, _LEAST_ROWS = 16, 100
# Characters of a text that are kept: no tokenizer reads as far.
_MOST_CHARACTERS = 100_000


@dataclass(frozen=True)
class ItemSettings:
    """What is read of the items, and what is drawn from them."""

    id_column: str = ""
    """Column of the ids; empty: id, _id or the like, otherwise the numbers of the rows."""
    text_column: str = ""
    """Column of the texts; empty: text, content or the like, with the column title before it."""
    image_column: str = ""
    """Column of the paths of images, relative to the table; empty: image, path or the like."""
    label_column: str = ""
    """Column of classes, which make right answers; empty: label, if there is one."""
    draw_queries: int = 500
    """Queries that are drawn from a single source, at most a tenth of it."""
    draw_train: int = 5000
    """Items for maps that are drawn from a single source, at most a quarter of it."""
    part_rows: int = 2000
    """Items of a part, at most. A run that was stopped keeps its finished parts. Small splits have smaller parts."""
    draw_seed: int = 0
    """Random seed of what is drawn."""

    def __post_init__(self) -> None:
        for name, least in (("draw_queries", 0), ("draw_train", 0), ("part_rows", 1), ("draw_seed", 0)):
            if (value := getattr(self, name)) < least:
                raise InputError(f"--items.{name.replace('_', '-')} must be at least {least}, got {value}")


@dataclass(frozen=True)
class ItemSources:
    """Where items come from, as typed. modality: of all of them. queries, train: "" if they are drawn or missing."""

    modality: str
    gallery: str
    queries: str = ""
    train: str = ""


def write_items(folder: Path, sources: ItemSources, settings: ItemSettings, overwrite: bool = False) -> Path:
    """Read all items and write them in parts: FOLDER/gallery.parquet/part-000000.parquet and so on.

    Raises:
        InputError: A source cannot be read, lacks a column, has an id twice, or holds too few items.
    """
    with step("read items"):
        tables = _texts(sources, settings) if sources.modality == TEXT else _images(sources, settings)
        for split, table in tables.items():
            _check(split, table, sources)
        _check_labels(tables)
        marks = {split: _mark(table) for split, table in tables.items()}
        made = asdict(replace(settings, id_column="", text_column="", image_column="", label_column=""))
        key = RunKey("items", {"modality": sources.modality} | made, marks)
        if begin_stage(folder, key, overwrite):
            return folder
        for split, table in tables.items():
            rows = min(settings.part_rows, max(_LEAST_ROWS, len(table) // _PARTS))
            for number, first in enumerate(range(0, len(table), rows)):
                part = table.slice(first, rows)
                write_parquet(folder / f"{split}.parquet" / f"part-{number:06d}.parquet", part)
        remove_halves(folder)
        finish_stage(folder, {f"{split}_items": len(table) for split, table in tables.items()})
    return folder


def write_some(folder: Path, items: Path, ids: Sequence[Any], overwrite: bool = False) -> Path:
    """Write some gallery items of a finished folder of items, as a folder whose gallery they are."""
    key = RunKey("items", {"ids": fingerprint(sorted(map(str, ids)))}, {"items": items_fingerprint(items)})
    if begin_stage(folder, key, overwrite):
        return folder
    wanted = pa.array([str(each) for each in ids], pa.string())
    for part in part_files(items / "gallery.parquet"):
        table = read_checked(part)
        own = table.filter(pa.compute.is_in(table["id"].cast(pa.string()), wanted))
        if len(own):
            write_parquet(folder / "gallery.parquet" / part.name, own)
    finish_stage(folder, {"gallery_items": len(ids)})
    return folder


def items_fingerprint(folder: Path) -> str:
    """What a finished folder of items holds."""
    return fingerprint(sorted(read_json(folder / "manifest.json")["settings"].items()))


def _mark(table: pa.Table) -> str:
    if "image" in table.column_names:  # another file may have the same name
        stats = {path: _size_and_time(path) for path in set(table["image"].to_pylist())}
        return fingerprint(sorted(stats.items()), *(table[name].to_pylist() for name in table.column_names))
    return fingerprint(
        table.schema.names, *(fingerprint(chunk.to_pylist()) for column in table.columns for chunk in column.chunks)
    )


def _size_and_time(path: str) -> tuple[int, int]:
    try:
        found = Path(path).stat()
    except OSError:  # listed among the broken items
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _check_labels(tables: Mapping[str, pa.Table]) -> None:
    """Raise InputError for labels that no comparison could use, before anything is embedded."""
    kinds = {split: table["label"].type for split, table in tables.items() if "label" in table.column_names}
    if "queries" in kinds and "gallery" not in kinds and "positives" not in tables["queries"].column_names:
        raise InputError(
            "the queries have labels and the gallery has none; add the column label there, or drop it here"
        )
    whole = {split: pa.types.is_integer(kind) for split, kind in kinds.items()}
    if len(set(whole.values())) > 1:
        one, *others = whole
        other = next(split for split in others if whole[split] != whole[one])
        raise InputError(
            f"labels of the {one} are {kinds[one]}, those of the {other} are {kinds[other]}; none would be "
            "equal: write both in the same way"
        )


def _check(split: str, table: pa.Table, sources: ItemSources) -> None:
    if not len(table):
        raise InputError(f"{getattr(sources, split) or sources.gallery} has no {sources.modality}s for the {split}")
    what = getattr(sources, split) or sources.gallery
    for name in {"id", "label"} & set(table.column_names):
        if missing := table[name].null_count:
            raise InputError(f"{what}: {missing:,} of {len(table):,} rows have no {name}; fill them, or drop the rows")
        if not (pa.types.is_integer(kind := table[name].type) or is_text(kind)):
            raise InputError(f"{what}: the column of the {name} holds {kind}; it must hold integers or texts")
    ids = table["id"].to_pandas()
    if (twice := ids[ids.duplicated()]).size:
        raise InputError(f"{what}: the {split} has the id {twice.tolist()[0]!r} twice; make ids unique")


def _texts(sources: ItemSources, settings: ItemSettings) -> dict[str, pa.Table]:
    beir = Path(sources.gallery)
    if (beir / "corpus.jsonl").is_file():
        return _beir(beir, sources, settings)
    gallery = _text_table(sources.gallery, settings)
    tables = {"gallery": gallery}
    tables |= {s: _text_table(getattr(sources, s), settings) for s in SPLITS[1:] if getattr(sources, s)}
    return _with_drawn(tables, sources, settings)


def _beir(folder: Path, sources: ItemSources, settings: ItemSettings) -> dict[str, pa.Table]:
    """The corpus, and the queries that have judgements, with them."""
    found = sorted((folder / "qrels").glob("*.tsv"))
    if not found:
        raise InputError(f"{folder} has no qrels/*.tsv; give another folder, or --texts and --queries as files")
    judged = next((path for path in found if path.stem == "test"), found[0])
    answers: dict[str, dict[str, float]] = {}
    with regular_file(judged).open("rb") as opened:
        lines = (line.decode() for _, line in lines_of(opened, str(judged)))
        for row in csv.reader(lines, delimiter="\t"):
            if len(row) < 3 or not _is_number(row[-1]):  # the names of the columns
                continue
            if float(row[-1]) > 0:
                answers.setdefault(row[0], {})[row[-2]] = float(row[-1])
    if sources.queries:
        raise InputError(f"{folder} has queries of its own; leave --queries out, or give corpus.jsonl as --texts")
    gallery, queries = (_text_table(str(folder / f"{name}.jsonl"), settings) for name in ("corpus", "queries"))
    gallery, queries = (t.set_column(0, "id", t["id"].cast(pa.string())) for t in (gallery, queries))
    queries = queries.filter(pa.compute.is_in(queries["id"], pa.array(list(answers), pa.string())))
    own, there = [answers[each] for each in queries["id"].to_pylist()], set(gallery["id"].to_pylist())
    if not any(there & set(each) for each in own):
        raise InputError(
            f"{judged} judges no item of the corpus that a query of {folder} has; use files of one data set"
        )
    kept = [{item: grade for item, grade in each.items() if item in there} for each in own]
    queries = queries.append_column("positives", pa.array([list(each) for each in kept], pa.list_(pa.string())))
    queries = queries.append_column("grades", pa.array([list(each.values()) for each in kept], pa.list_(pa.float64())))
    tables = {"gallery": gallery, "queries": queries}
    return tables | ({"train": _text_table(sources.train, settings)} if sources.train else {})


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text)).item()
    except ValueError:
        return False


def _text_table(given: str, settings: ItemSettings) -> pa.Table:
    """The columns id, text and label of a source."""
    table, text_name = _read_table(given, settings, "text", settings.text_column, _TEXTS)
    title = "title" if "title" in table.column_names and not settings.text_column and text_name != "title" else ""
    texts = [_joined(*row) for row in zip(*(table[n].to_pylist() for n in (title, text_name) if n), strict=True)]
    own = {name: table[name] for name in ("id", "label") if name in table.column_names}
    columns = {"id": own.pop("id", pa.array(np.arange(len(table)))), "text": pa.array(texts, pa.large_string())}
    return pa.table(columns | own)


def _read_table(
    given: str, settings: ItemSettings, what: str, wanted: str, usual: Sequence[str]
) -> tuple[pa.Table, str]:
    """The columns of a source that count, those of ids and labels under these names; and the name of the contents."""
    source = open_source(given)
    id_name = _found(settings.id_column, _IDS, source.columns, given)
    name = _found(wanted, usual, source.columns, given)
    if not name:
        raise InputError(
            f"{given} has no column {' or '.join(usual[:3])}; name it with --items.{what}-column; it has: "
            f"{', '.join(source.columns)}"
        )
    label_name = _found(settings.label_column, ("label",), source.columns, given)
    title = "title" if "title" in source.columns else ""
    names = [each for each in (id_name, name, label_name, title) if each]
    batches = list(source.read(list(dict.fromkeys(names)), 0))
    if not batches:
        raise InputError(f"{given} has no rows")
    read = pa.Table.from_batches(batches)
    columns = {each: read[each] for each in (title, name) if each}
    if id_name:
        columns["id"] = read[id_name]
        if not pa.types.is_integer(columns["id"].type):
            columns["id"] = columns["id"].cast(pa.string())
    if label_name:
        columns["label"] = read[label_name]
    return pa.table(columns), name


def _joined(*parts: Any) -> str:
    return " ".join(str(part).strip() for part in parts if part is not None)[:_MOST_CHARACTERS].strip()


def _found(wanted: str, usual: Sequence[str], columns: Mapping[str, Any], given: str) -> str:
    if wanted and wanted not in columns:
        raise InputError(f"{given} has no column {wanted!r}; it has: {', '.join(columns)}")
    return wanted or next((name for name in usual if name in columns), "")


def _images(sources: ItemSources, settings: ItemSettings) -> dict[str, pa.Table]:
    tables = {s: _image_table(getattr(sources, s), settings) for s in SPLITS if getattr(sources, s)}
    return _with_drawn(tables, sources, settings)


def _image_table(given: str, settings: ItemSettings) -> pa.Table:
    """The columns id, those of PLACE and, if there are classes, label."""
    root = Path(given).absolute()
    if root.suffix == ".tar":
        return _of_shards([root])
    if root.suffix.lower() in _SUFFIXES:
        raise InputError(f"{given} is one image; give a folder of images, a table of their paths, or tar shards")
    if not root.is_dir():
        return _of_paths(given, settings)
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES and path.is_file())
    names = [path.relative_to(root) for path in paths]
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]  # of other programs
    if not names and (shards := sorted(root.glob("*.tar"))):
        return _of_shards(shards)
    if not names:
        raise InputError(f"{given} has no images ({', '.join(_SUFFIXES[:4])}, ...)")
    columns = {"id": pa.array([str(name) for name in names]), "image": pa.array([str(root / name) for name in names])}
    classes, depths = {name.parts[0] for name in names}, {len(name.parts) for name in names}
    if depths == {2} and len(classes) > 1:
        columns["label"] = pa.array([name.parts[0] for name in names])
    elif depths != {1}:
        say(
            f"{given}: folders are classes only if there are several and all images are one folder deep; none are taken"
        )
    return pa.table(columns)


def _of_paths(given: str, settings: ItemSettings) -> pa.Table:
    """A table of paths, which are relative to its own folder; they are the ids if it has none."""
    if not Path(given).exists():
        raise InputError(f"there is no {given}; give a folder of images, a table of their paths, or tar shards")
    table, name = _read_table(given, settings, "image", settings.image_column, _IMAGES)
    if not is_text(table[name].type):
        raise InputError(f"{given}: the column {name} holds {table[name].type}; it must hold paths of images")
    paths = table[name].to_pylist()
    files = [str(Path(given).absolute().parent / (path or "")) for path in paths]
    if not any(Path(file).is_file() for file in files):
        raise InputError(f"none of the files that {given} lists exist, such as {files[0]}")
    own = {each: table[each] for each in ("id", "label") if each in table.column_names}
    return pa.table({"id": own.pop("id", pa.array(paths)), "image": pa.array(files)} | own)


def _of_shards(shards: Sequence[Path]) -> pa.Table:
    """Images of tar files, and their classes: the files KEY.jpg and KEY.cls belong together."""
    found: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, str] = {}
    passed = ""
    for shard in shards:
        try:
            with tarfile.open(shard, "r:") as tar:
                for member in tar:
                    folder, slash, file = member.name.removeprefix("./").rpartition("/")
                    name, _, kind = file.partition(".")
                    key = folder + slash + name
                    if file.startswith("."):  # of other programs, such as ._01.jpg
                        continue
                    if member.isreg() and not member.issparse() and f".{kind.lower()}" in _SUFFIXES:
                        if key in found:
                            raise InputError(f"{shard} has the key {key!r} a second time; make keys unique")
                        found[key] = (str(shard), member.offset_data, member.size)
                    elif member.isreg() and kind == "cls":
                        labels[key] = cast("IO[bytes]", tar.extractfile(member)).read(1000).decode("utf-8").strip()
                    elif Path(file).suffix.lower() in _SUFFIXES:
                        passed = passed or f"{shard}: {member.name}"
                if problem := why_no_end(shard, tar.offset):
                    raise InputError(f"{shard} {problem}")
        except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
            raise InputError(f"{shard} cannot be read as a tar file without compression: {error}") from error
    if not found:
        raise InputError(f"{shards[0]} has no images ({', '.join(_SUFFIXES[:4])}, ...)")
    if passed:
        say(f"passed over, because they are links or have several dots in their names: {passed}, perhaps others")
    columns = {"id": pa.array(list(found))}
    columns |= {name: pa.array(column) for name, column in zip(PLACE, zip(*found.values(), strict=True), strict=True)}
    if labels:
        columns["label"] = pa.array([labels.get(key) for key in found], pa.string())
    return pa.table(columns)


def _with_drawn(tables: dict[str, pa.Table], sources: ItemSources, settings: ItemSettings) -> dict[str, pa.Table]:
    """The same with queries and, only if these are drawn, too, a train split from the gallery."""
    if "queries" in tables:
        return tables
    gallery = tables["gallery"]
    _check("gallery", gallery, sources)
    size = len(gallery)
    order = np.random.default_rng(settings.draw_seed).permutation(size)
    queries = min(settings.draw_queries, int(_QUERY_SHARE * size))
    train = 0 if "train" in tables else min(settings.draw_train, int(_TRAIN_SHARE * size))
    if not queries:
        raise InputError(f"{size} items are too few to draw queries from; give --queries")
    picked = {
        "queries": order[:queries],
        "train": order[queries : queries + train],
        "gallery": order[queries + train :],
    }
    drawn = {split: gallery.take(pa.array(np.sort(rows))) for split, rows in picked.items() if len(rows)}
    return tables | drawn
