"""Items that nothing serves before they are backfilled: against the definitions, one query and moment at a time."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_backfill.engine.replay import Served, replay, replay_pairs
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, UpgradePair
from tests.engine.replay.brute import score

METRICS = ("mAP", "CMC@1", "MRR", "recall@5", "nDCG", "mAP@4", "nDCG@3")
CUT = ("CMC@1", "recall@5", "mAP@4", "nDCG@3", "MRR@2")


def by_definition(
    query: NDArray[np.floating], gallery: NDArray[np.floating], truth: GroundTruth, order: NDArray[np.int64],
    points: int, metric: str,
) -> NDArray[np.float64]:  # fmt: skip
    """(Q, T) values. Distances are integers, so that nothing is rounded."""
    n_gallery = len(gallery)
    values = np.zeros((len(query), points))
    for q in range(len(query)):
        distance = ((query[q] - gallery) ** 2).sum(axis=1)
        right = truth.positives_of(q).tolist()
        first = truth.positive_starts[q]
        gains = [1.0] * len(right) if truth.grades is None else truth.grades[first : first + len(right)].tolist()
        for i in range(points):
            there = set(order[: i * n_gallery // (points - 1)].tolist()) - set(truth.ignored_of(q).tolist())
            ranking = sorted(there, key=lambda item: (distance[item], item))
            ranks = [(place + 1, gains[right.index(item)]) for place, item in enumerate(ranking) if item in right]
            values[q, i] = score(ranks, gains, metric, n_gallery)
    return values


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("metrics", [METRICS, CUT], ids=["whole", "cut"])
def test_what_is_not_backfilled_is_not_found(seed: int, metrics: tuple[str, ...]) -> None:
    rng = np.random.default_rng(seed)
    n_gallery, n_queries, points = 900 if metrics is CUT else 60, 9, int(rng.integers(2, 8))
    # Few distinct points: many ties, which positions decide.
    gallery, query = rng.integers(-3, 4, (n_gallery, 3)) * 1.0, rng.integers(-3, 4, (n_queries, 3)) * 1.0
    positives = [rng.choice(n_gallery, int(rng.integers(1, 7)), replace=False) for _ in range(n_queries)]
    grades = [rng.integers(1, 4, len(each)).astype(np.float64) for each in positives] if seed % 2 else None
    ignored = [rng.choice(n_gallery, int(rng.integers(0, 4)), replace=False) for _ in range(n_queries)]
    ignored = [np.setdiff1d(left_out, right) for left_out, right in zip(ignored, positives, strict=True)]
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=n_gallery, grades=grades)
    order = rng.permutation(n_gallery)
    system = RetrievalSystem(query, gallery)
    found = replay(UpgradePair(system, system, "only_backfilled"), truth, order, points, metrics, "l2")
    for metric in metrics:
        wanted = by_definition(query, gallery, truth, order, points, metric)
        np.testing.assert_allclose(found.per_query[metric], wanted, atol=1e-12, err_msg=metric)
        assert not found.values(metric)[0]
    # Beside a pair that serves all items, in one pass.
    served = [Served(0, 0, {"": order}, "only_backfilled"), Served(0, 0, {"": order})]
    hidden, whole = replay_pairs([system], served, truth, points, metrics, "l2")
    for metric in metrics:
        np.testing.assert_array_equal(hidden[""].per_query[metric], found.per_query[metric])
        np.testing.assert_allclose(hidden[""].per_query[metric][:, -1], whole[""].per_query[metric][:, -1])
