"""What the new model finds is taken as right: it needs no labels, and says nothing of how good the new model is."""

from dataclasses import replace

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import step
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.data.truth import Truth, TruthKind, TruthRequest
from ray_backfill.engine.index import IndexSettings, make_partition
from ray_backfill.engine.systems import GroundTruth, IntArray

_QUERIES = 512


def _new_top(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """The k items that {new, new} finds first are a query's right answers.

    A query that is a gallery item does not find itself. Cost: a search of the new gallery.
    """
    gallery, queries = folder.gallery, folder.queries or folder.gallery
    is_self = folder.queries is None
    everything = [(np.arange(len(queries)), np.arange(len(gallery)))]
    parts = request.filter.parts() if request.filter else everything
    most = max(len(items) for _, items in parts) - is_self
    if request.k >= most:
        smaller = f"; use a smaller number, such as new-top{max(1, most // 10)}" if most > 1 else ""
        raise InputError(
            f"--truth new-top{request.k}: a query can find {most:,} items, so all of them would be right, and every "
            f"method would be at 100 %{smaller}"
        )
    found: list[IntArray] = [np.empty(0, np.int64)] * len(queries)
    with step("find what the new model finds", len(queries), "queries") as bar:
        for rows, items in parts:
            partition = make_partition(IndexSettings(), request.distance, gallery.new.shape[1], None)
            partition = partition.with_rows(gallery.new[items], items)
            k = min(request.k, len(items) - is_self)
            for first in range(0, len(rows), _QUERIES):
                some = rows[first : first + _QUERIES]
                position = partition.search(queries.new[some], k + is_self).position
                if is_self:
                    own = position == some[:, None]
                    own[~own.any(axis=1), -1] = True  # it may be hidden behind its copies
                    position = position[~own].reshape(len(some), -1)
                for query, own_items in zip(some.tolist(), position, strict=True):
                    found[query] = own_items
                bar.advance(len(some))
    ignored = [[query] for query in range(len(queries))] if is_self else None
    ground = GroundTruth.from_positives(found, ignored, n_gallery=len(gallery))
    return Truth(replace(ground, weights=None), {"k": request.k})


TRUTHS = (
    TruthKind(
        "new-topK",
        "",
        "The K items that the finished upgrade finds first are right: how much of the new model's answer users get.",
        _new_top,
        is_retention=True,
    ),
)
