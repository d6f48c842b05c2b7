"""Random systems for tests of the replay."""

import numpy as np

import ray_backfill as rb

METRICS = ("mAP", "mAP@3", "mAP@100", "CMC@1", "CMC@2")
CUT_METRICS = ("CMC@1", "mAP@3", "CMC@2")


def random_pair(
    rng: np.random.Generator, n_queries: int, n_gallery: int, tied: bool, dtype: type = np.float32
) -> rb.UpgradePair:
    """A pair of 3 and 4 dimensions; tied: the numbers are small integers, so that many distances are equal."""

    def draw(rows: int, columns: int) -> np.ndarray:
        if tied:
            return rng.integers(1, 3, (rows, columns)).astype(dtype)
        return rng.normal(size=(rows, columns)).astype(dtype)

    return rb.UpgradePair(
        backward=rb.RetrievalSystem(draw(n_queries, 3), draw(n_gallery, 3)),
        forward=rb.RetrievalSystem(draw(n_queries, 4), draw(n_gallery, 4)),
    )
