"""The ground truth of a folder of embeddings, and the checks that a folder must pass."""

from collections.abc import Sequence

import numpy as np

from ray_backfill.comparison.leakage import own_items
from ray_backfill.errors import InputError
from ray_backfill.store import EmbeddingFolder
from ray_backfill.systems import GroundTruth
from ray_backfill.truths import Truth, TruthRequest, parse_truth


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


def find_truth(
    folder: EmbeddingFolder, words: Sequence[str] = (), distance: str = "cosine", refuse_unknown_ids: bool = True
) -> Truth:
    """The right answers of each query. Weights are those of the queries' column, if the truth has none of its own.

    A query without right answers (an unknown class, one that the gallery lacks, or an empty list) is skipped and
    counted. A query that is a gallery item ignores that item.
    words: of ``--truth``; none: positives if the queries have any, otherwise labels (and cameras if known).
    refuse_unknown_ids: if False, positives that the gallery lacks (broken images) are ignored; a recipe's manifest
    counts what was left out.

    Raises:
        InputError: The truth cannot be made of this folder, or no query has a right answer.
    """
    kind, k, argument = parse_truth(words)
    found = kind.make(folder, TruthRequest(k, argument, distance, refuse_unknown_ids))
    truth = found.ground
    if truth.weights is None:
        truth = truth.with_weights((folder.queries or folder.gallery).weight)
    queries, items = own_items(folder)
    if len(queries):
        truth = truth.without(queries, items)
    if len(truth.skipped) == truth.n_queries:
        other = " other than itself" if len(queries) else ""
        raise InputError(
            f"no query of {folder.path} has a right answer in the gallery{other}: there is nothing to measure; compare "
            "the labels (or positives) of both files"
        )
    facts = {"truth": {"name": " ".join(words), "is_retention": kind.is_retention} | dict(found.facts)} if words else {}
    return Truth(truth, facts, found.notes)


def ground_truth(folder: EmbeddingFolder, refuse_unknown_ids: bool = True) -> GroundTruth:
    """The right answers that the folder itself holds; see ``find_truth``."""
    return find_truth(folder, refuse_unknown_ids=refuse_unknown_ids).ground
