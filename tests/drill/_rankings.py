"""The expected answer of a search, by a full sort."""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.drill.plan import NEW, NOWHERE
from ray_backfill.engine.distances import exact_distances
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import UpgradePair


def rankings(pair: UpgradePair, state: NDArray[np.uint8], merge: Merge, distance: str = "cosine") -> list[list[int]]:
    """Each query's items in service, sorted by (score, distance, position); NEW items use the new system."""
    old = exact_distances(pair.backward.query, pair.backward.gallery, distance)
    new = exact_distances(pair.forward.query, pair.forward.gallery, distance)
    ranked = []
    for q in range(len(old)):
        distances = np.where(state == NEW, new[q], old[q])
        scores = merge.scores(distances, state == NEW)
        keys = [(scores[item], distances[item], item) for item, side in enumerate(state) if side != NOWHERE]
        ranked.append([item for _, _, item in sorted(keys)])
    return ranked
