"""The text list of a hybrid search: by BM25 over a column of texts, or read from a run file or a table.

Shapes: Q queries, N gallery items, L places of a list, P pairs of a query and an item in a file.
"""

from collections.abc import Iterator
from pathlib import Path
from sys import intern
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import detail, track
from ray_backfill.core.store_path import regular_file
from ray_backfill.data.columns import as_ids, as_numbers
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.sources import client_of, open_source
from ray_backfill.data.text import lines_of, texts_of
from ray_backfill.data.words import called, words_of
from ray_backfill.engine.systems import GroundTruth, IntArray

_COLUMNS = ("query", "item", "score")
_FORMS = "a TREC run (query Q0 item rank score tag), or a table (.parquet, .csv) with the columns query, item and score"


class TextLists(NamedTuple):
    """The first L items of each query by another score than the vectors' distance: the higher, the better.

    An item stands in a list at most once. Items that the query ignores, and items of other parts than its own
    (``GroundTruth.filter``), do not stand in it. A list may be empty.

    item: (Q, L) int64 gallery rows; -1 behind the last. score: (Q, L) float64, descending, ties by gallery row; -inf
    behind the last. Q: rows of ``folder.queries``, or of the gallery if it queries itself.
    """

    item: IntArray
    score: NDArray[np.float64]

    @classmethod
    def nothing(cls, truth: GroundTruth, retrieve: int) -> "TextLists":
        """Empty lists of at most ``retrieve`` places: L is the smaller of it and the gallery's size."""
        shape = truth.n_queries, min(retrieve, truth.n_gallery)
        return cls(np.full(shape, -1, np.int64), np.full(shape, -np.inf))


def bm25_lists(folder: EmbeddingFolder, column: str, retrieve: int, truth: GroundTruth) -> TextLists:
    """Rank the gallery for each query by BM25, as the package bm25s computes it by default.

    That is Lucene's variant with k1 = 1.5 and b = 0.75, in float32. The score of an item is the sum, over the terms of
    the query (a term as often as the query has it), of ln(1 + (N - n + 0.5) / (n + 0.5)) f / (f + k1 (1 - b + b l/m)):
    n items have the term, the item has it f times and has l terms, and the mean is m. Terms are words of two or more
    letters, digits or underscores in lower case, without 33 English stop words; they are not stemmed. So languages that
    put no spaces between words need another list (``read_lists``). The statistics are those of the whole gallery,
    with a filter, too, as of one collection. An item that shares no term with the query is not listed. A missing text
    has no terms. Lucene's own default is k1 = 1.2.

    Source: Kamphuis et al., "Which BM25 do you mean?", ECIR 2020, "Lucene (accurate)".

    Args:
        folder: Rows of its gallery and queries are matched with their texts in the files.
        column: Column of texts, which both gallery and queries have.
        retrieve: The most items of a list, at least 1.
        truth: Of this folder: what a query ignores, and what it can find.

    Raises:
        InputError: bm25s is not installed, a file does not have the column, it holds no texts, or no text of the
            gallery or of the queries has a term.

    Cost: 8 bytes of memory for each term of the gallery while it is indexed, then 12 bytes for each different term of
    an item; O(N) for each query.
    """
    with client_of("a text list by bm25", "bm25s"):
        import bm25s
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    known = bm25s.tokenize(_texts(gallery, column), show_progress=False)
    asked = bm25s.tokenize(_texts(queries, column), return_ids=False, show_progress=False)
    for table, terms in ((gallery, known.ids), (queries, asked)):
        if not any(terms):
            raise InputError(
                f"{called(table.path, column)} has no terms (words of two or more letters or digits, no English "
                "stop words); name another column of texts, or give the list as a file"
            )
    index = bm25s.BM25()
    with detail("index the texts"):
        index.index(known, show_progress=False)
    lists = TextLists.nothing(truth, retrieve)
    width = lists.item.shape[1]
    for query, terms in enumerate(track(asked, "rank by BM25", "queries")):
        score_N = index.get_scores_from_ids(index.get_tokens_ids(terms))
        score_N[truth.ignored_of(query)] = 0
        if truth.filter is not None:
            score_N[truth.filter.of_item != truth.filter.of_query[query]] = 0
        item = np.flatnonzero(score_N > 0)
        if len(item) > width:  # only these are sorted, with all ties at the cut
            item = item[score_N[item] >= np.partition(score_N[item], -width)[-width]]
        item = item[np.argsort(-score_N[item], kind="stable")[:width]]
        lists.item[query, : len(item)], lists.score[query, : len(item)] = item, score_N[item]
    return lists


def _texts(table: EmbeddingTable, column: str) -> Iterator[str]:
    """The text of each row of a split, with progress."""
    texts = texts_of(table, column).to_pylist()
    return track(iter(texts), f"terms of {called(table.path, in_short=True)}", "texts", len(table))


def read_lists(
    file: Path, folder: EmbeddingFolder, retrieve: int, truth: GroundTruth, by_rank: bool = False
) -> TextLists:
    """Read a list of each query from a file: the pairs of its highest scores, also if a score is 0.

    A file .parquet or .csv is a table with the columns query, item and score; any other one is a TREC run, whose lines
    are: query Q0 item rank score tag. Ranks and tags are ignored. Ids are those of the folder, compared as text. A
    query may have no pair. Pairs of ids that an import left out of the folder are left out, too.

    Args:
        file: Local path.
        folder: Its ids.
        retrieve: The most items of a list, at least 1.
        truth: Of this folder: what a query ignores, and what it can find.
        by_rank: Only the ranks of the list will be used (RRF), so scores may be negative.

    Raises:
        InputError: The file is empty, cannot be read, or is in neither form; an id is unknown; a score is not finite,
            or negative; or a query has an item twice. The message names the first line (or row, from 1 on) and how many
            there are.

    Cost: O(P log P); some 350 bytes of memory for each pair.
    """
    what, number_P, ids, score_P = _read_table(file) if file.suffix in (".parquet", ".csv") else _read_run(file)

    def refuse(is_bad_P: NDArray[np.bool_], why: str, remedy: str) -> None:
        """why: of the first one; its pair fills it in."""
        if is_bad_P.any():
            place = int(np.argmax(is_bad_P))
            reason = why.format(query=ids[0][place], item=ids[1][place], score=score_P[place])
            many = f" ({is_bad_P.sum():,} such {what}s)" if is_bad_P.sum() > 1 else ""
            raise InputError(f"{file}, {what} {number_P[place]:,}: {reason}{many}; {remedy}")

    refuse(~np.isfinite(score_P), "the score is {score:g}", "a score must be a finite number")
    if not by_rank:
        remedy = "fusions of scores need 0 or more: add a number to all of them, or fuse by ranks (fusion: rrf)"
        refuse(score_P < 0, "the score {score:g} is negative", remedy)
    rows, is_there_P = [], np.ones(len(score_P), np.bool_)
    tables = folder.queries or folder.gallery, folder.gallery
    for name, table, ids_P in zip(_COLUMNS, tables, ids, strict=False):
        row_P = pd.Index(table.id.astype(str)).get_indexer(pd.Index(ids_P))
        lacking_P = row_P < 0
        is_there_P &= ~lacking_P
        if lacking_P.any():
            lacking_P[lacking_P] = ~np.isin(ids_P[lacking_P].astype(str), table.left_out_ids())
        why = f"{called(table.path, in_short=True)} has no id {{{name}}}"
        refuse(lacking_P, why, f"compare its ids with {words_of(folder.path)['ids']}, or drop it")
        rows.append(row_P)
    query_P, item_P = rows
    pair_P = query_P * truth.n_gallery + item_P
    is_twice_P = is_there_P.copy()
    is_twice_P[is_there_P] = pd.Series(pair_P[is_there_P]).duplicated()
    refuse(is_twice_P, "query {query} has item {item} a second time", "keep one")

    of_query, of_item = np.repeat(np.arange(truth.n_queries), np.diff(truth.ignored_starts)), truth.ignored
    is_listed_P = is_there_P & ~np.isin(pair_P, of_query * truth.n_gallery + of_item)
    if truth.filter is not None:
        is_listed_P &= truth.filter.of_query[query_P] == truth.filter.of_item[item_P]
    query, item, score = query_P[is_listed_P], item_P[is_listed_P], score_P[is_listed_P]
    order = np.lexsort((item, -score, query))
    row = query[order]
    place = np.arange(len(row)) - np.searchsorted(row, row)
    lists = TextLists.nothing(truth, retrieve)
    is_first = place < lists.item.shape[1]
    at, chosen = (row[is_first], place[is_first]), order[is_first]
    lists.item[at], lists.score[at] = item[chosen], score[chosen]
    return lists


# What an entry is called, and of each its number from 1 on, its ids of query and item as text, and its score.
_Entries = tuple[str, IntArray, tuple[NDArray[np.object_], NDArray[np.object_]], NDArray[np.float64]]


def _read_table(file: Path) -> _Entries:
    source = open_source(str(file))
    source.need(_COLUMNS)
    batches = list(track(source.read(_COLUMNS, 0), "read the text lists", "parts"))
    if not sum(map(len, batches)):
        raise InputError(f"{file} is empty; give {_FORMS}")
    table = pa.Table.from_batches(batches)
    query, item = (as_ids(table[name], file, name).astype(str).astype(object) for name in _COLUMNS[:2])
    return "row", np.arange(1, len(table) + 1), (query, item), as_numbers(table["score"], file, "score")


def _read_run(file: Path) -> _Entries:
    numbers, queries, items, scores = [], [], [], []
    try:
        with regular_file(file).open("rb") as opened:
            for number, line in track(lines_of(opened, str(file)), "read the text lists", "lines"):
                words = line.decode().split()
                if not words:
                    continue
                if len(words) != 6:
                    raise InputError(f"{file}, line {number:,} has {len(words)} words; give {_FORMS}")
                try:
                    scores.append(float(words[4]))
                except ValueError:
                    raise InputError(
                        f"{file}, line {number:,}: the fifth word is the score, and {words[4]!r} is no number; mend it"
                    ) from None
                numbers.append(number)
                queries.append(intern(words[0]))  # each id is there many times, and takes 50 bytes
                items.append(intern(words[2]))
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from error
    if not numbers:
        raise InputError(f"{file} is empty; give {_FORMS}")
    ids = np.array(queries, object), np.array(items, object)
    return "line", np.array(numbers, np.int64), ids, np.array(scores, np.float64)
