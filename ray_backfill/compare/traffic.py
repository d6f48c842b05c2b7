"""When traffic retrieves each item for the first time: the order lazy backfills an item when a user first sees it.

Shapes: L queries of the log, N gallery items.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.truth import filter_of
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.systems import FloatArray, IntArray

# Results of a query that a user sees.
SEEN = 10
# Draws from the log for each of its queries: after these, what is seen at all has nearly always been seen.
_DRAWS = 20
_QUERIES = 512


def first_retrieved(
    folder: EmbeddingFolder, distance: str, seed: int, filter_column: str = ""
) -> NDArray[np.float64] | None:
    """(N,) place of each item in the order in which traffic retrieves items for the first time.

    Traffic: queries of ``log.parquet`` (``old`` embeddings, and ``weight`` if some are asked more often), drawn with
    replacement; each sees the first 10 results of the old service. Items that nobody sees come last, in random order.
    None: there is no log. filter_column: of log and gallery; a query finds only items with its own value.

    Cost: a search of the old gallery.

    Raises:
        InputError: The log cannot be read or lacks the filter column, or its embeddings are of another model.
    """
    log = folder.log
    if log is None:
        return None
    if log.old.shape[1] != folder.gallery.old.shape[1]:
        raise InputError(
            f"column 'old' has {log.old.shape[1]} dimensions in {log.path} and {folder.gallery.old.shape[1]} in "
            f"{folder.gallery.path}; use embeddings of one model"
        )
    rng = np.random.default_rng(seed)
    shares = np.ones(len(log)) if log.weight is None else log.weight
    asked = rng.choice(len(log), _DRAWS * len(log), p=shares / shares.sum())
    _, first = np.unique(asked, return_index=True)
    sequence = asked[np.sort(first)]  # only the first time that a query is asked can retrieve anything new
    seen = _results(folder.gallery.old, log.old, distance, _parts(folder, log, filter_column))[sequence].reshape(-1)
    items, first = np.unique(seen[seen >= 0], return_index=True)
    place = len(seen) + rng.permutation(len(folder.gallery)).astype(np.float64)
    place[items] = first
    return place


def _parts(folder: EmbeddingFolder, log: EmbeddingTable, column: str) -> list[tuple[IntArray, IntArray]]:
    """Queries of the log, and the items that they can find."""
    if column:
        return filter_of(folder.gallery, log, column).parts()
    return [(np.arange(len(log)), np.arange(len(folder.gallery)))]


def _results(
    gallery: FloatArray, queries: FloatArray, distance: str, parts: Sequence[tuple[IntArray, IntArray]]
) -> IntArray:
    """(L, SEEN) first results of the old service; -1 where a query can find fewer items."""
    seen = np.full((len(queries), SEEN), -1)
    with step("find what traffic retrieves", len(queries), "queries") as bar:
        for asked, items in parts:
            partition = make_partition(IndexSettings(), distance, gallery.shape[1], None)
            partition = partition.with_rows(gallery[items], np.arange(len(items)))
            k = min(SEEN, len(items))
            for first in range(0, len(asked), _QUERIES):
                some = asked[first : first + _QUERIES]
                seen[some, :k] = items[partition.search(queries[some], k).position]
                bar.advance(len(some))
    return seen
