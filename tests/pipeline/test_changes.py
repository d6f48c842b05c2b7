"""Curves of a gallery that changes during the backfill, against a literal loop in plain Python."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import read_folder
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay import Served
from ray_backfill.pipeline.changes import Changes, Timeline
from ray_backfill.pipeline.lists import Stages
from ray_backfill.pipeline.replay import first_results, replay_service
from ray_backfill.pipeline.service import ServiceSettings, read_service
from tests.pipeline.test_literal import METRICS, POINTS, World, value, world

# At, between, before and after the points of a replay.
TIMES = st.sampled_from([0.0] * 8 + [0.01, 0.25, 0.3, 0.5, 0.6, 0.75, 0.9, 1.0])


@st.composite
def changes(draw: st.DrawFn, n: int) -> Changes:
    """In order for each item: inserted, changed, deleted."""
    rows = []
    for _ in range(n):
        inserted, changed, deleted = draw(st.tuples(TIMES, TIMES, TIMES))
        changed = changed if changed > inserted else 0.0
        rows.append((inserted, changed, deleted if deleted > max(inserted, changed) else 0.0))
    return Changes(*np.array(rows).T)


class Literal:
    """The lists of a pair in plain Python."""

    def __init__(self, made: World, pair: Served, what: Changes) -> None:
        self.made, self.pair, self.what, n = made, pair, what, made.truth.n_gallery
        self.distance, self.score = {}, {}
        for q in range(made.truth.n_queries):
            for is_new, side in ((False, pair.backward), (True, pair.forward)):
                d = ProductForm.of(made.systems[side], "l2").exact(np.full(n, q), np.arange(n))
                is_alone = pair.backward == pair.forward and pair.switch == "progressively"
                self.distance[q, is_new] = d.tolist()
                self.score[q, is_new] = (d if is_alone else pair.merge.scores(d, np.full(n, is_new))).tolist()

    def at(self, q: int, t: float, order: str, stages: Stages) -> list[tuple[int, bool]]:
        """(item, whether the old partition serves it) of one query at progress t."""
        truth, pair, inserted = self.made.truth, self.pair, self.what.inserted_at
        n, is_alone = truth.n_gallery, pair.backward == pair.forward and pair.switch == "progressively"
        waiting = [i for i in pair.orders[order].tolist() if inserted[i] == 0]
        done = {*waiting[: math.floor(t * len(waiting) + 1e-9)], *np.flatnonzero(inserted).tolist()}
        if pair.switch == "at_end" or is_alone:
            done = set(range(n)) if t == 1 else set()
        old, new = [], []
        for i in set(range(n)) - set(truth.ignored_of(q).tolist()):
            gone = 0 < self.what.deleted_at[i] <= t
            if t < inserted[i] or gone or (truth.filter and truth.filter.of_item[i] != truth.filter.of_query[q]):
                continue
            if i in done:
                new.append(i)
            elif pair.switch != "only_backfilled" and (is_alone or inserted[i] == 0):
                old.append(i)
        entries = []
        for is_new, items in ((False, old), (True, new)):
            d, score = self.distance[q, is_new], self.score[q, is_new]
            for rank, i in enumerate(sorted(items, key=lambda i: (d[i], i))[: stages.retrieve]):
                entries.append((rank if pair.merge.by_rank else score[i], d[i], i, not is_new))
        listed = [(i, is_old) for _, _, i, is_old in sorted(entries)][: stages.cut]
        first, rest, relevance = listed[: stages.top], listed[stages.top :], self.made.relevance
        scored = sorted((of for of in first if (q, of[0]) in relevance), key=lambda of: (-relevance[q, of[0]], of[0]))
        return [*scored, *(of for of in first if (q, of[0]) not in relevance), *rest]


@settings(max_examples=20)
@given(
    data=st.data(), seed=st.integers(0, 10_000), retrieve=st.integers(3, 8), cut=st.integers(3, 12),
    top=st.sampled_from([0, 3]), tenants=st.booleans(), is_shallow=st.booleans(),
)  # fmt: skip
def test_curves_are_those_of_a_literal_loop(
    data: st.DataObject, seed: int, retrieve: int, cut: int, top: int, tenants: bool, is_shallow: bool
) -> None:
    """is_shallow: queries are searched again until their lists are whole."""
    stages = Stages(retrieve, min(cut, 2 * retrieve), None, top)
    made = world(seed, stages, tenants=tenants)
    what = data.draw(changes(made.truth.n_gallery))
    t_of = [j / (POINTS - 1) for j in range(POINTS)]

    def right_at(q: int, t: float) -> set[int]:
        right = made.truth.positives_of(q).tolist()
        return {i for i in right if what.inserted_at[i] <= t and not 0 < what.deleted_at[i] <= t}

    counted = [q for q in range(made.truth.n_queries) if all(right_at(q, t) for t in t_of)]
    service, variation = replace(made.service, text=None, changes=what), replace(stages, top=0)
    usual = Timeline.likely_depth
    with patch.object(Timeline, "likely_depth", (lambda self, k, points: k) if is_shallow else usual):
        arguments = made.systems, made.served, made.truth, POINTS, METRICS, "l2", service, [variation]
        if not counted:
            with pytest.raises(InputError, match="at every moment"):
                replay_service(*arguments)
            return
        curves = replay_service(*arguments, step=2)
        for place, pair in enumerate(made.served):
            first = first_results(made.systems, pair, made.truth, np.array(counted), POINTS, "l2", service, 3)
            literal = Literal(made, pair, what)
            for order in pair.orders:
                whole, thinned = (of_pairs[place][order] for of_pairs in curves)
                assert whole.scored.tolist() == counted
                assert whole.n_skipped == made.truth.n_queries - len(counted)
                assert (whole.stale is None) == (pair.backward == pair.forward)
                for (row, q), (j, t) in product(enumerate(counted), enumerate(t_of)):
                    listed = literal.at(q, t, order, stages)
                    items = [i for i, _ in listed]
                    assert first[order].item[row, j].tolist() == [*items, -1, -1, -1][:3]
                    plain = [i for i, _ in literal.at(q, t, order, variation)]
                    for metric in METRICS:
                        expected = value(metric, items, right_at(q, t))
                        assert whole.per_query[metric][row, j] == pytest.approx(expected, abs=1e-12)
                        if j % 2 == 0:
                            expected = value(metric, plain, right_at(q, t))
                            assert thinned.per_query[metric][row, j // 2] == pytest.approx(expected, abs=1e-12)
                    stale = [is_old and 0 < what.changed_at[i] <= t for i, is_old in listed[:10]]
                    if whole.stale is not None:
                        assert whole.stale[row, j] == pytest.approx(sum(stale) / max(1, len(stale)))


def test_without_an_event_the_curves_are_those_without_changes() -> None:
    made, nothing = world(5, Stages(6, 9)), np.zeros(14)
    service = replace(made.service, text=None, stages=Stages(6, 9))
    arguments = made.systems, made.served, made.truth, POINTS, METRICS, "l2"
    (plain,) = replay_service(*arguments, service)
    (same,) = replay_service(*arguments, replace(service, changes=Changes(nothing, nothing, nothing)))
    for of_orders, of_same in zip(plain, same, strict=True):
        for order, curve in of_orders.items():
            assert curve.per_query.keys() == of_same[order].per_query.keys()
            for metric, values in curve.per_query.items():
                np.testing.assert_array_equal(values, of_same[order].per_query[metric])


def write(folder: Path, columns: dict[str, Any], service: str = "retrieve: 20\nchanges: true") -> Path:
    """A folder of 60 items of three classes, old and new vectors by which they are told apart, and service.yaml."""
    rng, label = np.random.default_rng(1), np.arange(60) % 3
    vectors = {model: np.eye(4)[label] + rng.normal(0, 0.1, (60, 4)) for model in ("old", "new")}
    split = {"id": np.arange(60), "label": label, **vectors}
    rb.write_folder(folder / "data", split | columns, split)
    (folder / "service.yaml").write_text(service)
    return folder


def simulated(folder: Path, **more: Any) -> pd.DataFrame:
    """The curves of RM naive."""
    how: dict[str, Any] = {"methods": ["rm_naive"], "metrics": ["recall@20"], "merges": ["raw"], "points": 5} | more
    rb.simulate(folder / "data", out=folder / "out", service=folder / "service.yaml", **how)
    return pd.read_parquet(folder / "out" / "results" / "curves.parquet")


def test_from_files_to_stale_answers(tmp_path: Path) -> None:
    """Half of the items change at half-time; those that come late are found, although the order has them last."""
    rows = np.arange(60)
    columns = {
        "inserted_at": np.where(rows % 20 == 7, 0.5, 0.0), "changed_at": np.where(rows % 2 == 0, 0.5, 0.0),
        "deleted_at": np.where(rows % 20 == 9, 0.75, 0.0), "order_score": rows,
    }  # fmt: skip
    curves = simulated(write(tmp_path, columns), orders=["given", "stale_first"])
    stale = curves[curves["metric"] == "stale_answers"].set_index(["method", "order", "t"])["value"]
    assert set(stale.index.get_level_values("method")) == {"rm_naive"}
    given, first = stale["rm_naive", "given"], stale["rm_naive", "stale_first"]
    assert (given[[0, 0.25, 1]] == 0).all()
    assert 0.05 < given[0.75] < given[0.5] < 0.5
    assert first[0.5] > 0
    assert first[0.75] < given[0.75]
    quality = curves[curves["metric"] == "recall@20"].set_index(["method", "order", "t"])["value"]
    assert quality["rm_naive", "given", 0.5] == pytest.approx(1.0, abs=0.01), "the new items are found"
    page = (tmp_path / "out" / "results" / "report.html").read_text()
    assert "How many answers are stale?" in page
    write(tmp_path, columns | {"changed_at": np.zeros(60)})
    with pytest.raises(InputError, match="changes"):
        simulated(tmp_path, orders=["given"])


def test_dates_are_mapped_to_progress(tmp_path: Path) -> None:
    service = "retrieve: 20\nchanges: {start: 2026-03-01, end: 2026-03-11}"
    days = np.full(60, "2026-02-01", "datetime64[us]")
    days[7] = np.datetime64("2026-03-06")
    gone = np.full(60, "NaT", "datetime64[us]")
    gone[9] = np.datetime64("2026-03-08T12:00")
    folder = write(tmp_path, {"inserted_at": days, "changed_at": days, "deleted_at": gone}, service)
    read = read_service(folder / "service.yaml")
    changes = ServiceSettings.of(read.recorded()).changes_of(read_folder(folder / "data").gallery)
    assert changes is not None
    expected = np.zeros((3, 60))
    expected[0, 7] = expected[1, 7] = 0.5
    expected[2, 9] = 0.75
    np.testing.assert_allclose([changes.inserted_at, changes.changed_at, changes.deleted_at], expected)
    assert len(simulated(folder, orders=["random", "stale_first"])) > 0


def of_one(row: int, time: float, elsewhere: float = 0.0) -> np.ndarray:
    """The times of 60 items, of which one is another."""
    times = np.full(60, elsewhere)
    times[row] = time
    return times


TRUE = "retrieve: 20\nchanges: true"
DATES = "retrieve: 20\nchanges: {start: 2026-03-01, end: 2026-03-11}"
BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no column": (TRUE, {}, "inserted_at, changed_at, deleted_at"),
    "NaN": (TRUE, {"deleted_at": of_one(3, np.nan)}, "deleted_at"),
    "beyond the end": (TRUE, {"changed_at": of_one(3, 1.01)}, "gallery row 3: changed_at"),
    "before the beginning": (TRUE, {"inserted_at": of_one(3, -0.1)}, "gallery row 3: inserted_at"),
    "deleted before inserted": (
        TRUE, {"inserted_at": of_one(3, 0.5), "deleted_at": of_one(3, 0.4)}, "deleted_at 0.4 is before inserted_at 0.5",
    ),
    "changed before inserted": (
        TRUE, {"inserted_at": of_one(3, 0.5), "changed_at": of_one(3, 0.4)}, "changed_at 0.4 is before inserted_at 0.5",
    ),
    "deleted before changed": (
        TRUE, {"changed_at": of_one(3, 0.5), "deleted_at": of_one(3, 0.4)}, "deleted_at 0.4 is before changed_at 0.5",
    ),
    "many": (TRUE, {"deleted_at": np.full(60, 7.0)}, r"7 \(60 such rows\)"),
    "all answers go": (TRUE, {"deleted_at": np.full(60, 0.5)}, "at every moment"),
    "texts": (TRUE, {"deleted_at": np.full(60, "soon")}, "must hold numbers"),
    "dates for numbers": (TRUE, {"deleted_at": np.full(60, "2026-03-04", "datetime64[us]")}, "must hold numbers"),
    "numbers for dates": (DATES, {"deleted_at": of_one(3, 0.5)}, "dates or times"),
    "gone before the beginning": (DATES, {"deleted_at": np.full(60, "2026-02-04", "datetime64[us]")}, "beginning"),
    "a period that ends first": (
        "changes: {start: 2026-03-11, end: 2026-03-01}", {"deleted_at": of_one(3, 0.5)}, "after changes.start",
    ),
    "half a period": ("changes: {start: 2026-03-11}", {"deleted_at": of_one(3, 0.5)}, "lacks end"),
    "neither": ("changes: often", {"deleted_at": of_one(3, 0.5)}, "true or false"),
    "with a text list": (
        TRUE + "\nhybrid: {list: bm25}", {"deleted_at": of_one(3, 0.5)}, "text list",
    ),
    "stale_first without progress": (
        "retrieve: 20", {"changed_at": of_one(3, 20.0)}, "stale_first",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_times_are_one_line_and_leave_nothing(case: str, tmp_path: Path) -> None:
    service, columns, named = BAD[case]
    folder = write(tmp_path, columns, service)
    with pytest.raises(InputError, match=named) as raised:
        simulated(folder, orders=["random", *(["stale_first"] if "stale_first" in case else [])])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "results").exists()
