"""Random systems and right answers for tests of the replay."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import numpy as np

import ray_backfill as rb
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.replay import nearest, prepare
from ray_backfill.engine.systems import Filter

METRICS = ("mAP", "mAP@3", "mAP@100", "CMC@1", "CMC@2", "recall@3", "MRR", "MRR@2", "nDCG", "nDCG@3")
CUT_METRICS = ("CMC@1", "mAP@3", "CMC@2", "recall@3", "MRR@2", "nDCG@3")


@contextmanager
def candidates_with_room(least: int = 2) -> Iterator[None]:
    """Metrics cut at k come from candidates also where counts would be cheaper, and lists have little room."""
    with patch.object(prepare, "_ITEMS_PER_CANDIDATE", 0), patch.object(nearest, "_LEAST_ROOM", least):
        yield


def random_system(
    rng: np.random.Generator, n_queries: int, n_gallery: int, dim: int, tied: bool, dtype: type = np.float32
) -> rb.RetrievalSystem:
    """tied: the numbers are small integers, so that many distances are equal."""

    def draw(rows: int) -> np.ndarray:
        return (rng.integers(1, 3, (rows, dim)) if tied else rng.normal(size=(rows, dim))).astype(dtype)

    return rb.RetrievalSystem(draw(n_queries), draw(n_gallery))


def random_pair(
    rng: np.random.Generator, n_queries: int, n_gallery: int, tied: bool, dtype: type = np.float32
) -> rb.UpgradePair:
    """A pair of 3 and 4 dimensions."""
    backward, forward = (random_system(rng, n_queries, n_gallery, dim, tied, dtype) for dim in (3, 4))
    return rb.UpgradePair(backward, forward)


def random_truth(
    rng: np.random.Generator, n_queries: int, n_gallery: int, graded: bool = False, weighted: bool = False
) -> rb.GroundTruth:
    """A quarter of the items are right answers, another one is ignored; the first query has a right answer."""
    kind = rng.integers(0, 4, (n_queries, n_gallery))
    kind[0, 0] = 0
    truth = rb.GroundTruth.from_positives(
        [np.flatnonzero(row == 0) for row in kind], [np.flatnonzero(row == 1) for row in kind], n_gallery=n_gallery
    )
    if graded:
        truth = replace(truth, grades=rng.integers(1, 4, len(truth.positives)).astype(np.float64))
    return truth.with_weights(rng.integers(1, 4, n_queries)) if weighted else truth


def random_parts(rng: np.random.Generator, truth: rb.GroundTruth, number: int) -> Filter:
    """Part 1 has no queries, and the last part no items; the first query finds the first item."""
    of_query = rng.choice(np.setdiff1d(np.arange(number + 1), [1]), truth.n_queries)
    of_item = rng.integers(0, number, truth.n_gallery)
    of_query[0] = of_item[0] = 0
    return Filter(of_query, of_item)


def gains_of(truth: rb.GroundTruth) -> np.ndarray:
    """(queries, items): grades of right answers, 0 for other items, NaN for ignored ones."""
    gains = np.zeros((truth.n_queries, truth.n_gallery))
    of_query = np.repeat(np.arange(truth.n_queries), np.diff(truth.positive_starts))
    gains[of_query, truth.positives] = 1 if truth.grades is None else truth.grades
    gains[np.repeat(np.arange(truth.n_queries), np.diff(truth.ignored_starts)), truth.ignored] = np.nan
    return gains


def weights_of(truth: rb.GroundTruth) -> np.ndarray:
    return np.ones(truth.n_queries) if truth.weights is None else truth.weights


def assert_same_lists(found: RankedLists, expected: RankedLists) -> None:
    for name in RankedLists._fields:
        mine, right = getattr(found, name), getattr(expected, name)
        np.testing.assert_array_equal(mine, right, err_msg=name)
        assert mine.dtype == right.dtype


def assert_same(curve: rb.Curve, expected: rb.Curve, metrics: Sequence[str]) -> None:
    """To the last bit."""
    np.testing.assert_array_equal(curve.top1_correct, expected.top1_correct)
    for metric in metrics:
        np.testing.assert_array_equal(curve.per_query[metric], expected.per_query[metric], err_msg=metric)
