"""Right answers: ways to know them, by the words of ``--truth``, and what a comparison makes of them."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.data import truths
from ray_backfill.data.columns import kind_of
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.leakage import own_items
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray


@dataclass(frozen=True, eq=False)
class Truth:
    """Right answers and what a report must say of them.

    ground: the right answers. facts: plain data for the manifest. notes: sentences for the report.
    """

    ground: GroundTruth
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TruthRequest:
    """What ``--truth`` asks for. k: the number in a name such as new-top10; 0 if it has none. argument: the word that
    follows the name. distance: of the comparison. refuse_unknown_ids: whether ids that the gallery lacks are an error.
    filter: what a query can find; None for all items.
    """

    k: int
    argument: str
    distance: str
    refuse_unknown_ids: bool = True
    filter: Filter | None = None


@dataclass(frozen=True)
class TruthKind:
    """A way to know right answers.

    name: as on the command line; a K in it stands for any number above 0. argument: what the word after the name is; ""
    if there is none. explains: a sentence for the help. make: makes the truth of a folder; raises InputError.
    is_retention: the new model's own results are taken as right, so nothing is said of how good they are.
    """

    name: str
    argument: str
    explains: str
    make: Callable[[EmbeddingFolder, TruthRequest], Truth]
    is_retention: bool = False


def _given(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Positives if the queries have any, labels otherwise."""
    has_positives = (folder.queries or folder.gallery).positives is not None
    return all_truths()["positives" if has_positives else "labels"].make(folder, request)


GIVEN = TruthKind("given", "", "Positives if the queries have them, labels otherwise.", _given)


def all_truths() -> dict[str, TruthKind]:
    """Every kind by name."""
    return {kind.name: kind for kind in own_rows(truths, "TRUTHS") + rows_from_outside("TRUTHS")}


def parse_truth(words: Sequence[str]) -> tuple[TruthKind, int, str]:
    """The kind that ``--truth`` names, its number K and its argument. No words: what the folder gives.

    Raises:
        InputError: The name is unknown, or its argument is missing or too much.
    """
    if not words:
        return GIVEN, 0, ""
    name, arguments = words[0], words[1:]
    for kind in all_truths().values():
        match = re.fullmatch(kind.name.replace("K", r"(\d+)"), name)
        if not match:
            continue
        k = int(match[1]) if match.groups() else 0
        if match.groups() and not k:
            raise InputError(f"--truth {name}: the number must be above 0")
        if len(arguments) != bool(kind.argument):
            wanted = f"one word after it, {kind.argument}" if kind.argument else "no word after it"
            raise InputError(f"--truth {name} takes {wanted}; got {len(arguments)}")
        return kind, k, arguments[0] if arguments else ""
    raise unknown_name("truth", name, (f"{kind.name} {kind.argument}".strip() for kind in all_truths().values()))


def find_truth(
    folder: EmbeddingFolder,
    words: Sequence[str] = (),
    distance: str = "cosine",
    refuse_unknown_ids: bool = True,
    filter_column: str = "",
) -> Truth:
    """The right answers of each query. Weights are those of the queries' column, if the truth has none of its own.

    A query without right answers (an unknown class, one that the gallery lacks, or an empty list) is skipped and
    counted. A query that is a gallery item ignores that item.
    words: of ``--truth``; none: positives if the queries have any, otherwise labels (and cameras if known).
    refuse_unknown_ids: if False, positives that the gallery lacks (broken images) are ignored; a recipe's manifest
    counts what was left out. filter_column: of queries and gallery; a query finds only items with its own value.

    Raises:
        InputError: The truth cannot be made of this folder, or no query has a right answer.
    """
    kind, k, argument = parse_truth(words)
    queries = folder.queries or folder.gallery
    parts = filter_of(folder.gallery, queries, filter_column) if filter_column else None
    found = kind.make(folder, TruthRequest(k, argument, distance, refuse_unknown_ids, parts))
    truth, notes = found.ground, found.notes
    if parts is not None:
        every, truth = len(truth.positives), truth.with_filter(parts)
        if lost := every - len(truth.positives):
            lacking = f"{lost:,} of {every:,} right answers have another {filter_column} than their query."
            notes = (*notes, f"{lacking} No query can find them, so they were left out.")
    if truth.weights is None:
        truth = truth.with_weights(queries.weight)
    own, items = own_items(folder)
    if len(own):
        truth = truth.without(own, items)
    if len(truth.skipped) == truth.n_queries:
        other = " other than itself" if len(own) else ""
        raise InputError(
            f"no query of {folder.path} has a right answer in the gallery{other}: there is nothing to measure; compare "
            "the labels (or positives) of both files"
        )
    facts = {"truth": {"name": " ".join(words), "is_retention": kind.is_retention} | dict(found.facts)} if words else {}
    return Truth(truth, facts | ({"filter": filter_column} if filter_column else {}), notes)


def ground_truth(folder: EmbeddingFolder, refuse_unknown_ids: bool = True) -> GroundTruth:
    """The right answers that the folder itself holds; see ``find_truth``."""
    return find_truth(folder, refuse_unknown_ids=refuse_unknown_ids).ground


def check_vectors(folder: EmbeddingFolder, distance: str) -> None:
    """Raises InputError for zero vectors under cosine; the message names file, column and row."""
    for table in (folder.gallery, folder.queries or folder.gallery):
        for column, vectors in table.vectors.items():
            zero = np.flatnonzero(~vectors.any(axis=1))
            if distance == "cosine" and len(zero):
                raise InputError(
                    f"{table.path}, column {column!r}: zero vector in row {zero[0]} ({len(zero)} in all), which has no "
                    "cosine distance; remove such rows or use --distance l2"
                )


def filter_of(gallery: EmbeddingTable, queries: EmbeddingTable, column: str) -> Filter:
    """Which gallery items a query can find: those with its own value in this column.

    Raises:
        InputError: The gallery or the queries lack the column, or no query has the value of an item.
    """
    of_gallery, of_queries = gallery.texts(column), queries.texts(column)
    if of_gallery.dtype.kind != of_queries.dtype.kind:
        raise InputError(
            f"--filter {column}: the column holds {kind_of(of_gallery)} in {gallery.path} but {kind_of(of_queries)} in "
            f"{queries.path}; use one type"
        )
    values = np.unique(np.concatenate([of_gallery, of_queries]))
    found = Filter(np.searchsorted(values, of_queries), np.searchsorted(values, of_gallery))
    if not found.parts():
        raise InputError(
            f"--filter {column}: no query of {queries.path} has the value of a gallery item, so none can find anything"
        )
    return found


def usual_answers(truth: GroundTruth) -> float:
    """The median number of right answers, of the queries that have any."""
    numbers = np.diff(truth.positive_starts)
    return float(np.median(numbers[numbers > 0]))


def positions_of(ids: Sequence[Any] | NDArray[Any], gallery_ids: NDArray[Any]) -> IntArray:
    """(n,) gallery positions of ids, -1 for those that the gallery lacks. Ids are compared as text."""
    if not len(ids):
        return np.empty(0, np.int64)
    at = pd.Index(gallery_ids.astype(str)).get_indexer(pd.Index(np.asarray(ids).astype(str)))
    return at.astype(np.int64)


def from_pairs(
    folder: EmbeddingFolder, where: str, queries: NDArray[Any], items: NDArray[Any], grades: NDArray[np.float64]
) -> tuple[GroundTruth, tuple[str, ...]]:
    """The ground truth of judged pairs, and notes on ids that the folder lacks.

    where: for messages. queries, items: (n,) ids. grades: (n,) grades above 0.

    Raises:
        InputError: No pair has both its ids in the folder, or a pair comes twice.
    """
    table = folder.queries or folder.gallery
    query_n, item_n = positions_of(queries, table.id), positions_of(items, folder.gallery.id)
    both = (query_n >= 0) & (item_n >= 0)
    if not both.any():
        raise InputError(
            f"no line of {where} has a query and an item of {folder.path}: compare its ids with the column 'id' of "
            "queries and gallery"
        )
    pairs = pd.DataFrame({"query": query_n[both], "item": item_n[both], "grade": grades[both]})
    repeated = pairs[pairs.duplicated(["query", "item"])]
    if len(repeated):
        query, item = table.id[repeated["query"].iloc[0]], folder.gallery.id[repeated["item"].iloc[0]]
        raise InputError(f"{where} judges item {item} twice for query {query}; keep one line")
    pairs = pairs.sort_values("query", kind="stable")
    starts = np.searchsorted(pairs["query"], np.arange(1, len(table)))
    positives, given = (np.split(pairs[name].to_numpy(), starts) for name in ("item", "grade"))
    ignored = [[query] for query in range(len(table))] if folder.queries is None else None
    graded = given if pairs["grade"].nunique() > 1 else None
    ground = GroundTruth.from_positives(positives, ignored, n_gallery=len(folder.gallery), grades=graded)
    notes = []
    if lost := int((query_n < 0).sum()):
        notes.append(f"Lines of {where} about queries that the folder lacks: {lost:,}. They were not used.")
    if lost := int(((query_n >= 0) & (item_n < 0)).sum()):
        notes.append(
            f"Right answers of {where} that are not in the gallery: {lost:,}. They were left out; with them every "
            "recall would be lower."
        )
    return ground, tuple(notes)
