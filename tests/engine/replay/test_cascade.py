"""Cascades against their definition, one query and moment at a time."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.replay import Served, replay_pairs
from ray_backfill.engine.replay.engine import measure_prepared, split_gallery
from ray_backfill.engine.replay.prepare import prepare_replay
from ray_backfill.engine.replay.shard import LocalShards, make_forms
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem
from tests.engine.replay.brute import score

WHOLE = ("mAP", "CMC@1", "MRR", "recall@5", "nDCG", "mAP@4", "nDCG@3")
CUT = ("CMC@1", "recall@5", "mAP@4", "nDCG@3", "MRR@2")
Vectors = NDArray[np.float64]


def distances(system: RetrievalSystem, q: int) -> NDArray[np.float64]:
    squares: NDArray[np.float64] = ((system.query[q].astype(np.float64) - system.gallery) ** 2).sum(axis=1)
    return squares


def ranking_of(
    old: RetrievalSystem, new: RetrievalSystem, truth: GroundTruth, q: int, k: int, at_end: bool
) -> list[int]:
    """The whole ranking, and how it is made: K candidates by the new distance, then the rest of the old ranking."""
    of_old, of_new = distances(old, q), distances(new, q)
    items = sorted(set(range(len(of_old))) - set(truth.ignored_of(q).tolist()))
    if at_end:
        return sorted(items, key=lambda item: (of_new[item], item))
    by_old = sorted(items, key=lambda item: (of_old[item], item))
    return [*sorted(by_old[:k], key=lambda item: (of_new[item], item)), *by_old[k:]]


def invented(seed: int, n_gallery: int) -> tuple[RetrievalSystem, RetrievalSystem, GroundTruth]:
    rng = np.random.default_rng(seed)
    n_queries = 9

    def system() -> RetrievalSystem:
        # Few distinct points: many ties, which positions decide.
        return RetrievalSystem(rng.integers(-3, 4, (n_queries, 3)) * 1.0, rng.integers(-3, 4, (n_gallery, 3)) * 1.0)

    positives = [rng.choice(n_gallery, int(rng.integers(1, 7)), replace=False) for _ in range(n_queries)]
    grades = [rng.integers(1, 4, len(each)).astype(np.float64) for each in positives] if seed % 2 else None
    ignored = [rng.choice(n_gallery, int(rng.integers(0, 4)), replace=False) for _ in range(n_queries)]
    ignored = [np.setdiff1d(left_out, right) for left_out, right in zip(ignored, positives, strict=True)]
    truth = GroundTruth.from_positives(positives, ignored, n_gallery=n_gallery, grades=grades)
    return system(), system(), truth


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("metrics", [WHOLE, CUT], ids=["whole", "cut"])
def test_the_new_model_reranks_what_the_old_one_recalls(seed: int, metrics: tuple[str, ...]) -> None:
    rng = np.random.default_rng(100 + seed)
    n_gallery, points = 900 if metrics is CUT else 60, int(rng.integers(2, 8))
    old, new, truth = invented(seed, n_gallery)
    k = int(rng.choice([1, 3, 10, 40, 2 * n_gallery]))
    orders = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    (found,) = replay_pairs([old, new], [Served(0, 1, orders, "at_end", recalls=k)], truth, points, metrics, "l2")
    for q in range(truth.n_queries):
        first = truth.positive_starts[q]
        right = truth.positives_of(q).tolist()
        gains = [1.0] * len(right) if truth.grades is None else truth.grades[first : first + len(right)].tolist()
        for i in range(points):
            ranking = ranking_of(old, new, truth, q, k, i == points - 1)
            ranks = [(place + 1, gains[right.index(item)]) for place, item in enumerate(ranking) if item in right]
            for metric in metrics:
                wanted = score(ranks, gains, metric, n_gallery)
                for order in orders:
                    assert found[order].per_query[metric][q, i] == pytest.approx(wanted, abs=1e-12), metric
            recalled = ranking_of(old, new, truth, q, k, at_end=False)[:k]
            for name, permutation in orders.items():
                there = set(permutation[: i * n_gallery // (points - 1)].tolist())
                embedded = found[name].embedded
                assert embedded is not None
                assert embedded[q, i] == len(set(recalled) - there)


def test_shards_make_no_difference() -> None:
    old, new, truth = invented(3, 500)
    served = [Served(0, 1, {"a": np.random.default_rng(0).permutation(500)}, "at_end", recalls=20)]
    (whole,) = replay_pairs([old, new], served, truth, 5, WHOLE, "l2")
    prepared = prepare_replay(truth, served, 5, WHOLE)
    shards = split_gallery(make_forms([old, new], prepared, "l2"), 7, prepared)
    (parts,) = measure_prepared(prepared, truth, LocalShards(shards), 2)
    for metric in WHOLE:
        np.testing.assert_array_equal(whole["a"].per_query[metric], parts["a"].per_query[metric])
    np.testing.assert_array_equal(whole["a"].embedded, parts["a"].embedded)


def test_cascades_are_replayed_apart() -> None:
    old, new, truth = invented(0, 60)
    orders = {"a": np.arange(60)}
    with pytest.raises(InputError, match="a pass of their own"):
        replay_pairs([old, new], [Served(0, 1, orders), Served(0, 1, orders, "at_end", recalls=5)], truth, 3)
