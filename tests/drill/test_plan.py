"""The plan of a drill against a plain simulation of it, item by item."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_backfill.core.errors import InputError
from ray_backfill.drill.plan import NEW, NOWHERE, OLD, make_plan, read_plan, write_plan
from ray_backfill.drill.settings import ChurnSettings


@given(
    n=st.integers(12, 80), points=st.integers(2, 12), part=st.integers(1, 30), inserts=st.integers(0, 5),
    deletes=st.integers(0, 5), rollback=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_item_is_moved_once_and_in_order(
    n: int, points: int, part: int, inserts: int, deletes: int, rollback: float, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(n)
    plan = make_plan(order, points, part, ChurnSettings(inserts, deletes, rollback, seed))
    assert [operation.number for operation in plan.operations] == list(range(len(plan.operations)))
    where = dict.fromkeys(plan.order.tolist(), OLD)
    moved: list[int] = []
    deleted: set[int] = set()
    for operation in plan.operations:
        items = operation.positions.tolist()
        if operation.kind == "backfill":
            assert len(items) <= part
            assert all(where[item] == OLD for item in items), "a deleted item is not embedded"
            moved += items
            where |= dict.fromkeys(items, NEW)
        elif operation.kind == "insert":
            assert not set(items) & where.keys()
            where |= dict.fromkeys(items, NEW)
        elif operation.kind == "delete":
            assert all(where[item] in (OLD, NEW) for item in items)
            deleted |= set(items)
            where |= dict.fromkeys(items, NOWHERE)
        else:
            where = {item: OLD if side != NOWHERE else NOWHERE for item, side in where.items()}
            inserted = {i for o in plan.operations if o.kind == "insert" for i in o.positions.tolist()}
            assert set(items) == inserted
        state = plan.state(operation.number + 1, {})
        assert {i: int(s) for i, s in enumerate(state) if i in where} == where
    place = {item: i for i, item in enumerate(order.tolist())}
    assert [place[item] for item in moved] == sorted(place[item] for item in moved)
    if not rollback:
        assert set(moved) | deleted >= set(plan.order.tolist())
        assert len(plan.held_back) == inserts
        assert len(deleted) == deletes
        assert sorted(where) == list(range(n))


@given(n=st.integers(2, 60), points=st.integers(2, 15), part=st.integers(1, 70))
def test_checkpoints_are_those_of_the_replay(n: int, points: int, part: int) -> None:
    plan = make_plan(np.arange(n)[::-1].copy(), points, part, ChurnSettings())
    assert [checkpoint.t for checkpoint in plan.checkpoints] == np.linspace(0, 1, points).tolist()
    for i, checkpoint in enumerate(plan.checkpoints):
        done = sum(len(operation.positions) for operation in plan.operations[: checkpoint.applied])
        assert done == i * n // (points - 1), "floor(t * N), in exact arithmetic"


def test_sizes_of_shards_are_those_of_the_states() -> None:
    plan = make_plan(np.random.default_rng(0).permutation(50), 4, 7, ChurnSettings(6, 9, 0.6, seed=3))
    edges = [0, 13, 14, 50]
    sizes = plan.sizes(edges)
    for applied in range(len(plan.operations) + 1):
        alive = plan.state(applied, {}) != NOWHERE
        assert sizes[applied].tolist() == [alive[a:b].sum() for a, b in pairwise(edges)]


def test_broken_images_stay_where_they_are() -> None:
    plan = make_plan(np.arange(20), 2, 5, ChurnSettings(inserts=4, seed=1))
    insert = next(operation for operation in plan.operations if operation.kind == "insert")
    broken = {0: plan.operations[0].positions[1:2], insert.number: insert.positions[:1]}
    state = plan.state(len(plan.operations), broken)
    assert state[broken[0]] == OLD
    assert state[broken[insert.number]] == NOWHERE
    assert (state == NEW).sum() == 20 - 2


def test_a_rollback_loses_inserted_items_that_the_old_model_cannot_embed() -> None:
    """One item is broken at its insert only, one at the rollback only, one at both; a broken old item stays old."""
    plan = make_plan(np.arange(20), 2, 4, ChurnSettings(inserts=4, rollback_at=1.0, seed=1))
    insert = {int(p): o.number for o in plan.operations if o.kind == "insert" for p in o.positions}
    at_insert, at_rollback, at_both, whole = (int(position) for position in plan.held_back)
    rollback = plan.operations[-1]
    assert rollback.kind == "rollback"
    broken = {insert[position]: np.array([position]) for position in (at_insert, at_both)}
    before = plan.state(rollback.number, broken)
    assert before[plan.held_back].tolist() == [NOWHERE, NEW, NOWHERE, NEW]
    broken |= {0: plan.operations[0].positions[:1], rollback.number: np.array([at_rollback, at_both])}
    state = plan.state(len(plan.operations), broken)
    assert [state[p] for p in (at_insert, at_rollback, at_both, whole)] == [NOWHERE, NOWHERE, NOWHERE, OLD]
    assert (state[plan.order] == OLD).all()


@pytest.mark.parametrize(("rollback_at", "done"), [(0.5, 10), (0.51, 15), (0.45, 10), (1.0, 20)])
def test_a_rollback_comes_at_the_first_end_of_a_part_that_is_far_enough(rollback_at: float, done: int) -> None:
    """Parts of 20 items end at 5, 10, 15 and 20, so a rollback at one half is exactly at the end of a part."""
    plan = make_plan(np.arange(20), 5, 5, ChurnSettings(rollback_at=rollback_at))
    assert [operation.kind for operation in plan.operations] == ["backfill"] * (done // 5) + ["rollback"]
    assert plan.checkpoints[-1].phase == "rollback"
    assert plan.checkpoints[-1].t == done / 20
    assert plan.checkpoints[-1].applied == len(plan.operations)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = make_plan(np.random.default_rng(0).permutation(40), 5, 6, ChurnSettings(3, 4, 0.5))
    write_plan(tmp_path / "plan", plan)
    read = read_plan(tmp_path / "plan")
    assert [(o.number, o.kind, o.positions.tolist()) for o in read.operations] == [
        (o.number, o.kind, o.positions.tolist()) for o in plan.operations
    ]
    assert read.checkpoints == plan.checkpoints
    assert read.order.tolist() == plan.order.tolist()
    assert read.held_back.tolist() == plan.held_back.tolist()


@pytest.mark.parametrize(
    ("churn", "said"),
    [
        ({"inserts": -1}, "--live.churn.inserts must"),
        ({"rollback_at": 1.5}, "--live.churn.rollback-at must"),
        ({"inserts": 15, "deletes": 6}, "--live.churn.inserts 15 and --live.churn.deletes 6 leave none of 20 items"),
    ],
)
def test_impossible_churn_is_refused(churn: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make_plan(np.arange(20), 3, 5, ChurnSettings(**churn))  # type: ignore[arg-type]


def test_a_rollback_comes_at_the_share_that_was_asked() -> None:
    """In floating point, 0.07 * 100 is a little more than 7."""
    plan = make_plan(np.arange(100), 101, 1, ChurnSettings(rollback_at=0.07))
    assert plan.checkpoints[-1].t == 0.07
