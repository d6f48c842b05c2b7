"""The ground truth of a folder of embeddings, and the checks that a folder must pass."""

from collections.abc import Sequence

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.data.leakage import own_items
from ray_backfill.data.store import EmbeddingFolder, EmbeddingTable, kind_of
from ray_backfill.data.truths import Truth, TruthRequest, parse_truth
from ray_backfill.engine.systems import Filter, GroundTruth


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
        truth = truth.with_filter(parts)
        notes = (*notes, *_filter_notes(found.ground, truth, filter_column))
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


def _filter_notes(every: GroundTruth, own: GroundTruth, column: str) -> tuple[str, ...]:
    """A sentence about right answers that no filtered query can find."""
    lost = len(every.positives) - len(own.positives)
    if not lost:
        return ()
    return (
        f"{lost:,} of {len(every.positives):,} right answers have another {column} than their query. No query can find "
        "them, so they were left out.",
    )


def ground_truth(folder: EmbeddingFolder, refuse_unknown_ids: bool = True) -> GroundTruth:
    """The right answers that the folder itself holds; see ``find_truth``."""
    return find_truth(folder, refuse_unknown_ids=refuse_unknown_ids).ground
