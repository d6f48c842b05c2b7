"""Judgements in files, in the forms of the field; the first line, or the ending .parquet, tells which it is.

TREC's         query, iteration, item and grade, with white space between them
BEIR's         query, item and grade with tabs between them, perhaps below their names
JSON lines     {"query": ID, "relevant": [ID, ...]}, {"query": ID, "relevant": {ID: GRADE, ...}}, or as in Parquet
Parquet        the columns query-id, corpus-id and score, as MTEB's data sets have them
"""

import csv
import json
from collections.abc import Callable, Iterator
from math import isfinite, isnan, nan
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import regular_file
from ray_backfill.data.sources import open_source
from ray_backfill.data.text import lines_of

_COLUMNS = ("query-id", "corpus-id", "score")
_by_name = itemgetter(*_COLUMNS)

# Query, item and grade, not checked yet. Reading them raises ValueError, which says what is wrong with their line.
Judgements = Iterator[tuple[Any, Any, Any]]


def read_qrels(path: Path) -> pd.DataFrame:
    """Query and item (text) and grade (finite) of each judgement, in the order of the file. The index, "line" or "row"
    (of Parquet), has their numbers from 1 on.

    Raises:
        InputError: The file cannot be read or is empty, or a line, which is named, is in none of the forms.
    """
    what, entries = ("row", _rows) if path.suffix == ".parquet" else ("line", _lines)
    read = []
    try:
        for number, judgements in entries(path):
            try:
                read += [(number, _id(query), _id(item), _number(grade)) for query, item, grade in judgements]
            except ValueError as error:
                raise InputError(f"{path}, {what} {number}: {error}; mend it, or drop it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    if not read:
        raise InputError(f"{path} is empty")
    return pd.DataFrame(read, columns=[what, "query", "item", "grade"]).set_index(what)


def _lines(path: Path) -> Iterator[tuple[int, Judgements]]:
    form: Callable[[bytes], Judgements] | None = None
    with regular_file(path).open("rb") as opened:
        for number, line in lines_of(opened, str(path)):
            if not line.strip():
                continue
            if form is None:
                tabs = _fields(line) if line.count(b"\t") > 1 else []
                form = _of_json if line.lstrip().startswith(b"{") else _of_beir if len(tabs) == 3 else _of_trec
                if form is _of_beir and isnan(_as_float(tabs[-1])):  # the names of the columns
                    continue
            yield number, form(line)


def _rows(path: Path) -> Iterator[tuple[int, Judgements]]:
    source = open_source(str(path))
    source.need(_COLUMNS)
    rows = (row for batch in source.read(_COLUMNS, 0) for row in batch.to_pylist())
    yield from ((number, iter([_by_name(row)])) for number, row in enumerate(rows, 1))


def _of_trec(line: bytes) -> Judgements:
    words = [word.decode() for word in line.split()]
    if len(words) != 4:
        raise ValueError(
            f"must have four words (query, iteration, item, grade), or three with tabs between them, not {len(words)}"
        )
    yield words[0], words[2], words[3]


def _of_beir(line: bytes) -> Judgements:
    fields = _fields(line)
    if len(fields) != 3:
        raise ValueError(f"must have three fields with tabs between them (query, item, grade), not {len(fields)}")
    yield fields[0], fields[1], fields[2]


def _of_json(line: bytes) -> Judgements:
    try:
        row = json.loads(line)
        if "query-id" in row:
            yield _by_name(row)
            return
        query, relevant = row["query"], row["relevant"]
        pairs = relevant.items() if isinstance(relevant, dict) else [(item, 1) for item in relevant]
        if isinstance(relevant, str):
            raise ValueError
    except (ValueError, LookupError, TypeError, RecursionError):
        raise ValueError(
            'must be {"query": ID, "relevant": [ID, ...]}, or {ID: GRADE, ...} in place of the list'
        ) from None
    yield from ((query, item, grade) for item, grade in pairs)


def _fields(line: bytes) -> list[str]:
    text = line.decode().rstrip("\r\n")
    try:
        return next(csv.reader([text], delimiter="\t")) if '"' in text else text.split("\t")
    except csv.Error:
        return []


def _id(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ValueError(f"an id must be a text or a whole number, not {value!r}")
    return str(value)


def _number(value: Any) -> float:
    if not isfinite(grade := _as_float(value)):
        raise ValueError(f"the grade must be a finite number, not {value!r}")
    return grade


def _as_float(value: Any) -> float:
    try:
        return nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return nan
