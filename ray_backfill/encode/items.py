"""What is to be embedded: texts or images of a user, as a gallery, queries and a train split, written in parts.

Texts come from any source of tables (``data.sources``), or with queries and judgements from a folder as BEIR or MTEB
has it, or from ir_datasets; images from a folder, whose subfolders are classes, a table of their paths, or tar shards.
Where there is one source only, queries and a train split are drawn from it at random.
"""

import re
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.progress import say, step
from ray_backfill.core.runkey import RunKey, fingerprint
from ray_backfill.core.schema import read_checked
from ray_backfill.core.stages import begin_stage, finish_stage, read_json, remove_halves
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.data.columns import is_text, part_files
from ray_backfill.data.qrels import read_qrels
from ray_backfill.data.sources import client_of, one_line, open_source
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import TEXT
from ray_backfill.images.archives import why_no_end

SPLITS = ("gallery", "queries", "train")
# Names that columns usually have, the first that is there counts. A title stands before its text.
_IDS = ("id", "_id", "doc_id", "docid", "pid", "query_id")
_TEXTS = ("text", "content", "body", "passage", "sentence", "question", "query")
_IMAGES = ("image", "path", "file", "file_name", "filename")
# How the files or folders of a collection are called in BEIR and on the Hugging Face Hub, where default lies in data.
_COLLECTION = {"corpus": ("corpus",), "queries": ("queries", "query"), "qrels": ("qrels", "default", "data")}
_ENDINGS, _IR_DATASETS = (".jsonl", ".tsv", ".parquet"), "ir_datasets:"
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
    split: str = ""
    """Of a folder with judgements: those that count, such as dev; empty: test, otherwise the first."""
    subset: str = ""
    """Of a folder with several collections: the one that counts, such as de of de-corpus and de-queries."""
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
        parts = _collection(path_of(sources.gallery, or_source=True), settings) if sources.modality == TEXT else {}
        if parts:
            tables = _of_collection(parts, sources, settings)
        elif sources.modality == TEXT and sources.gallery.startswith(_IR_DATASETS):
            tables = _of_ir_datasets(sources, settings)
        else:
            read = _text_table if sources.modality == TEXT else _image_table
            given = {split: source for split in SPLITS if (source := getattr(sources, split))}
            tables = _with_drawn({split: read(given[split], settings) for split in given}, sources, settings)
        for split, table in tables.items():
            _check(split, table, sources)
        _check_labels(tables)
        marks = {split: _mark(table) for split, table in tables.items()}
        made = asdict(replace(settings, id_column="", text_column="", image_column="", label_column=""))
        made = {name: value for name, value in made.items() if name not in ("split", "subset")}
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
    wanted = pa.array([str(item) for item in ids], pa.string())
    for part in part_files(items / "gallery.parquet"):
        table = read_checked(part)
        chosen = table.filter(pa.compute.is_in(table["id"].cast(pa.string()), wanted))
        if len(chosen):
            write_parquet(folder / "gallery.parquet" / part.name, chosen)
    finish_stage(folder, {"gallery_items": len(ids)})
    return folder


def items_fingerprint(folder: Path) -> str:
    """What a finished folder of items holds."""
    return fingerprint(sorted(read_json(folder / "manifest.json")["settings"].items()))


def _mark(table: pa.Table) -> str:
    if "image" in table.column_names:  # another file may have the same name
        stats = sorted(_stats(set(table["image"].to_pylist())).items())
        return fingerprint(stats, *(table[name].to_pylist() for name in table.column_names))
    return fingerprint(
        table.schema.names, *(fingerprint(chunk.to_pylist()) for column in table.columns for chunk in column.chunks)
    )


def _stats(paths: Collection[str]) -> dict[str, tuple[int, Any]]:
    """Size of each file, and what changes with its content; (0, 0) for those that are not there, which will be listed
    among the broken items. Cost: a look at each; of files in a store, a listing of each folder.
    """
    stats: dict[str, tuple[int, Any]] = {}
    folders = set()
    for path in paths:
        if in_store(place := path_of(path, or_source=True)):
            folders.add(place.parent)
            continue
        with suppress(OSError):
            status = place.stat()
            stats[path] = (status.st_size, status.st_mtime_ns)
    for folder in folders:
        entries = folder.bucket.children(folder.key)[1]
        stats |= {folder.bucket.uri(entry.key): (entry.size, entry.mark) for entry in entries}
    return {path: stats.get(path, (0, 0)) for path in paths}


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


def _collection(folder: Path, settings: ItemSettings) -> dict[str, dict[str, list[Path]]]:
    """The files of a folder as BEIR or MTEB has it: part of _COLLECTION -> split -> files. Empty for other sources.

    Raises InputError for a subset that is not there, or not said.
    """
    of = f"{settings.subset}-" if settings.subset else ""
    files = {part: _by_split(folder, [of + name for name in names]) for part, names in _COLLECTION.items()}
    if files["corpus"] and files["queries"]:
        return files
    ends = ("-corpus", "-queries")
    if subsets := set.intersection(*({path.name.split(end)[0] for path in folder.glob(f"*{end}*")} for end in ends)):
        raise InputError(f"{folder} has several collections; --items.subset names one: {', '.join(sorted(subsets))}")
    if settings.split or settings.subset:
        raise InputError(f"{folder} is no folder with {of}corpus and {of}queries; leave --items.split and subset out")
    return {}


def _by_split(folder: Path, names: Sequence[str]) -> dict[str, list[Path]]:
    """The first of these files, or the files of the first of these folders, such as test-00000-of-00002.parquet."""
    for name, ending in product(names, _ENDINGS):
        file, files = folder / f"{name}{ending}", dict[str, list[Path]]()
        for path in [file] if file.is_file() else sorted((folder / name).glob(f"*{ending}")):
            files.setdefault(re.sub(r"-\d+-of-\d+.*", "", path.stem), []).append(path)
        if files:
            return files
    return {}


def _of_collection(
    parts: Mapping[str, dict[str, list[Path]]], sources: ItemSources, settings: ItemSettings
) -> dict[str, pa.Table]:
    """The corpus and the judged queries of a folder. Both have the split of the judgements, or only one."""
    folder, judged = sources.gallery, parts["qrels"]
    if not judged:
        raise InputError(
            f"{folder} has no qrels, default or data; give another folder, or --texts and --queries as files"
        )
    split = settings.split or ("test" if "test" in judged else min(judged))
    if split not in judged:
        raise InputError(f"{unknown_name('--items.split', split, judged)} (of {folder})")

    def read(part: str) -> pa.Table:
        of_split = parts[part]
        if split not in of_split and len(of_split) > 1:
            raise InputError(f"{folder}: its {part} has the splits {', '.join(of_split)}, and none is {split}")
        files = of_split.get(split) or next(iter(of_split.values()))
        tables = [_text_table(str(file), settings, is_query=part == "queries") for file in files]
        tables = [table.set_column(0, "id", table["id"].cast(pa.string())) for table in tables]
        return pa.concat_tables(tables, promote_options="permissive")

    lines = (line for file in judged[split] for line in read_qrels(file).itertuples(index=False, name=None))
    return _judged(read("corpus"), read("queries"), lines, sources, settings)


def _of_ir_datasets(sources: ItemSources, settings: ItemSettings) -> dict[str, pa.Table]:
    """The documents and judged queries of a data set that ir_datasets knows, their texts as its default_text() says."""
    name = sources.gallery.removeprefix(_IR_DATASETS)
    with client_of(sources.gallery, "ir_datasets"):
        import ir_datasets
    with one_line(sources.gallery):
        try:
            given = ir_datasets.load(name)
        except KeyError:
            raise InputError(f"ir_datasets knows no {name!r}; this lists what it knows: ir_datasets list") from None
        if missing := [part for part in ("docs", "queries", "qrels") if not given.has(part)]:
            raise InputError(f"{sources.gallery} has no {' and no '.join(missing)}; name a part, such as {name}/test")
        docs = [(doc.doc_id, doc.default_text()[:_MOST_CHARACTERS].strip()) for doc in given.docs_iter()]
        asked = [(query.query_id, query.default_text()[:_MOST_CHARACTERS]) for query in given.queries_iter()]
        lines = [(line.query_id, line.doc_id, line.relevance) for line in given.qrels_iter()]
    gallery, queries = (
        pa.table({"id": pa.array([i for i, _ in rows], pa.string()), "text": pa.array([t for _, t in rows])})
        for rows in (docs, asked)
    )
    return _judged(gallery, queries, lines, sources, settings)


def _judged(
    gallery: pa.Table, queries: pa.Table, lines: Iterable[Any], sources: ItemSources, settings: ItemSettings
) -> dict[str, pa.Table]:  # fmt: skip
    """The corpus, and the queries that have right answers, with them. lines: query, item and grade; the last counts."""
    if sources.queries:
        raise InputError(f"{sources.gallery} has queries of its own; leave --queries out, or give files as --texts")
    answers: dict[str, dict[str, float]] = {}
    for query, item, grade in lines:
        answers.setdefault(query, {})[item] = grade
    answers = {query: right for query, of in answers.items() if (right := {i: g for i, g in of.items() if g > 0})}
    queries = queries.filter(pa.compute.is_in(queries["id"], pa.array(list(answers), pa.string())))
    there = set(gallery["id"].to_pylist())
    kept = [{i: g for i, g in answers[query].items() if i in there} for query in queries["id"].to_pylist()]
    if not any(kept):
        raise InputError(f"{sources.gallery} judges no item of the corpus for its queries; use files of one data set")
    positives = pa.array([list(items) for items in kept], pa.list_(pa.string()))
    grades = pa.array([list(items.values()) for items in kept], pa.list_(pa.float64()))
    queries = queries.append_column("positives", positives).append_column("grades", grades)
    tables = {"gallery": gallery, "queries": queries}
    return tables | ({"train": _text_table(sources.train, settings)} if sources.train else {})


def _text_table(given: str, settings: ItemSettings, is_query: bool = False) -> pa.Table:
    """The columns id, text and label of a source. is_query: only its text counts, with its white space, as in MTEB."""
    table, text_name = _read_table(given, settings, "text", settings.text_column, _TEXTS)
    has_title = "title" in table.column_names and not (settings.text_column or text_name == "title" or is_query)
    rows = zip(*(table[name].to_pylist() for name in ["title"] * has_title + [text_name]), strict=True)
    joined = (" ".join(str(part) for part in row if part is not None)[:_MOST_CHARACTERS] for row in rows)
    texts = pa.array([text if is_query else text.strip() for text in joined], pa.large_string())
    ids_and_labels = {name: table[name] for name in ("id", "label") if name in table.column_names}
    ids = ids_and_labels.pop("id", pa.array(np.arange(len(table))))
    return pa.table({"id": ids, "text": texts} | ids_and_labels)


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
    names = [column for column in (id_name, name, label_name, title) if column]
    batches = list(source.read(list(dict.fromkeys(names)), 0))
    if not batches:
        raise InputError(f"{given} has no rows")
    read = pa.Table.from_batches(batches)
    columns = {column: read[column] for column in (title, name) if column}
    if id_name:
        columns["id"] = read[id_name]
        if not pa.types.is_integer(columns["id"].type):
            columns["id"] = columns["id"].cast(pa.string())
    if label_name:
        columns["label"] = read[label_name]
    return pa.table(columns), name


def _found(wanted: str, usual: Sequence[str], columns: Mapping[str, Any], given: str) -> str:
    if wanted and wanted not in columns:
        raise InputError(f"{given} has no column {wanted!r}; it has: {', '.join(columns)}")
    return wanted or next((name for name in usual if name in columns), "")


def _image_table(given: str, settings: ItemSettings) -> pa.Table:
    """The columns id, those of PLACE and, if there are classes, label."""
    root = path_of(given, or_source=True).absolute()
    if root.suffix == ".tar":
        return _of_shards([root])
    if root.suffix.lower() in _SUFFIXES:
        raise InputError(f"{given} is one image; give a folder of images, a table of their paths, or tar shards")
    if not root.exists():
        raise InputError(f"there is no {given}; give a folder of images, a table of their paths, or tar shards")
    if not root.is_dir():  # paths are relative to the table's own folder; they are the ids if it has none
        table, name = _read_table(given, settings, "image", settings.image_column, _IMAGES)
        if not is_text(table[name].type):
            raise InputError(f"{given}: the column {name} holds {table[name].type}; it must hold paths of images")
        listed = table[name].to_pylist()
        files = [str(_place(root.parent, path or "")) for path in listed]
        if not any(path_of(file, or_source=True).is_file() for file in files):
            raise InputError(f"none of the files that {given} lists exist, such as {files[0]}")
        ids_and_labels = {column: table[column] for column in ("id", "label") if column in table.column_names}
        return pa.table({"id": ids_and_labels.pop("id", pa.array(listed)), "image": pa.array(files)} | ids_and_labels)
    below = root.sizes() if in_store(root) else (path for path in root.rglob("*") if path.is_file())
    paths: list[Path] = sorted(path for path in below if path.suffix.lower() in _SUFFIXES)
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


def _place(folder: Path, path: str) -> Path:
    return path_of(path, or_source=True) if path.startswith("/") or "://" in path else folder / path


def _of_shards(shards: Sequence[Path]) -> pa.Table:
    """Images of tar files, and their classes: the files KEY.jpg and KEY.cls belong together."""
    places: dict[str, tuple[str, int, int]] = {}
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
                        if key in places:
                            raise InputError(f"{shard} has the key {key!r} a second time; make keys unique")
                        places[key] = (str(shard), member.offset_data, member.size)
                    elif member.isreg() and kind == "cls":
                        labels[key] = cast("IO[bytes]", tar.extractfile(member)).read(1000).decode("utf-8").strip()
                    elif Path(file).suffix.lower() in _SUFFIXES:
                        passed = passed or f"{shard}: {member.name}"
                if problem := why_no_end(shard, tar.offset):
                    raise InputError(f"{shard} {problem}")
        except (OSError, tarfile.TarError, UnicodeDecodeError) as error:
            raise InputError(f"{shard} cannot be read as a tar file without compression: {error}") from error
    if not places:
        raise InputError(f"{shards[0]} has no images ({', '.join(_SUFFIXES[:4])}, ...)")
    if passed:
        say(f"passed over, because they are links or have several dots in their names: {passed}, perhaps others")
    columns = {"id": pa.array(list(places))}
    columns |= {name: pa.array(column) for name, column in zip(PLACE, zip(*places.values(), strict=True), strict=True)}
    if labels:
        columns["label"] = pa.array([labels.get(key) for key in places], pa.string())
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
