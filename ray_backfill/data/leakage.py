"""Finds items that are in two splits at once, which makes figures better than they will be for other items.

Shapes: N gallery items, Q queries, K queries that are gallery items.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.outcome import Remark
from ray_backfill.data.columns import MODELS
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.vectors import hash_rows
from ray_backfill.data.words import words_of
from ray_backfill.engine.systems import GroundTruth, IntArray

# Memory for the words of the rows that are processed at a time.
_PIECE_BYTES = 32 << 20


def own_items(folder: EmbeddingFolder) -> tuple[IntArray, IntArray]:
    """(K,) queries that are gallery items, and (K,) which ones: the same id and the same embeddings.

    Equal ids alone mean nothing: many number each split from 0. None if the gallery queries itself.
    """
    gallery, queries = folder.gallery, folder.queries
    if queries is None or gallery.id.dtype.kind != queries.id.dtype.kind:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    at = pd.Index(gallery.id).get_indexer(pd.Index(queries.id))
    query_K = np.flatnonzero(at >= 0)
    item_K = at[query_K].astype(np.int64)
    same_K = np.ones(len(query_K), np.bool_)
    for model in _models(gallery, queries):
        of_query, of_item = queries.vectors[model], gallery.vectors[model]
        for rows in _pieces(len(query_K), of_query.shape[1]):
            same_K[rows] &= (of_query[query_K[rows]] == of_item[item_K[rows]]).all(axis=1)
    return query_K[same_K], item_K[same_K]


def leakage_notes(folder: EmbeddingFolder, truth: GroundTruth, is_fitted: bool) -> tuple[Remark, ...]:
    """Sentences for the report about items in two splits.

    truth: in which ``own_items`` are ignored. is_fitted: whether anything is fitted on the train split.
    Cost: a pass over the embeddings, and sorts of 8 bytes an item.
    """
    gallery, queries = folder.gallery, folder.queries
    is_fitted = is_fitted and folder.sample_path is None  # a sample of the gallery has a sentence of its own
    fitted = {"train": folder.train, "validation": folder.validation} if is_fitted else {}
    learned = {name: table for name, table in fitted.items() if table is not None}
    if queries is None and not learned:
        return ()
    tables = [table for table in (gallery, queries, *learned.values()) if table is not None]
    models = _models(*tables)
    of_gallery = _hashes(gallery, models)
    notes = []
    if queries is not None:
        of_queries = _hashes(queries, models)
        if own := len(own_items(folder)[0]):
            text = (
                f"{_some(own, len(queries), 'queries')} also in the gallery, with the same id and the same embeddings. "
                "Each of these items was left out of its own query's results, because a query finds itself first in "
                "any system."
            )
            notes.append(Remark(text, matters=False))
        if copies := _with_copies(of_queries, of_gallery, truth):
            text = (
                f"{_some(copies, len(queries), 'queries')} equal to a gallery item of another id, in every embedding. "
                "A query finds its copy first in any system, so the figures are too high if these are the same items. "
                f"Remove the copies from the gallery, or {words_of(folder.path)['same id']}: it is then left out of "
                "its own results."
            )
            notes.append(Remark.about(text, copies, len(queries)))
    for name, table in learned.items():
        of_table = _hashes(table, models)
        others = {"gallery items": of_gallery} | ({} if queries is None else {"queries": of_queries})
        seen = {split: int(np.isin(of_table, hashes).sum()) for split, hashes in others.items()}
        shared = [f"{_some(n, len(table), f'{name} items')} also {split}" for split, n in seen.items() if n]
        if shared:
            text = (
                f"{'; '.join(shared)}, with the same embeddings. Maps and merges were fitted on what they are measured "
                "on, so the figures of fitted methods can be too high for items that they have not seen. "
                f"Use {name} items that are neither in the gallery nor among the queries."
            )
            notes.append(Remark.about(text, max(n / len(others[split]) for split, n in seen.items()), 1))
    return tuple(notes)


def has_seen_queries(folder: EmbeddingFolder) -> bool:
    """Whether some train items are queries, with the same embeddings, so that queries say nothing of unseen items."""
    train, queries = folder.train, folder.queries or folder.gallery
    models = _models(queries, *([train] if train else []))
    return train is not None and bool(np.isin(_hashes(train, models), _hashes(queries, models)).any())


def _some(count: int, total: int, what: str) -> str:
    """The subject and the verb of a sentence: "All 12 queries are", "1 of 12 queries is", "The only query is"."""
    if total == 1:
        return f"The only {what.replace('queries', 'query').removesuffix('s')} is"
    return (
        f"All {total:,} {what} are"
        if count == total
        else f"{count:,} of {total:,} {what} {'is' if count == 1 else 'are'}"
    )


def _models(*tables: EmbeddingTable) -> list[str]:
    return [model for model in MODELS if all(model in table.vectors for table in tables)]


def _with_copies(of_queries: NDArray[np.uint64], of_gallery: NDArray[np.uint64], truth: GroundTruth) -> int:
    """Number of queries with an equal gallery item that their ranking does not ignore."""
    by_hash = np.argsort(of_gallery)
    ascending = of_gallery[by_hash]
    first, last = (np.searchsorted(ascending, of_queries, side) for side in ("left", "right"))
    copies_Q = last - first
    n_ignored_Q = np.diff(truth.ignored_starts)
    certain = copies_Q > n_ignored_Q
    unsure = np.flatnonzero((copies_Q > 0) & ~certain)
    found = [q for q in unsure.tolist() if not np.isin(by_hash[first[q] : last[q]], truth.ignored_of(q)).all()]
    return int(certain.sum()) + len(found)


def _hashes(table: EmbeddingTable, models: list[str]) -> NDArray[np.uint64]:
    """(N,) a hash of each item's embeddings by these models."""
    hashes_N = np.zeros(len(table), np.uint64)
    for number, model in enumerate(models):
        vectors = table.vectors[model]
        for rows in _pieces(*vectors.shape):
            hashes_N[rows] += hash_rows(vectors[rows], number)
    return hashes_N


def _pieces(rows: int, width: int) -> Iterator[slice]:
    step = max(1, _PIECE_BYTES // (8 * width))
    return (slice(first, first + step) for first in range(0, rows, step))
