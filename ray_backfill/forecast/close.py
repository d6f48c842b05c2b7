"""Items that are probably close to the chosen queries after the upgrade, by their stand-ins."""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import GroundTruth, IntArray
from ray_backfill.forecast.sample import FindClose

# Items of a query that count.
_NEAREST = 200
_BLOCK = 16


def closest_stand_ins(form: ProductForm, truth: GroundTruth) -> FindClose:
    """Rank items by the sum of 1 / rank over the chosen queries, among each one's nearest stand-ins.

    form: distances from new queries to stand-ins. Cost: one product of the chosen queries with the gallery.
    """

    def find(queries: IntArray, taken_N: NDArray[np.bool_]) -> IntArray:
        score_N = np.zeros(len(taken_N))
        nearest = min(_NEAREST, len(taken_N))
        for first in range(0, len(queries), _BLOCK):
            block = queries[first : first + _BLOCK]
            for query, distance in zip(block.tolist(), form.approximate(block), strict=True):
                distance[truth.positives_of(query)] = np.inf
                distance[truth.ignored_of(query)] = np.inf
                close = np.argpartition(distance, nearest - 1)[:nearest]
                close = close[np.argsort(distance[close], kind="stable")]
                score_N[close] += 1 / np.arange(1, nearest + 1)
        score_N[taken_N] = -1
        order = np.argsort(-score_N, kind="stable")
        return order[: int((score_N >= 0).sum())]

    return find
