"""A journal survives a driver that dies while it writes, and its entries are read back unchanged."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ray_backfill.core.store_path import path_of
from ray_backfill.drill.journal import (
    ENTRIES,
    Applied,
    CheckpointMeasured,
    Finished,
    Incident,
    Journal,
    Started,
    Throttled,
    TrafficRestarted,
    of_type,
)

# A line of each kind, in the format of all drills so far.
LINES = [
    '{"kind": "started", "elapsed_s": 0.0, "leg": 0, "warm_up_s": 3.0, "models": {"new": "minilm@3f2a9c1b"}}',
    '{"kind": "applied", "elapsed_s": 13.03, "applied": 1, "operation": "backfill", "items": 30}',
    '{"kind": "checkpoint", "elapsed_s": 0.183, "moment": 0, "began_s": 0.003, "quality": {"CMC@1": 0.25}, '
    '"old_items": 310, "new_items": 0, "old_bytes": 20150, "new_bytes": 0}',
    '{"kind": "throttle", "elapsed_s": 4.91, "items_per_s": 50.0, "p99_ms": null}',
    '{"kind": "incident", "elapsed_s": 2.0, "what": "shard restarted", "detail": "shard 1"}',
    '{"kind": "traffic_restarted", "elapsed_s": 7.5, "leg": 0, "actor": 2, "incarnation": 1}',
    '{"kind": "finished", "elapsed_s": 20.0}',
]
WRITTEN = [
    Started(0.0, 0, 3.0, {"new": "minilm@3f2a9c1b"}),
    Applied(13.03, 1, "backfill", 30),
    CheckpointMeasured(0.183, 0, 0.003, {"CMC@1": 0.25}, 310, 0, 20150, 0),
    Throttled(4.91, 50.0, None),
    Incident(2.0, "shard restarted", "shard 1"),
    TrafficRestarted(7.5, 0, 2, 1),
    Finished(20.0),
]


def test_every_kind_of_entry_is_a_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "drill")
    for entry in WRITTEN:
        journal.add(entry)
    assert journal.path.read_text().splitlines() == LINES
    assert journal.entries() == WRITTEN
    assert [type(entry) for entry in WRITTEN] == list(ENTRIES)
    assert of_type(journal.entries(), Incident) == [WRITTEN[4]]
    assert json.loads(LINES[1])["applied"] == journal.applied() == 1


def test_the_start_of_a_drill_before_models_were_recorded_is_read(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_text('{"kind": "started", "elapsed_s": 0.0, "leg": 0, "warm_up_s": 3.0}\n')
    assert Journal(tmp_path).entries() == [Started(0.0, 0, 3.0)]


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.entries() == []
    assert journal.applied() == 0
    journal.add(Applied(1.0, 1, "delete", 2))
    journal.add(Applied(2.0, 2, "delete", 2))
    with journal.path.open("ab") as file:
        file.write(b'{"kind": "applied", "appl')
    assert journal.applied() == 2
    journal.mend(set())
    journal.add(Applied(3.0, 3, "delete", 2))
    assert [entry.applied for entry in of_type(journal.entries(), Applied)] == [1, 2, 3]


def test_a_journal_with_only_an_incomplete_line_is_empty(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.path.write_bytes(b'{"ki')
    journal.mend(set())
    assert journal.entries() == []
    journal.add(Finished(1.0))
    assert journal.entries() == [Finished(1.0)]


def test_a_journal_in_a_store_keeps_what_two_threads_add(store: str) -> None:
    drill = path_of(store) / "drill"
    Journal(drill).add(Finished(0.0))
    (journal := Journal(drill)).add(Finished(1.0))  # another driver
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda second: journal.add(Incident(second, "what", "detail")), range(2, 22)))
    assert sorted(entry.elapsed_s for entry in Journal(drill).entries()) == list(range(22))
