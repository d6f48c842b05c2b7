"""When traffic retrieves each item for the first time: the order lazy backfills an item when a user first sees it.

Shapes: L queries of the log, N gallery items.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.index import IndexSettings, make_partition
from ray_backfill.progress import step
from ray_backfill.store import EmbeddingFolder, EmbeddingTable, read_table

# Results of a query that a user sees.
SEEN = 10
# Draws from the log for each of its queries: after these, what is seen at all has nearly always been seen.
_DRAWS = 20
_QUERIES = 512
LOG = "log.parquet"


def first_retrieved(folder: EmbeddingFolder, distance: str, seed: int) -> NDArray[np.float64] | None:
    """(N,) place of each item in the order in which traffic retrieves items for the first time.

    Traffic: queries of ``log.parquet`` (``old`` embeddings, and ``weight`` if some are asked more often), drawn with
    replacement; each sees the first 10 results of the old service. Items that nobody sees come last, in random order.
    None: there is no log.

    Cost: a search of the old gallery.

    Raises:
        InputError: The log cannot be read, or its embeddings are of another model.
    """
    if not (folder.path / LOG).exists():
        return None
    log = read_table(folder.path / LOG, ("old",), ("old",), are_queries=True)
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
    seen = _results(folder, log, distance)[sequence].reshape(-1)
    items, first = np.unique(seen, return_index=True)
    place = len(seen) + rng.permutation(len(folder.gallery)).astype(np.float64)
    place[items] = first
    return place


def mark_of_log(folder: EmbeddingFolder) -> str:
    """Changes with the log; "" without one."""
    path = folder.path / LOG
    return f"{path.stat().st_size} {path.stat().st_mtime_ns}" if path.is_file() else ""


def _results(folder: EmbeddingFolder, log: EmbeddingTable, distance: str) -> NDArray[np.int64]:
    """(L, SEEN) first results of the old service."""
    gallery = folder.gallery.old
    partition = make_partition(IndexSettings(), distance, gallery.shape[1], None)
    partition = partition.with_rows(gallery, np.arange(len(gallery)))
    seen = np.empty((len(log), min(SEEN, len(gallery))), np.int64)
    with step("find what traffic retrieves", len(log), "queries") as bar:
        for first in range(0, len(log), _QUERIES):
            some = slice(first, first + _QUERIES)
            seen[some] = partition.search(log.old[some], seen.shape[1]).position
            bar.advance(len(seen[some]))
    return seen
