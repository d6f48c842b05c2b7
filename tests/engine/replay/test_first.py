"""The first items of single queries: against a loop over queries and moments in whole numbers, with many ties."""

import numpy as np
import pytest

from ray_backfill.engine.lists import RankedLists, measure_lists
from ray_backfill.engine.merges import RAW, Merge, ScoreMap
from ray_backfill.engine.replay import Curve, Served, find_first, replay
from ray_backfill.engine.replay.first import lists_at
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, Switch, UpgradePair
from tests.engine.replay.cases import assert_same_lists, random_pair, random_system, random_truth

POINTS = 12


def by_definition(
    pair: UpgradePair, truth: GroundTruth, order: np.ndarray, queries: np.ndarray, distance: str, k: int,
    merge: Merge = RAW,
) -> RankedLists:  # fmt: skip
    """One query and moment at a time; (squared) distances are whole numbers, so that nothing is rounded."""
    n = pair.n_gallery
    lists = RankedLists.nothing(len(queries), POINTS, k)
    for row, q in enumerate(queries):
        both = {}
        for name, system in (("backward", pair.backward), ("forward", pair.forward)):
            query, gallery = system.query[q].astype(int), system.gallery.astype(int)
            both[name] = ((query - gallery) ** 2).sum(axis=1) if distance == "l2" else -(gallery @ query)
        for i in range(POINTS):
            there = n * (i == POINTS - 1) if pair.switch == "at_end" else i * n // (POINTS - 1)
            done = set(order[:there].tolist())
            ranked = []
            for j in range(n):
                if j in truth.ignored_of(q) or (pair.switch == "only_backfilled" and j not in done):
                    continue
                found = both["forward" if j in done else "backward"][j]
                root = np.float32(np.sqrt(found) if distance == "l2" else found)
                (score,) = merge.scores(np.array([root]), np.array([j in done]))
                ranked.append((score, root, j, j in done))
            for place, (score, root, j, is_done) in enumerate(sorted(ranked)[:k]):
                at = row, i, place
                lists.item[at], lists.distance[at], lists.score[at], lists.is_forward[at] = j, root, score, is_done
    return lists


@pytest.mark.parametrize(("seed", "k"), [(0, 1), (1, 3), (2, 1), (3, 50)])
@pytest.mark.parametrize("distance", ["l2", "inner_product"])
@pytest.mark.parametrize("switch", ["progressively", "at_end", "only_backfilled"])
def test_first_items_with_ties(seed: int, k: int, distance: str, switch: Switch) -> None:
    rng = np.random.default_rng(seed)
    # As many dimensions on both sides, so that items of the two systems tie, too.
    backward, forward = (random_system(rng, 15, 40, 4, tied=True) for _ in range(2))
    pair = UpgradePair(backward, forward, switch)
    truth = random_truth(rng, 15, 40)
    orders = {name: rng.permutation(40) for name in "ab"}
    queries = rng.permutation(np.setdiff1d(np.arange(15), truth.skipped))[:9]
    served = Served(0, 1, orders, switch)
    found = find_first([pair.backward, pair.forward], served, truth, queries, POINTS, distance, k)
    curves = replay(pair, truth, orders, POINTS, ("mAP", "CMC@1"), distance)
    for name, order in orders.items():
        assert_same_lists(found[name], by_definition(pair, truth, order, queries, distance, k))
        assert_right_as_in(curves[name], found[name], truth, queries)
    if switch == "only_backfilled":
        assert (found["a"].item[:, 0] == -1).all()


def assert_right_as_in(curve: Curve, found: RankedLists, truth: GroundTruth, queries: np.ndarray) -> None:
    """The lists' first items are right where the replay says so."""
    _, first_is_right = measure_lists(found.item, truth, queries, ())
    np.testing.assert_array_equal(first_is_right, curve.top1_correct[np.searchsorted(curve.scored, queries)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("switch", ["progressively", "only_backfilled"])
def test_first_items_of_a_merge(seed: int, switch: Switch) -> None:
    """Scores of steps tie across systems and within one; then distance and position decide."""
    rng = np.random.default_rng(seed)
    pair = random_pair(rng, 15, 40, tied=True)
    pair = UpgradePair(pair.backward, pair.forward, switch)
    truth = random_truth(rng, 15, 40)
    x = np.array([0.0, 1.2, 1.5, 3.0])
    backward, forward = (ScoreMap(x, np.array(y)) for y in ([3.0, 3.0, 4.0, 4.0], [0.0, 1.0, 4.0, 4.0]))
    merge = Merge("steps", backward, forward)
    order = rng.permutation(40)
    queries = np.setdiff1d(np.arange(15), truth.skipped)[:9]
    systems, served = [pair.backward, pair.forward], Served(0, 1, {"": order}, switch, merge)
    found = find_first(systems, served, truth, queries, POINTS, "l2", 2)[""]
    expected = by_definition(pair, truth, order, queries, "l2", 2, merge)
    raw = by_definition(pair, truth, order, queries, "l2", 2)
    assert_same_lists(found, expected)
    curve = replay(pair, truth, order, POINTS, ("mAP", "CMC@1"), "l2", merge=merge)
    assert_right_as_in(curve, found, truth, queries)
    if switch == "progressively":
        assert (expected.item != raw.item).any()


def test_a_query_that_ignores_nearly_everything() -> None:
    """The candidates for the first place are as many as the ignored items."""
    rng = np.random.default_rng(0)
    pair = random_pair(rng, 2, 60, tied=True)
    truth = GroundTruth.from_positives([[7], [3, 9]], [np.delete(np.arange(60), [7, 50]), []], n_gallery=60)
    order = rng.permutation(60)
    systems, served = [pair.backward, pair.forward], Served(0, 1, {"": order})
    found = find_first(systems, served, truth, np.arange(2), POINTS, "l2")[""]
    assert set(found.item[0].ravel()) <= {7, 50}
    assert_same_lists(found, by_definition(pair, truth, order, np.arange(2), "l2", 1))


@pytest.mark.parametrize("switch", ["progressively", "at_end", "only_backfilled"])
def test_lists_of_one_moment(switch: Switch) -> None:
    """At all moments of a curve; ties, and fewer items than places."""
    rng = np.random.default_rng(4)
    backward, forward = (random_system(rng, 15, 40, 4, tied=True) for _ in range(2))
    pair, truth, order = UpgradePair(backward, forward, switch), random_truth(rng, 15, 40), rng.permutation(40)
    queries = np.setdiff1d(np.arange(15), truth.skipped)
    expected = by_definition(pair, truth, order, queries, "l2", 50)
    for i in range(POINTS):
        there = i * 40 // (POINTS - 1)
        found = lists_at(pair, truth, queries, order, there, 50, "l2")
        assert_same_lists(found, expected.at(np.s_[:, i]))


def ranked(system: RetrievalSystem, query: int, items: list[int]) -> list[tuple[float, int]]:
    """(distance, item) of these items, the closest first."""
    apart = ((system.query[query].astype(int) - system.gallery[items].astype(int)) ** 2).sum(axis=1)
    return sorted((float(np.float32(np.sqrt(of))), item) for of, item in zip(apart, items, strict=True))


@pytest.mark.parametrize(("there", "k"), [(0, 9), (13, 9), (13, 40), (40, 9)])
def test_lists_of_a_fusion_and_of_a_cascade(there: int, k: int) -> None:
    """A fusion sorts by the rank in the own list, then by distance and position; a cascade re-ranks the first seven."""
    rng = np.random.default_rng(there)
    backward, forward = (random_system(rng, 9, 40, 4, tied=True) for _ in range(2))
    pair, truth, order = UpgradePair(backward, forward), random_truth(rng, 9, 40), rng.permutation(40)
    queries = np.setdiff1d(np.arange(9), truth.skipped)
    fused = lists_at(pair, truth, queries, order, there, k, "l2", Merge("rrf", by_rank=True))
    cascade = UpgradePair(backward, forward, "at_end")
    reranked = lists_at(cascade, truth, queries, order, there, k, "l2", recalls=7)
    for row, q in enumerate(queries):
        shown = np.setdiff1d(np.arange(40), truth.ignored_of(q))
        done = np.isin(shown, order[:there])
        sides = ranked(backward, q, shown[~done].tolist()), ranked(forward, q, shown[done].tolist())
        by_rank = sorted((rank, *pair_) for side in sides for rank, pair_ in enumerate(side))
        assert_lists(fused.item[row], [item for *_, item in by_rank][:k])
        listed = fused.item[row] >= 0
        np.testing.assert_array_equal(fused.is_forward[row][listed], np.isin(fused.item[row], order[:there])[listed])
        old = [item for _, item in ranked(backward, q, shown.tolist())]
        new = [item for _, item in ranked(forward, q, shown.tolist() if there == 40 else old[:7])]
        assert_lists(reranked.item[row], (new if there == 40 else new + old[7:])[:k])


def assert_lists(found: np.ndarray, expected: list[int]) -> None:
    assert found[found >= 0].tolist() == expected
