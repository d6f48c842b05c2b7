"""The contract of every registered merge: a monotone one keeps both ends, and shards give the same result."""

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.engine.merges import MergeKind, all_merges, fit_merge
from ray_backfill.engine.replay.prepare import as_served
from tests.engine.replay.cases import assert_same
from tests.engine.replay.sharded import replay_sharded

KINDS = pytest.mark.parametrize("kind", all_merges().values(), ids=lambda kind: kind.name)
METRICS = pytest.mark.parametrize("metrics", [("mAP", "CMC@1"), ("mAP@5", "CMC@1")], ids=["whole", "cut"])
ORDERS = {"first": np.arange(600), "random": np.random.default_rng(9).permutation(600)}


def systems(rng: np.random.Generator, label: np.ndarray, query_label: np.ndarray) -> rb.UpgradePair:
    """Systems of two models; all distances of the new one are smaller, so that raw distances compare badly."""
    made = []
    for d, noise, offset in ((6, 1.0, 0.0), (9, 0.6, 1.0)):
        centres = np.random.default_rng(d).normal(size=(30, d)) + offset
        gallery, query = (centres[y] + noise * rng.normal(size=(len(y), d)) for y in (label, query_label))
        made.append(rb.RetrievalSystem(query.astype(np.float32), gallery.astype(np.float32)))
    return rb.UpgradePair(made[0], made[1])


@pytest.fixture(scope="module")
def train() -> tuple[rb.UpgradePair, np.ndarray]:
    label = np.arange(300) % 30
    return systems(np.random.default_rng(0), label, label), label


@pytest.fixture(scope="module")
def service() -> tuple[rb.UpgradePair, rb.GroundTruth]:
    label, query_label = np.arange(600) % 30, np.arange(25)
    pair = systems(np.random.default_rng(1), label, query_label)
    return pair, rb.GroundTruth.from_labels(query_label, label)


Train = tuple[rb.UpgradePair, np.ndarray]
Service = tuple[rb.UpgradePair, rb.GroundTruth]


@METRICS
@pytest.mark.parametrize(
    "kind", [kind for kind in all_merges().values() if kind.is_monotone], ids=lambda kind: kind.name
)
def test_monotone_merges_keep_both_ends(
    kind: MergeKind, metrics: tuple[str, ...], train: Train, service: Service
) -> None:
    """At t = 0 and t = 1, every query has exactly the value of the system on its own."""
    merge = fit_merge(kind.name, *train, "cosine")
    merged = rb.replay(*service, ORDERS, 5, metrics, merge=merge)
    raw = rb.replay(*service, ORDERS, 5, metrics)
    for order in ORDERS:
        for metric in metrics:
            ours, theirs = merged[order].per_query[metric], raw[order].per_query[metric]
            np.testing.assert_array_equal(ours[:, [0, -1]], theirs[:, [0, -1]])
            if kind.name != "raw" and metric != "CMC@1":  # rrf keeps the raw top-1: the closer of the two top items
                assert not np.array_equal(ours, theirs)


@METRICS
@KINDS
def test_shards_and_devices_give_the_same_result(
    kind: MergeKind, metrics: tuple[str, ...], train: Train, service: Service
) -> None:
    pair, truth = service
    merge = fit_merge(kind.name, *train, "cosine")
    whole = rb.replay(pair, truth, ORDERS, 5, metrics, merge=merge)
    systems, served = as_served(pair, ORDERS, merge)
    for cuts, device in (([201, 202], None), ([], "cpu")):
        (parts,) = replay_sharded(systems, [served], truth, 5, metrics, "cosine", cuts, device)
        for order in ORDERS:
            assert_same(parts[order], whole[order], metrics)


@KINDS
def test_merges_have_a_title_and_a_source(kind: MergeKind) -> None:
    assert all_merges()[kind.name] is kind
    assert kind.title
    assert kind.source
    assert len({other.title for other in all_merges().values()}) == len(all_merges())


@KINDS
def test_merges_name_missing_inputs(kind: MergeKind, train: Train) -> None:
    pair, label = train
    fit_merge(kind.name, pair if kind.needs_train else None, label if kind.needs_labels else None, "cosine")
    if kind.needs_train:
        with pytest.raises(rb.InputError, match="train embeddings"):
            fit_merge(kind.name, None, label, "cosine")
    if kind.needs_labels:
        with pytest.raises(rb.InputError, match="labels"):
            fit_merge(kind.name, pair, None, "cosine")
