"""Right answers that the folder itself holds: labels, or lists of positives."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.columns import kind_of
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.truth import Truth, TruthKind, TruthRequest
from ray_backfill.engine.systems import GroundTruth, IntArray


def _from_positives(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    queries = folder.queries or folder.gallery
    if queries.positives is None:
        raise InputError(f"{queries.path} has no column 'positives'; add it, or choose another --truth")
    return Truth(_truth_from_ids(folder.gallery, queries, folder.queries is None, request.refuse_unknown_ids))


def _from_labels(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Items with the label of a query are its right answers. Cameras count if both sides have them.

    The label -1 means that the class is unknown: such items are positives of no query, not even of each other.
    """
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    if queries.grades is not None and queries.positives is None:
        raise InputError(f"{queries.path} has a column 'grades' without a column 'positives'; add that, or rename it")
    if (gallery.camera is None) != (queries.camera is None):
        raise InputError(f"column 'camera' is in only one of {gallery.path} and {queries.path}; give both, or neither")
    for table in (gallery, queries):
        if table.label is None:
            raise InputError(
                f"{table.path} has no column 'label'; add it, or give the queries a column 'positives', or say by "
                "--truth what else is right (new-top1 needs nothing)"
            )
    return Truth(_of_labels(gallery, queries, folder.queries is None))


def _known_item(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Items with the same value in a column belong together: chunks of a document, crops of an image."""
    gallery, queries = (
        replace(table, label=table.texts(request.argument), camera=None)
        for table in (folder.gallery, folder.queries or folder.gallery)
    )
    return Truth(_of_labels(gallery, queries, folder.queries is None), {"column": request.argument})


def _of_labels(gallery: EmbeddingTable, queries: EmbeddingTable, exclude_self: bool) -> GroundTruth:
    assert gallery.label is not None
    assert queries.label is not None
    if gallery.label.dtype.kind != queries.label.dtype.kind:
        raise InputError(
            f"labels are {kind_of(gallery.label)} in {gallery.path} but {kind_of(queries.label)} in {queries.path}; "
            "use one type"
        )
    names = np.unique(np.concatenate([gallery.label, queries.label]))
    gallery_N = query_Q = _numbers(gallery.label, names, len(names))
    if not exclude_self:
        query_Q = _numbers(queries.label, names, len(names) + len(gallery))
    return GroundTruth.from_labels(
        query_Q, gallery_N, exclude_self=exclude_self, query_cameras=queries.camera, gallery_cameras=gallery.camera
    )


def _numbers(labels_N: NDArray[Any], names: NDArray[Any], first_free: int) -> IntArray:
    """The number of each label among ``names``; each item with the label -1 gets its own number."""
    nobody_N = labels_N == -1 if labels_N.dtype.kind == "i" else np.zeros(len(labels_N), bool)
    own_N = first_free + np.arange(len(labels_N))
    return np.where(nobody_N, own_N, np.searchsorted(names, labels_N)).astype(np.int64)


def _truth_from_ids(
    gallery: EmbeddingTable, queries: EmbeddingTable, exclude_self: bool, refuse_unknown: bool
) -> GroundTruth:
    index, left_out = pd.Index(gallery.id), gallery.left_out_ids()

    def positions(column: str, rows: Sequence[NDArray[Any]] | None) -> list[IntArray]:
        """The gallery position of each query's ids, -1 for those that the gallery lacks."""
        lengths = [len(ids) for ids in rows or ()]
        if rows is None or not sum(lengths):
            return [np.empty(0, np.int64)] * len(queries)
        ids = np.concatenate([ids for ids in rows if len(ids)])
        if ids.dtype.kind != gallery.id.dtype.kind:
            raise InputError(
                f"{queries.path}, column {column!r} holds {kind_of(ids)}, but the ids of {gallery.path} are "
                f"{kind_of(gallery.id)}; use one type"
            )
        at = index.get_indexer(pd.Index(ids)).astype(np.int64)
        lacking = np.flatnonzero(at < 0)
        lacking = lacking[~np.isin(ids[lacking].astype(str), left_out)]
        if refuse_unknown and len(lacking):
            query, missing = np.repeat(np.arange(len(rows)), lengths)[lacking[0]], ids[lacking[0]]
            raise InputError(f"{queries.path}, column {column!r}, row {query}: the gallery has no id {missing!s}")
        return np.split(at, np.cumsum(lengths)[:-1])

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


TRUTHS = (
    TruthKind("labels", "", "Items with the label of the query are right.", _from_labels),
    TruthKind("positives", "", "The ids in the queries' column 'positives' are right.", _from_positives),
    TruthKind(
        "known-item",
        "COLUMN",
        "Items with the query's value in this column are right: chunks of one document, crops of one image.",
        _known_item,
    ),
)
