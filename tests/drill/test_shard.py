"""Shards against a plain dictionary of items and a full sort, after every operation."""

import threading
from collections.abc import Collection
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_backfill.drill.parts import Embedded
from ray_backfill.drill.plan import NEW, OLD, DrillPlan, Operation, make_plan
from ray_backfill.drill.settings import ChurnSettings
from ray_backfill.drill.shard import Shard, ShardPlace
from ray_backfill.engine.index import IndexSettings
from ray_backfill.engine.lists import merge_lists
from ray_backfill.engine.merges import RAW, Merge, ScoreMap, fit_merge
from ray_backfill.learn.methods import Embeddings, all_methods
from ray_backfill.learn.sides import Sides
from ray_backfill.pipeline.live import Answering
from tests.drill._rankings import rankings

N, DIMS = 60, {"old": 3, "new": 5}
METHOD = all_methods()["rm_naive"]


def embeddings(n: int, seed: int) -> dict[str, NDArray[np.float32]]:
    """A pair with small integer vectors, so that many distances tie."""
    rng = np.random.default_rng(seed)
    return {m: (rng.integers(0, 3, size=(n, d)) + 1).astype(np.float32) for m, d in DIMS.items()}


GALLERY, QUERIES, TRAIN = embeddings(N, 0), embeddings(7, 1), embeddings(50, 2)


def embed(operation: Operation, broken: Collection[int] = ()) -> Embedded | None:
    if not operation.has_vectors:
        return None
    good = np.array([p for p in operation.positions if p not in broken], np.int64)
    model = "old" if operation.kind == "rollback" else "new"
    lost = tuple((int(p), "broken") for p in operation.positions if p in broken)
    return Embedded(good, {model: GALLERY[model][good]}, lost)


# With a filter: the part of each item and query; no item is of the last query's.
PART_N = np.random.default_rng(8).integers(0, 3, N)
PART_Q = np.array([0, 2, 1, 0, 2, 2, 3])


def shards(
    plan: DrillPlan, merge: Merge, edges: list[int], kind: str = "exact", has_filter: bool = False
) -> list[Shard]:
    sides = Sides(METHOD, None, merge, "cosine", DIMS)
    index = IndexSettings(kind)
    return [
        Shard(plan, sides, ShardPlace(a, b, index, index), lambda i, j: {"old": GALLERY["old"][i:j]},
              {"backward": TRAIN["old"], "forward": TRAIN["new"]}, PART_N[a:b] if has_filter else None)
        for a, b in pairwise(edges)
    ]  # fmt: skip


def by_full_sort(state: NDArray[np.uint8], merge: Merge, k: int, has_filter: bool = False) -> NDArray[Any]:
    """(Q, k) positions, padded with -1."""
    pair, distance = merge.prepare(METHOD.pair(Embeddings(QUERIES, GALLERY), None), "cosine")
    ranked = [
        [item for item in items if not has_filter or PART_N[item] == part]
        for items, part in zip(rankings(pair, state, merge, distance), PART_Q, strict=True)
    ]
    return np.array([(items + [-1] * k)[:k] for items in ranked])


def search(parts: list[Shard], k: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    found = [shard.search(*parts[0].sides.queries(QUERIES), k, PART_Q) for shard in parts]
    old, new = (merge_lists(lists, k) for lists in zip(*((answer.old, answer.new) for answer in found), strict=True))
    merged = Answering.plain(parts[0].sides.merge, k).answers(old, new, np.arange(len(QUERIES["old"])))
    assert merged.are_distinct
    return merged.item, merged.is_forward


@pytest.mark.parametrize("merge", ["raw", "quantile", "csls"])
@pytest.mark.parametrize("churn", [ChurnSettings(), ChurnSettings(6, 9, 0.8, seed=2)], ids=["plain", "churn"])
@pytest.mark.parametrize(("edges", "has_filter"), [([0, N], False), ([0, 1, 25, N], False), ([0, 1, 25, N], True)])
def test_every_state_is_searched_as_a_full_sort_ranks_it(
    merge: str, churn: ChurnSettings, edges: list[int], has_filter: bool
) -> None:
    plan = make_plan(np.random.default_rng(3).permutation(N), 4, 11, churn)
    train = METHOD.pair(Embeddings(TRAIN, TRAIN), None)
    fitted = fit_merge(merge, train, None, "cosine", 0)
    parts = shards(plan, fitted, edges, has_filter=has_filter)
    # One inserted item is broken at both its insert and the rollback, one at the insert only, one at the rollback only.
    held_back = plan.held_back.tolist()
    broken = {int(plan.operations[0].positions[2]), *held_back[:2]}
    broken_at_rollback = {*held_back[1:3]}
    lost: dict[int, NDArray[np.int64]] = {}
    for operation in plan.operations:
        given = embed(operation, broken if operation.kind != "rollback" else broken_at_rollback)
        if given is not None and given.broken:
            lost[operation.number] = given.broken_positions
        for shard in parts:
            shard.apply(operation, given)
            shard.apply(operation, given)  # delivered twice
            shard.compact()
        state = plan.state(operation.number + 1, lost)
        np.testing.assert_array_equal(np.concatenate([shard.state for shard in parts]), state)
        for k in (1, 10, N + 5):
            positions, is_new = search(parts, k)
            np.testing.assert_array_equal(positions, by_full_sort(state, fitted, k, has_filter))
            assert (is_new[positions >= 0] == (state[positions[positions >= 0]] == NEW)).all()
        sizes = [shard.search(*shard.sides.queries(QUERIES), 1, PART_Q) for shard in parts]
        assert sum(s.old_items for s in sizes) == (state == OLD).sum()
        assert sum(s.new_items for s in sizes) == (state == NEW).sum()
        expected = plan.sizes(edges)[operation.number + 1]
        assert [s.old_items + s.new_items + s.missing_items for s in sizes] == expected.tolist()


@pytest.mark.parametrize("backfilled", [1, N - 1])
def test_fillers_of_a_nearly_empty_partition_displace_nothing(backfilled: int) -> None:
    """Also if a merge gives every distance the same score: then only an infinite score is certain to come last."""
    plan = make_plan(np.arange(N), 2, backfilled, ChurnSettings())
    flat = ScoreMap(np.array([0.5]), np.array([0.0]))
    train = METHOD.pair(Embeddings(TRAIN, TRAIN), None)
    for merge in (fit_merge("quantile", train, None, "cosine", 0), Merge("flat", flat, flat)):
        (shard,) = shards(plan, merge, [0, N])
        shard.apply(plan.operations[0], embed(plan.operations[0]))
        positions, _ = search([shard], 10)
        np.testing.assert_array_equal(positions, by_full_sort(plan.state(1, {}), merge, 10))
        answer = shard.search(*shard.sides.queries(QUERIES), N + 3)
        best = Answering.plain(merge, N + 3).answers(answer.old, answer.new, np.arange(7))
        assert (best.item[:, N:] == -1).all()
        assert np.isposinf(best.score[:, N:]).all()
        assert np.isfinite(best.score[:, :N]).all()


def test_memory_of_items_that_left_either_partition_is_given_back() -> None:
    """Deletes 2,500 of 3,000 items, most of them backfilled."""
    n, rng = 3000, np.random.default_rng(6)
    gallery = {m: rng.normal(size=(n, d)).astype(np.float32) for m, d in DIMS.items()}
    plan = make_plan(np.arange(n), 2, 2000, ChurnSettings(deletes=2500))
    assert [operation.kind for operation in plan.operations] == ["backfill", "delete"] * 2
    index, sides = IndexSettings("exact"), Sides(METHOD, None, RAW, "cosine", DIMS)
    shard = Shard(plan, sides, ShardPlace(0, n, index, index), lambda i, j: {"old": gallery["old"][i:j]})

    def apply(operation: Operation) -> None:
        embedded = Embedded(operation.positions, {"new": gallery["new"][operation.positions]})
        shard.apply(operation, embedded if operation.has_vectors else None)

    full = shard.size()
    apply(plan.operations[0])
    shard.compact()
    moved = shard.size()
    assert (moved.old_items, moved.new_items) == (1000, 2000)
    assert moved.old_bytes < full.old_bytes / 2
    for operation in plan.operations[1:]:
        apply(operation)
    before, positions = shard.size(), search([shard], 20)[0]
    shard.compact()
    assert (shard.size().old_items, shard.size().new_items) == (0, 500)
    assert shard.size().new_bytes < before.new_bytes / 2
    np.testing.assert_array_equal(search([shard], 20)[0], positions)


def test_an_operation_before_its_turn_is_refused() -> None:
    plan = make_plan(np.arange(N), 2, 20, ChurnSettings())
    (shard,) = shards(plan, RAW, [0, N])
    with pytest.raises(ValueError, match="operation 1 is out of order: the next one is 0"):
        shard.apply(plan.operations[1], embed(plan.operations[1]))


@pytest.mark.parametrize("kind", ["exact", "Flat", "IVF4,Flat", "HNSW8"])
def test_searches_beside_a_writer_see_every_item_exactly_once(kind: str) -> None:
    """Four threads search for all items during the backfill: each answer contains every item exactly once."""
    plan = make_plan(np.random.default_rng(5).permutation(N), 2, 1, ChurnSettings())
    (shard,) = shards(plan, RAW, [0, N], kind)
    wrong: list[str] = []
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            answer = shard.search(QUERIES["old"], QUERIES["new"], N)
            for row in np.hstack([answer.old.item, answer.new.item]):
                if kind in ("exact", "Flat") and sorted(row[row >= 0]) != list(range(N)):
                    wrong.append(f"{sorted(row)} at {answer.applied}")
                if len(set(row[row >= 0].tolist())) != (row >= 0).sum():
                    wrong.append("an item twice")
            if answer.old_items != N - answer.applied or answer.new_items != answer.applied:
                wrong.append(f"{answer.old_items} + {answer.new_items} at {answer.applied}")

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for operation in plan.operations:
        shard.apply(operation, embed(operation))
        shard.compact()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[:3]
    assert shard.size().old_items == 0
    assert shard.size().new_items == N
