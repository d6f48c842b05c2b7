"""The replay engine against scikit-learn, pytorch-metric-learning and faiss."""

import faiss
import numpy as np
import pytest
import torch
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from sklearn.metrics import average_precision_score

import ray_backfill as rb
from ray_backfill.engine.distances import exact_distances
from tests.engine.replay.cases import random_pair


def test_mean_average_precision_equals_scikit_learn() -> None:
    rng = np.random.default_rng(1)
    pair = random_pair(rng, 30, 200, tied=False)
    gallery_labels, query_labels = rng.integers(0, 5, 200), rng.integers(0, 5, 30)
    truth = rb.GroundTruth.from_labels(query_labels, gallery_labels)
    curve = rb.replay(pair, truth, np.arange(200), points=2)
    for point, system in [(0, pair.backward), (1, pair.forward)]:
        dist_QN = exact_distances(system.query, system.gallery, "cosine")
        expected = [
            average_precision_score(gallery_labels == y, -d) for y, d in zip(query_labels, dist_QN, strict=True)
        ]
        assert curve.values("mAP")[point] == pytest.approx(np.mean(expected), abs=1e-9)


def test_precision_at_1_and_map_at_r_equal_pytorch_metric_learning() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.normal(size=(120, 8)).astype(np.float32)
    labels = np.repeat(np.arange(12), 10)  # every query has R = 9 positives in addition to itself
    system = rb.RetrievalSystem(vectors, vectors)
    truth = rb.GroundTruth.from_labels(labels, labels, exclude_self=True)
    curve = rb.replay(rb.UpgradePair(system, system), truth, np.arange(120), 2, ("CMC@1", "mAP@9", "mAP"), "l2")
    calculator = AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision_at_r", "mean_average_precision"), k=119
    )
    theirs = calculator.get_accuracy(torch.from_numpy(vectors), torch.from_numpy(labels))
    assert curve.values("CMC@1")[0] == pytest.approx(theirs["precision_at_1"], abs=1e-9)
    assert curve.values("mAP@9")[0] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-7)
    assert curve.values("mAP")[0] == pytest.approx(theirs["mean_average_precision"], abs=1e-7)


def test_merged_partitions_equal_two_faiss_indexes() -> None:
    """With real indexes: searching both partitions and merging by distance gives the replay's top-1."""
    rng = np.random.default_rng(3)
    pair = random_pair(rng, 50, 300, tied=False)
    labels = rng.integers(0, 30, 300)
    query_labels = rng.integers(0, 30, 50)
    order = rng.permutation(300)
    truth = rb.GroundTruth.from_labels(query_labels, labels)
    curve = rb.replay(pair, truth, order, points=4, metrics=("CMC@1",), distance="l2")
    for point in range(4):
        done = order[: point * 100]
        best = []
        for system, rows in ((pair.forward, done), (pair.backward, np.setdiff1d(order, done))):
            if len(rows):
                index = faiss.IndexFlatL2(system.gallery.shape[1])
                index.add(np.ascontiguousarray(system.gallery[rows]))
                squared, found = index.search(system.query.astype(np.float32), 1)
                best.append((np.sqrt(squared[:, 0]), rows[found[:, 0]]))
        nearest = np.argmin([d for d, _ in best], axis=0)
        top1 = np.choose(nearest, [ids for _, ids in best])
        assert curve.values("CMC@1")[point] == (labels[top1] == query_labels)[curve.scored].mean()
