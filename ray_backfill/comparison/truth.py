"""The ground truth of a folder of embeddings, and the checks that a folder must pass."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.comparison.leakage import own_items
from ray_backfill.errors import InputError
from ray_backfill.store import EmbeddingFolder, EmbeddingTable, kind_of
from ray_backfill.systems import GroundTruth, IntArray


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


def ground_truth(folder: EmbeddingFolder, refuse_unknown_ids: bool = True) -> GroundTruth:
    """The positives of each query: given by the queries if they have any, otherwise by labels (and cameras if known).

    Grades and weights are those of the queries' columns.

    The label -1 means that the class is unknown: such items are positives of no query, not even of each other. A query
    without positives (an unknown class, one that the gallery lacks, or an empty list) is skipped and counted. A query
    that is a gallery item ignores that item.
    refuse_unknown_ids: if False, positives that the gallery lacks (broken images) are ignored; a recipe's manifest
    counts what was left out.

    Raises:
        InputError: There are neither labels nor positives, they have different types, an id is unknown, or no query has
            a positive.
    """
    truth = _truth(folder, refuse_unknown_ids).with_weights((folder.queries or folder.gallery).weight)
    queries, items = own_items(folder)
    if len(queries):
        truth = truth.without(queries, items)
    if len(truth.skipped) == truth.n_queries:
        other = " other than itself" if len(queries) else ""
        raise InputError(
            f"no query of {folder.path} has a right answer in the gallery{other}: there is nothing to measure; compare "
            "the labels (or positives) of both files"
        )
    return truth


def _truth(folder: EmbeddingFolder, refuse_unknown_ids: bool) -> GroundTruth:
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    if queries.positives is not None:
        return _truth_from_ids(gallery, queries, folder.queries is None, refuse_unknown_ids)
    if queries.grades is not None:
        raise InputError(f"{queries.path} has a column 'grades' without a column 'positives'; add that, or rename it")
    if (gallery.camera is None) != (queries.camera is None):
        raise InputError(f"column 'camera' is in only one of {gallery.path} and {queries.path}; give both, or neither")
    for table in (gallery, queries):
        if table.label is None:
            raise InputError(f"{table.path} has no column 'label'; add it, or give the queries a column 'positives'")
    assert gallery.label is not None
    assert queries.label is not None
    if gallery.label.dtype.kind != queries.label.dtype.kind:
        raise InputError(
            f"labels are {kind_of(gallery.label)} in {gallery.path} but {kind_of(queries.label)} in {queries.path}; "
            "use one type"
        )
    names = np.unique(np.concatenate([gallery.label, queries.label]))
    gallery_N = query_Q = _numbers(gallery.label, names, len(names))
    if folder.queries is not None:
        query_Q = _numbers(queries.label, names, len(names) + len(gallery))
    return GroundTruth.from_labels(
        query_Q,
        gallery_N,
        exclude_self=folder.queries is None,
        query_cameras=queries.camera,
        gallery_cameras=gallery.camera,
    )


def _numbers(labels_N: NDArray[Any], names: NDArray[Any], first_free: int) -> IntArray:
    """The number of each label among ``names``; each item with the label -1 gets its own number."""
    nobody_N = labels_N == -1 if labels_N.dtype.kind == "i" else np.zeros(len(labels_N), bool)
    own_N = first_free + np.arange(len(labels_N))
    return np.where(nobody_N, own_N, np.searchsorted(names, labels_N)).astype(np.int64)


def _truth_from_ids(
    gallery: EmbeddingTable, queries: EmbeddingTable, exclude_self: bool, refuse_unknown: bool
) -> GroundTruth:
    index = pd.Index(gallery.id)

    def positions(column: str, rows: Sequence[NDArray[Any]] | None) -> list[IntArray]:
        found = []
        for query, ids in enumerate(rows or [np.empty(0)] * len(queries)):
            if len(ids) and ids.dtype.kind != gallery.id.dtype.kind:
                raise InputError(
                    f"{queries.path}, column {column!r} holds {kind_of(ids)}, but the ids of {gallery.path} are "
                    f"{kind_of(gallery.id)}; use one type"
                )
            at = index.get_indexer(pd.Index(ids)) if len(ids) else np.empty(0, np.int64)
            if refuse_unknown and (at < 0).any():
                missing = ids[np.argmax(at < 0)]
                raise InputError(f"{queries.path}, column {column!r}, row {query}: the gallery has no id {missing!s}")
            found.append(at.astype(np.int64))
        return found

    positives, ignored = positions("positives", queries.positives), positions("ignored", queries.ignored)
    grades = queries.grades
    if grades is not None:
        unequal = [len(own) != len(given) for own, given in zip(grades, positives, strict=True)]
        if any(unequal):
            raise InputError(
                f"{queries.path}, column 'grades', row {unequal.index(True)}: as many numbers as the row has positives "
                "are needed"
            )
        grades = [own[at >= 0] for own, at in zip(grades, positives, strict=True)]
    positives, ignored = ([at[at >= 0] for at in rows] for rows in (positives, ignored))
    if exclude_self:
        ignored = [np.append(row, query) for query, row in enumerate(ignored)]
    return GroundTruth.from_positives(positives, ignored, n_gallery=len(gallery), grades=grades)
