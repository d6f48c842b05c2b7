"""The timeline of a drill against plain loops over the events and numbers worked out by hand."""

import math
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_backfill.core.schema import arrow_table
from ray_backfill.drill.journal import Applied, CheckpointMeasured, Incident, JournalEntry, Started, of_type
from ray_backfill.drill.plan import make_plan
from ray_backfill.drill.results import Segment, counts, incidents, phases, timeline, with_phases
from ray_backfill.drill.results import served as figures_of
from ray_backfill.drill.settings import ChurnSettings
from ray_backfill.drill.tables import Checkpoint, EventRow, IncidentRow, Phase
from ray_backfill.drill.traffic import read_events

# Two drivers with one checkpoint each; the second driver warms up within the second segment.
ENTRIES: list[JournalEntry] = [
    Started(0.0, leg=0, warm_up_s=2.0),
    CheckpointMeasured(4.0, 0, 3.0, {}, 0, 0, 0, 0),
    Applied(5.0, 1, "backfill", items=30),
    Applied(5.5, 2, "delete", items=100),
    Started(6.0, leg=1, warm_up_s=1.5),
    Incident(6.0, "driver restarted", "2 operations"),
    Applied(9.0, 3, "backfill", items=20),
    CheckpointMeasured(12.0, 1, 10.0, {}, 0, 0, 0, 0),
    Applied(13.0, 4, "rollback", items=7),
    CheckpointMeasured(16.25, 2, 15.0, {}, 0, 0, 0, 0),
]


def served(*of: Any) -> SimpleNamespace:
    events, entries, segment = of
    return SimpleNamespace(**figures_of(with_phases(events, entries), entries, segment))


def events_of(rows: list[tuple[Any, ...]]) -> pd.DataFrame:
    """Events from their first seven columns; applied operations and sizes are left open."""
    return arrow_table(EventRow, [EventRow(*row, *[-1] * 4) for row in rows]).to_pandas()


EVENTS = events_of(
    [
        (1.0, 900.0, 1, True, True, 0, 0),
        (2.5, 12.0, 2, True, False, 0, 0),
        (3.5, 300.0, 7, True, False, 2, 0),  # during the first measurement
        (3.75, 400.0, 1, False, False, 0, 0),
        (4.0, 10.0, 2, True, False, 1, 0),
        (5.0, 20.0, 1, True, False, 0, 0),
        (6.5, 1000.0, 4, True, True, 0, 0),
        (8.0, 5000.0, 3, False, False, 3, 0),
        (9.5, 30.0, 2, True, False, 0, 1),
        (10.25, 999.0, 5, True, False, 0, 0),  # during the second measurement
        (11.75, 5000.0, 1, False, False, 0, 0),
        (12.0, 40.0, 6, True, False, 0, 0),
        (15.25, 50.0, 8, True, False, 0, 2),
        (16.25, 60.0, 9, True, False, 0, 0),  # after the last measurement
    ]
)


def test_a_stretch_by_hand() -> None:
    meanwhile = Applied(11.0, 4, "backfill", items=500)
    found = served(EVENTS, [*ENTRIES, meanwhile], Segment(4.0, 10.0, 12.0))
    assert (found.queries, found.unanswered) == (2 + 1 + 4 + 2 + 5, 3 + 1)
    assert (found.retried, found.violations) == (1 + 3, 1)
    assert found.queries_per_s == pytest.approx((2 + 1 + 2) / (6 - 1.5)), "of 6 s, 1.5 s were warm-up"
    # The middle of 10, 20, 30 and 5000, the wait of the unanswered query.
    assert found.p50_ms == pytest.approx(25)
    assert math.isnan(found.p95_ms)
    assert math.isnan(found.p99_ms), "four are too few"
    assert found.items_per_s == pytest.approx((30 + 20) / 6), "measuring is left out"


def test_the_first_stretch_has_a_warm_up_and_no_backfill() -> None:
    found = served(EVENTS, ENTRIES, Segment(0.0, 3.0, 4.0))
    assert (found.queries, found.unanswered, found.retried) == (1 + 2 + 7, 1, 2)
    assert found.queries_per_s == pytest.approx(2 / (3 - 2))
    assert math.isnan(found.p50_ms), "one is too few"
    assert math.isnan(found.items_per_s)


def test_a_quantile_needs_a_request_that_is_slower() -> None:
    """0 to 98 ms, then 99 ms more: the positions of the quantiles of 100 requests are 49.5, 94.05 and 98.01."""
    rows = [(4.5 + i / 100, float(i), 1, True, False, 0, 0) for i in range(100)]
    found = served(events_of(rows), ENTRIES, Segment(4.0, 10.0, 12.0))
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx((49.5, 94.05, 98.01))
    found = served(events_of(rows[:99]), ENTRIES, Segment(4.0, 10.0, 12.0))
    assert found.p95_ms == pytest.approx(0.95 * 98)
    assert math.isnan(found.p99_ms)


def test_the_last_stretch_has_no_end() -> None:
    found = served(EVENTS, ENTRIES, Segment(12.0, 15.0, math.inf))
    assert (found.queries, found.violations) == (6 + 8 + 9, 2)
    assert found.queries_per_s == pytest.approx(6 / 3)
    assert found.items_per_s == 0, "a rollback is no backfill"


def test_a_warm_up_counts_only_where_it_lies_within_a_stretch() -> None:
    """One leg's warm-up begins before the segment; another's runs on into the measurement."""
    entries = [Started(2.0, 0, warm_up_s=3.0), Started(9.0, 1, warm_up_s=2.5), Started(20.0, 2, warm_up_s=2.5)]
    events = events_of([(6.0, 10.0, 12, True, False, 0, 0)])
    found = served(events, entries, Segment(4.0, 10.0, 12.0))
    assert found.queries_per_s == pytest.approx(12 / (6 - 1 - 1))


def test_without_traffic_there_are_no_rates() -> None:
    events = events_of([(1.0, 5.0, 1, True, True, 0, 0)])
    for some in (events, events[:0]):
        found = served(some, ENTRIES, Segment(0.0, 3.0, 4.0))
        assert all(math.isnan(x) for x in (found.queries_per_s, found.p50_ms, found.p95_ms, found.p99_ms))
        assert found.queries == len(some)


# Quarters of a second, so that some requests fall on the edges of stretches.
QUARTERS = st.integers(0, 70).map(lambda quarters: quarters / 4)
ROWS = st.lists(
    st.tuples(
        QUARTERS, st.integers(1, 99).map(float), st.integers(1, 9), st.booleans(), st.booleans(),
        st.integers(0, 3), st.integers(0, 2),
    ),
    max_size=40,
)  # fmt: skip


@given(rows=ROWS)
def test_the_table_of_seconds_is_a_plain_loop(rows: list[tuple[Any, ...]]) -> None:
    table = timeline(ENTRIES, with_phases(events_of(rows), ENTRIES))
    last_s = max([16.25, *(row[0] for row in rows)])
    assert [row.elapsed_s for row in table] == list(range(int(last_s) + 1))
    for second, row in enumerate(table):
        within = [event for event in rows if second <= event[0] < second + 1]
        assert row.queries == sum(event[2] for event in within if event[3])
        assert row.unanswered == sum(event[2] for event in within if not event[3])
        # The two warm-ups of ENTRIES, and those that an actor has marked.
        waited = [e[1] for e in within if not (e[4] or 0 < e[0] < 2 or 6 < e[0] < 7.5)]
        for share, value in ((0.5, row.p50_ms), (0.99, row.p99_ms)):
            np.testing.assert_allclose(value, np.quantile(waited, share) if waited else math.nan)
        # Derived from ENTRIES by hand.
        assert row.items == {5: 30, 9: 20}.get(second, 0)
        assert row.is_measuring == (second in {3, 4, 10, 11, 12, 15, 16})
        assert row.is_warm_up == (second in {0, 1, 6, 7})
        assert row.leg == (second >= 6)


def entry_lists() -> st.SearchStrategy[list[JournalEntry]]:
    """Journals of two drivers, with writes at any time, also during measurements and warm-ups."""
    writes = st.lists(st.tuples(QUARTERS, st.integers(1, 50)), max_size=8)
    checkpoints = st.lists(st.integers(0, 35), min_size=2, max_size=6, unique=True).map(sorted)
    warm_ups = st.tuples(st.integers(0, 3), st.integers(0, 3))

    def journal(written: list[tuple[float, int]], at: list[int], warm_s: tuple[int, int]) -> list[JournalEntry]:
        entries: list[JournalEntry] = [Started(0.0, 0, warm_s[0]), Started(9.0, 1, warm_s[1])]
        entries += [CheckpointMeasured(2.0 * s + 1.5, i, 2.0 * s, {}, 0, 0, 0, 0) for i, s in enumerate(at)]
        return entries + [Applied(s, i + 1, "backfill", items) for i, (s, items) in enumerate(sorted(written))]

    return st.builds(journal, writes, checkpoints, warm_ups)


@given(rows=ROWS, entries=entry_lists())
def test_phases_headline_tables_and_charts_count_the_same(rows: list[tuple[Any, ...]], entries: Any) -> None:
    """Sums over phases, over checkpoints (the headline) and over seconds (the charts) are those of the raw events."""
    events = with_phases(events_of(rows), entries)
    of_phase, of_second = phases(entries, events), timeline(entries, events)
    ends_s = [0.0, *(e.elapsed_s for e in of_type(entries, CheckpointMeasured)[:-1]), math.inf]
    stretches = [
        Segment(start, e.began_s, end)
        for e, (start, end) in zip(of_type(entries, CheckpointMeasured), pairwise(ends_s), strict=True)
    ]
    of_checkpoint = [served(events, entries, stretch) for stretch in stretches]
    for name, answered in (("queries", True), ("unanswered", False)):
        raw = sum(row[2] for row in rows if row[3] is answered)
        for table in (of_phase, of_second, of_checkpoint):
            assert sum(getattr(row, name) for row in table) == raw
    assert sum(stretch.retried for stretch in of_checkpoint) == sum(row[5] for row in rows)
    assert sum(stretch.violations for stretch in of_checkpoint) == sum(row[6] for row in rows)
    assert sum(phase.requests for phase in of_phase) == len(rows)
    written = sum(entry.items for entry in of_type(entries, Applied))
    assert sum(phase.items for phase in of_phase) == sum(second.items for second in of_second) == written
    last_s = max([entry.elapsed_s for entry in entries] + [row[0] for row in rows])
    assert sum(phase.seconds for phase in of_phase) == pytest.approx(last_s), "no moment is left out or counted twice"
    assert all(math.isnan(phase.p99_ms) for phase in of_phase), "40 requests are too few"


def test_the_phases_of_a_slow_backfill_by_hand() -> None:
    """Each write is followed by a checkpoint within the same second, as where 60 items a second are allowed.

    Writes at 20, 30 and 40 s; 2 s are measured after each, and the first 1.5 s at 5 s, when embedding starts.
    """
    entries: list[JournalEntry] = [Started(0.0, 0, 2.0), CheckpointMeasured(6.5, 0, 5.0, {}, 0, 0, 0, 0)]
    for i, second in enumerate((20.1, 30.1, 40.1), start=1):
        entries += [Applied(second, i, "backfill", 600), CheckpointMeasured(second + 2, i, second, {}, 0, 0, 0, 0)]
    rows = [(s / 10, 10.0 if s < 50 else 30.0, 1, s != 5, s < 20, 0, 0) for s in range(450)]
    found = {row.phase: row for row in phases(entries, with_phases(events_of(rows), entries))}
    assert [found[phase].seconds for phase in Phase] == pytest.approx([3, 40.1 - 6.5 - 4, 44.9 - 42.1, 7.5, 2])
    assert {name: row.items for name, row in found.items() if row.items} == {Phase.DURING: 1800}
    assert found[Phase.DURING].p99_ms == pytest.approx(30), "as long as embedding takes, also before the first write"
    assert [found[phase].unanswered for phase in Phase] == [0, 0, 0, 0, 1], "a warm-up's counts, too"
    assert math.isnan(found[Phase.BEFORE].p99_ms), "30 requests are too few"


def test_a_table_of_a_drill_without_requests_or_backfill(tmp_path: Path) -> None:
    entries: list[JournalEntry] = [Started(0.0, 0, 0.0)]
    (row,) = timeline(entries, events := with_phases(read_events(tmp_path), entries))
    assert phases(entries, events) == []
    assert (row.queries, row.unanswered, row.items, row.is_warm_up) == (0, 0, 0, False)
    assert math.isnan(row.p50_ms)


def test_events_of_all_files_come_in_the_order_of_their_time(tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    EVENTS[::2].to_parquet(tmp_path / "events" / "leg-000-000.parquet")
    EVENTS[1::2].to_parquet(tmp_path / "events" / "leg-000-001.parquet")
    pd.testing.assert_frame_equal(read_events(tmp_path), EVENTS)


def test_incidents_are_told_with_their_time() -> None:
    """Operation 2 was the third to be applied, at 9.0; operation 8 was never applied."""
    assert incidents(ENTRIES, {2: np.array([41, 17]), 8: np.array([3])}) == [
        IncidentRow(0.0, "broken image", "item 3"),
        IncidentRow(6.0, "driver restarted", "2 operations"),
        IncidentRow(9.0, "broken image", "item 17"),
        IncidentRow(9.0, "broken image", "item 41"),
        IncidentRow(13.0, "rollback", ""),
    ]
    assert incidents(ENTRIES[:3], {}) == []


def test_incidents_of_one_moment_stay_as_they_were_recorded() -> None:
    recorded: list[JournalEntry] = [
        Incident(6.0, "part rebuilt", "damaged"),
        Incident(6.0, "driver restarted", "3 operations"),
    ]
    assert [row.kind for row in incidents(recorded, {})] == ["part rebuilt", "driver restarted"]


def test_counts_by_hand() -> None:
    """24 items, 4 of them inserted; 15 of the other 20 are backfilled in parts of five, then all is rolled back."""
    plan = make_plan(np.arange(24), 5, 5, ChurnSettings(inserts=4, deletes=8, rollback_at=0.7, seed=1))
    kinds = [operation.kind for operation in plan.operations]
    assert kinds == ["backfill", "insert", "delete"] * 3 + ["rollback"]
    inserted = [operation.positions for operation in plan.operations if operation.kind == "insert"]
    assert [len(items) for items in inserted] == [1, 1, 1]
    # A broken image in the first backfill, a broken insert, and an insert that the old model cannot embed.
    broken = {0: plan.operations[0].positions[:1], 1: inserted[0], 9: np.concatenate([inserted[0], inserted[1]])}
    for applied, kept_old, n_inserted, n_deleted in (
        (0, 0, 0, 0),
        (1, 1, 0, 0),
        (3, 1, 0, 2),
        (9, 1, 2, 6),
        (10, 1, 1, 6),
    ):
        state = plan.state(applied, broken)
        measured = CheckpointMeasured(8.5, 3, 8.0, {}, 0, 0, 70, 90)
        found = SimpleNamespace(**counts(plan, Checkpoint(3, applied, 0.25), state, broken, measured))
        backfilled = [o.positions.tolist() for o in plan.operations[:applied] if o.kind == "backfill"]
        assert found.backfilled == sum(len(items) for items in backfilled) - kept_old
        assert (found.kept_old, found.inserted, found.deleted) == (kept_old, n_inserted, n_deleted)
        assert found.old_items == sum(side == 1 for side in state.tolist())
        assert found.new_items == sum(side == 2 for side in state.tolist())
        assert found.old_items + found.new_items == 20 + n_inserted - n_deleted
        assert (found.moment, found.t, found.phase) == (3, 0.25, "backfill")
        assert (found.old_bytes, found.new_bytes, found.elapsed_s) == (70, 90, 8.5)
    assert found.new_items == 0
