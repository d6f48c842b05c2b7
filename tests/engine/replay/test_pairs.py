"""Several pairs at once give what each gives alone, to the last bit, and search a shared system once."""

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.engine.merges import RAW, Merge, ScoreMap
from ray_backfill.engine.replay import replay_pairs, shard
from ray_backfill.engine.replay.prepare import Served, prepare_replay
from tests.engine.replay.cases import (
    CUT_METRICS,
    METRICS,
    assert_same,
    candidates_with_room,
    random_system,
    random_truth,
)
from tests.engine.replay.sharded import replay_sharded

RRF = Merge("rrf", by_rank=True)


def random_merge(rng: np.random.Generator) -> Merge:
    maps = (
        ScoreMap(np.array([0.0, 1.0, 2.0]), np.sort(rng.integers(0, 4, 3)).astype(float)),
        ScoreMap(np.array([0.0, 0.5, 2.0]), np.sort(rng.integers(0, 4, 3)).astype(float)),
    )
    return Merge("mapped", *maps)


def random_served(rng: np.random.Generator, n_gallery: int, by_rank: bool) -> list[Served]:
    common = {"a": rng.permutation(n_gallery), "b": rng.permutation(n_gallery)}
    merges = [RAW, random_merge(rng), *([RRF] if by_rank else [])]
    return [
        Served(0, 0, common),
        Served(1, 1, common),
        Served(0, 1, common, "at_end"),
        *(Served(0, 1, common, merge=merge) for merge in merges),
        *(Served(2, 1, common | {"own": rng.permutation(n_gallery)}, merge=merge) for merge in merges),
        Served(1, 0, {"own": rng.permutation(n_gallery)}),
        Served(3, 1, common),  # the only pair of this system, with a shared one
    ]


@given(
    seed=st.integers(0, 2**32 - 1), tied=st.booleans(), points=st.integers(2, 6),
    metrics=st.sampled_from([METRICS, CUT_METRICS]), distance=st.sampled_from(["cosine", "l2", "inner_product"]),
)  # fmt: skip
def test_pairs_together_equal_pairs_alone(
    seed: int, tied: bool, points: int, metrics: tuple[str, ...], distance: str
) -> None:
    rng = np.random.default_rng(seed)
    n_gallery = int(rng.integers(1, 40))
    systems = [random_system(rng, 6, n_gallery, dim, tied) for dim in (3, 4, 5, 6)]
    truth = random_truth(rng, 6, n_gallery, graded=True, weighted=True)
    served = random_served(rng, n_gallery, by_rank=metrics is METRICS)
    with candidates_with_room():
        with patch.object(shard, "_COUNTED_BYTES", 1), patch.object(shard, "_FEWEST_QUERIES", 4):
            found = replay_pairs(systems, served, truth, points, metrics, distance)
        prepared = prepare_replay(truth, served, points, metrics)
        assert (prepared.nearest is None) == (metrics is METRICS)
        cuts = sorted({n_gallery // 3, n_gallery // 2} - {0})
        sharded = replay_sharded(systems, served, truth, points, metrics, distance, cuts)
        for each, together, in_shards in zip(served, found, sharded, strict=True):
            pair = rb.UpgradePair(systems[each.backward], systems[each.forward], each.switch)
            alone = rb.replay(pair, truth, each.orders, points, metrics, distance, merge=each.merge)
            assert together.keys() == in_shards.keys() == alone.keys()
            for order, curve in alone.items():
                for other in (together[order], in_shards[order]):
                    assert_same(other, curve, metrics)


def test_a_shared_system_is_searched_once() -> None:
    rng = np.random.default_rng(0)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 3, 6), rng.integers(0, 3, 200))
    served = random_served(rng, 200, by_rank=False)
    whole = prepare_replay(truth, served, 4, METRICS)
    assert (len(whole.pairs), whole.passes) == (9, 4)
    assert len(whole.segments_ON) == 2 + 1 + 2 + 1, "two common orders, one switch at the end, the own ones"
    cut = prepare_replay(truth, served, 4, ("CMC@1",))
    assert cut.nearest == 1
    assert [(scan.searched, scan.is_forward) for scan in cut.scans] == (
        [(0, False), (0, True), (1, False), (1, True), (2, False), (3, False)]
    )
