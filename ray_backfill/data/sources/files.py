"""Tables in files: Parquet, Arrow, CSV, TSV and JSON lines, one file or a folder of one type; local, s3:// or gs://.

A file in a store is read in its local copy; of a Parquet file without rows to read, its last bytes are.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.fs
import pyarrow.ipc
import pyarrow.json
import pyarrow.parquet as pq

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import footers
from ray_backfill.core.store_path import in_store, path_of, regular_file
from ray_backfill.data.identity import one_model_each, stated_in, stating
from ray_backfill.data.sources import BATCH_ROWS, Source, SourceKind, skipping
from ray_backfill.data.text import check_json_lines, lines_of

_ARROW = (".arrow", ".feather", ".ipc")
_TEXT = {".csv": ",", ".tsv": "\t"}
_LINES = (".jsonl", ".ndjson")
_SUFFIXES = (".parquet", *_ARROW, *_TEXT, *_LINES)
_REMOTE = ("s3://", "gs://", "file://")

# Files and folders of other types before a folder is given up: while none of a known type is found, and at all.
_MOST_WITHOUT, _MOST_OTHERS = 10_000, 1_000_000

_DISK = pa.fs.LocalFileSystem(use_mmap=True)


def _open(text: str) -> Source:
    with _problems(text):
        files = _files(path_of(text), text)
        opened: _Opened = _OPEN[_suffix(files[0].name)](files)
        facts = [(file, file.stat()) for file in files]
    mark = blake2b("\n".join(f"{file} {of.st_size} {of.st_mtime_ns}" for file, of in facts).encode(), digest_size=12)
    columns = {field.name: field.type for field in opened.schema}
    if len(columns) < len(opened.schema):
        raise InputError(f"{text} has two columns of one name; rename one")

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        with _problems(text):
            for batch in opened.read(names, skip):
                batch.validate(full=True)  # what is not UTF-8 would be found far from here, or by others
                yield batch

    return Source(text, columns, opened.rows, read, mark.hexdigest(), models=stated_in(opened.schema.metadata, text))


class _Opened(NamedTuple):
    """Files of one type. rows: None if that is not known before they are read."""

    schema: pa.Schema
    rows: int | None
    read: Callable[[Sequence[str], int], Iterator[pa.RecordBatch]]


def _open_parquet(files: Sequence[Path]) -> _Opened:
    heads = footers(files)
    schema = _one_schema(files, [head.schema.to_arrow_schema() for head in heads])

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        for file, head in zip(files, heads, strict=True):
            if skip >= head.num_rows:
                skip -= head.num_rows
                continue
            group = 0
            while skip and skip >= head.row_group(group).num_rows:
                skip -= head.row_group(group).num_rows
                group += 1
            groups = range(group, head.num_row_groups)
            with pq.ParquetFile(file, memory_map=True, pre_buffer=True) as opened:
                yield from skipping(opened.iter_batches(BATCH_ROWS, groups, list(names)), skip)
            skip = 0

    return _Opened(schema, sum(head.num_rows for head in heads), read)


def _open_arrow(files: Sequence[Path]) -> _Opened:
    """Arrow files, random access or streams (as Hugging Face's datasets are)."""

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            with _DISK.open_input_file(os.fspath(file)) as opened:
                reader = _arrow_reader(opened)
                if isinstance(reader, pa.ipc.RecordBatchFileReader):
                    reader = map(reader.get_batch, range(reader.num_record_batches))
                yield from (batch.select(list(names)) for batch in reader)

    schemas = []
    for file in files:
        with _DISK.open_input_file(os.fspath(file)) as opened:
            schemas.append(_arrow_reader(opened).schema)
    return _Opened(_one_schema(files, schemas), None, lambda names, skip: skipping(batches(names), skip))


def _arrow_reader(opened: Any) -> Any:
    try:
        return pa.ipc.open_file(opened)
    except pa.ArrowInvalid:
        opened.seek(0)
        return pa.ipc.open_stream(opened)


def _open_text(delimiter: str, files: Sequence[Path]) -> _Opened:
    parse = pa.csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def opened(file: Path, **convert: Any) -> Any:
        content = _DISK.open_input_stream(os.fspath(file))
        return pa.csv.open_csv(content, parse_options=parse, convert_options=pa.csv.ConvertOptions(**convert))

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            # The type of a column is that of the first block of the first file, so that an id is text everywhere.
            types = {field.name: field.type for field in schema}
            try:
                yield from opened(file, include_columns=list(names), column_types=types)
            except pa.ArrowInvalid as error:
                if "invalid UTF8" in str(error):
                    _refuse_bytes([file])
                raise

    schema = opened(files[0]).schema
    try:  # Arrow takes a text that is not UTF-8 as bytes: a heading, or a column
        has_bytes = any(pa.types.is_binary(field.type) for field in schema if field.name is not None)
    except UnicodeDecodeError:
        has_bytes = True
    if has_bytes:
        _refuse_bytes(files)
    # Integers with a value such as 007 in the first block are ids, which would lose their zeros.
    as_text = {field.name: pa.string() for field in schema if pa.types.is_integer(field.type)}
    for block in islice(opened(files[0], column_types=as_text), 1):
        for name in as_text:
            if pc.any(pc.match_substring_regex(block.column(name), "^0[0-9]")).as_py():
                number = schema.get_field_index(name)
                schema = schema.set(number, schema.field(number).with_type(pa.string()))
    return _Opened(schema, None, lambda names, skip: skipping(batches(names), skip))


def _refuse_bytes(files: Sequence[Path]) -> NoReturn:
    """Raises InputError, which says where the first text is that is not UTF-8."""
    for file in files:
        with file.open("rb") as opened:
            deque(lines_of(opened, str(file)), maxlen=0)
    raise InputError(f"{files[0]} has a column of bytes; give text in UTF-8")


def _open_lines(files: Sequence[Path]) -> _Opened:
    """One JSON object in each line. A file is read whole, and kept until another one is read."""

    @lru_cache(maxsize=1)
    def read(file: Path) -> pa.Table:
        with file.open("rb", 1 << 20) as opened:
            check_json_lines(opened, str(file))
        with _DISK.open_input_stream(os.fspath(file)) as opened:
            return pa.json.read_json(opened)

    def batches(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from read(file).select(list(names)).to_batches(BATCH_ROWS)

    schema = _one_schema(files, [read(file).schema for file in files])
    return _Opened(schema, None, lambda names, skip: skipping(batches(names), skip))


_OPEN: dict[str, Callable[[Sequence[Path]], _Opened]] = {
    ".parquet": _open_parquet,
    **dict.fromkeys(_ARROW, _open_arrow),
    **{suffix: partial(_open_text, delimiter) for suffix, delimiter in _TEXT.items()},
    **dict.fromkeys(_LINES, _open_lines),
}


def _one_schema(files: Sequence[Path], schemas: Sequence[pa.Schema]) -> pa.Schema:
    for file, schema in zip(files, schemas, strict=True):
        if not schema.equals(schemas[0]):
            raise InputError(f"{file} has other columns than {files[0]}; all files need the same ones")
    stated = ((str(file), stated_in(schema.metadata, str(file))) for file, schema in zip(files, schemas, strict=True))
    return stating(schemas[0].empty_table(), one_model_each(stated)).schema


def _files(path: Path, text: str) -> list[Path]:
    """The file, or the files of the one known type in a folder, by name."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"{text} does not exist")
    below = path.sizes() if in_store(path) else map(Path, _tables_below(str(regular_file(path))))
    files = sorted((file for file in below if _suffix(file.name)), key=str)
    suffixes = sorted({_suffix(file.name) for file in files})
    if len(suffixes) != 1:
        has = f"files of several types ({', '.join(suffixes)})" if suffixes else f"no file of {', '.join(_SUFFIXES)}"
        raise InputError(f"{text} has {has}; name one file, or a folder of one type")
    return files


def _tables_below(path: str) -> list[str]:
    """The files of known types in a local folder. Raises InputError for a folder that is too large to be one of these.

    Links to folders are followed, each folder once.
    """
    tables, seen, folders = list[str](), 0, set[str]()
    for folder, inner, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in folders:
            inner.clear()
            continue
        folders.add(real)
        tables += [f"{folder.rstrip('/')}/{name}" for name in names if _suffix(name)]
        seen += len(inner) + len(names)
        if len({_suffix(file) for file in tables}) > 1:
            break  # which the caller refuses
        if seen - len(tables) > (_MOST_OTHERS if tables else _MOST_WITHOUT):
            raise InputError(
                f"{path} holds more than {seen - len(tables) - 1:,} files and folders that are no "
                f"{', '.join(_SUFFIXES)}; name the folder of the vectors itself, or one file"
            )
    return tables


def _suffix(path: str) -> str:
    name = path.rsplit("/", 1)[-1]
    return "" if name.startswith((".", "_")) else next((s for s in _SUFFIXES if name.lower().endswith(s)), "")


@contextmanager
def _problems(text: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        said = " ".join(str(error).split())
        remedy = "; a column of text must have text in its first rows, too" if "conversion error" in said else ""
        remedy = "; write its texts again as UTF-8" if "Invalid UTF8" in said else remedy
        raise InputError(f"{text} cannot be read: {said}{remedy}") from error


def _is_table(text: str) -> bool:
    if text.startswith(_REMOTE):
        return True
    if ("://" in text or re.match(r"\w+:", text) or "=" in text) and not Path(text).exists():
        return False
    return bool(_suffix(text)) or (Path(text).is_dir() and not text.rstrip("/").endswith(".lance"))


SOURCES = (
    SourceKind(
        "table",
        "items.parquet, a folder of Parquet, Arrow or CSV files, a Hugging Face dataset folder, s3://bucket/items/",
        _is_table,
        _open,
    ),
)
