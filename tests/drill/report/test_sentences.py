"""Sentences against hand-made drills."""

import math
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.drill.report.drill_folder import Drill, read_drill
from ray_backfill.drill.report.sentences import details, glossary, is_alarming, verdict
from ray_backfill.page.numbers import duration, megabytes, milliseconds, signed_points
from ray_backfill.page.numbers import rate as per_second
from tests.drill.report.folder import METRICS, replayed_value, write_drill

WHOLE = "Nothing was lost: 0 of 8,750 queries unanswered, 0 violations, and the two partitions hold the whole gallery"


def drill_of(folder: Path, **settings: Any) -> Drill:
    """The hand-made drill with changes."""
    return read_drill(write_drill(folder, **settings))


def test_an_exact_drill_equals_the_replay(tmp_path: Path) -> None:
    drill = drill_of(tmp_path)
    assert verdict(drill) == (
        f"Live quality equals the replayed curve at all 11 checkpoints. {WHOLE} at all 11 checkpoints."
    )
    assert details(drill) == [
        "1,000 items were backfilled in 3 min 20 s (5 per second, pauses included), while 50 queries per second were "
        "answered.",
        "p99 latency was 46 ms at the median checkpoint and 51 ms at the worst one (t = 100 %); in a typical second "
        "42 ms while items were backfilled, 30 ms before the first.",
    ]


@pytest.mark.parametrize("metric", list(METRICS))
def test_one_bit_off_is_not_equal(tmp_path: Path, metric: str) -> None:
    value = replayed_value(metric, 0.7)
    drill = drill_of(tmp_path, live_off={(metric, 7): math.nextafter(value, 1) - value})
    assert verdict(drill).startswith("Live quality is not what exact indexes give: it is off by up to ")
    assert f"points ({metric}, t = 70 %), although both indexes are exact." in verdict(drill)
    assert "0 points" not in verdict(drill)
    assert "equals" not in verdict(drill)


def test_live_and_exact_may_agree_and_both_be_off_the_replay(tmp_path: Path) -> None:
    alike = "Live quality equals what exact indexes give at all 11 checkpoints"
    off = "it differs by up to 0.50 points (mAP, t = "
    plain = verdict(drill_of(tmp_path, exact_off=0.005))
    assert plain.startswith(f"{alike}; {off}")
    assert " from the replayed curve. " in plain
    churn = verdict(drill_of(tmp_path, exact_off=0.005, has_churn=True))
    assert " from the replayed curve, which does not model inserted and deleted items. " in churn
    kept = verdict(drill_of(tmp_path, exact_off=0.005, changed={(9, "kept_old"): 1}))
    assert " from the replayed curve, which does not model broken images. " in kept


def test_checkpoints_that_the_replay_does_not_have_are_not_claimed(tmp_path: Path) -> None:
    assert verdict(drill_of(tmp_path, points=5)).startswith(
        "Live quality equals what exact indexes give at all 5 checkpoints, and the replayed curve at the 3 of them "
        "that the replay covers. "
    )
    assert verdict(drill_of(tmp_path, points=2)).startswith(
        "Live quality equals the replayed curve at both checkpoints. "
    )
    assert "at the only checkpoint. Nothing was lost" in verdict(drill_of(tmp_path, points=1))


def test_approximate_indexes(tmp_path: Path) -> None:
    off = {("mAP", 3): -0.004, ("CMC@1", 6): -0.012, ("mAP", 8): 0.02}
    drill = drill_of(tmp_path, is_exact=False, live_off=off, changed={(4, "new_recall"): 0.913}, recall=0.97)
    assert verdict(drill).startswith(
        "With approximate indexes, live quality stays within 1.20 points (CMC@1, t = 60 %) of what exact ones give. "
    )
    assert "The lowest recall was 91.3 % (new items, t = 40 %)." in details(drill)
    above = drill_of(tmp_path, is_exact=False, live_off={("mAP", 8): 0.02})
    assert verdict(above).startswith("With approximate indexes, live quality is not below that of exact ones at all 11")
    same = drill_of(tmp_path, is_exact=False)
    assert verdict(same).startswith("Live quality equals the replayed curve at all 11 checkpoints.")


def test_a_metric_that_is_missing_live_is_no_agreement(tmp_path: Path) -> None:
    drill = drill_of(tmp_path, live_off={("mAP", 2): math.nan})
    assert verdict(drill).startswith("Live answers gave no mAP at t = 20 %, where exact indexes do. ")


def test_unanswered_and_retried(tmp_path: Path) -> None:
    drill = drill_of(tmp_path, changed={(2, "unanswered"): 3, (5, "unanswered"): 1, (5, "retried"): 12})
    assert verdict(drill).endswith("4 of 8,754 queries got no answer.")
    assert "Nothing was lost" not in verdict(drill)
    assert not is_alarming(drill)
    assert any(s.endswith(" 12 queries were retried.") for s in details(drill))


def test_a_broken_law_goes_first(tmp_path: Path) -> None:
    broken = drill_of(tmp_path, changed={(4, "violations"): 3})
    assert is_alarming(broken)
    assert verdict(broken).startswith("3 answers violated an invariant of the service. Live quality equals")
    lost = drill_of(tmp_path, changed={(5, "old_items"): 498})
    assert is_alarming(lost)
    assert verdict(lost).startswith("At t = 50 % 2 items too few were served. ")
    twice = drill_of(tmp_path, changed={(5, "old_items"): 501, (5, "violations"): 1})
    assert verdict(twice).startswith(
        "1 answer violated an invariant of the service; at t = 50 % 1 items too many were served. "
    )


def test_rollback(tmp_path: Path) -> None:
    drill = drill_of(tmp_path, rollback_at=5)
    assert verdict(drill).startswith(
        "Live quality equals what exact indexes give at all 7 checkpoints, and the replayed curve at the 6 of them"
    )
    assert details(drill)[0].startswith("500 items were backfilled in 1 min 40 s")
    assert details(drill)[-1] == (
        "At t = 50 % the backfill was rolled back, which took 7.0 s; every item has its old embedding again."
    )
    half = drill_of(tmp_path, rollback_at=5, changed={(6, "old_items"): 960, (6, "new_items"): 40})
    assert details(half)[-1].endswith("; 40 items still have their new embeddings.")


def test_everything_that_may_happen(tmp_path: Path) -> None:
    incidents = [(30.0, "shard restarted", ""), (50.0, "shard restarted", ""), (60.0, "broken image", "id 7")]
    changed: dict[tuple[int, str], Any] = {(i, "kept_old"): 1 for i in range(3, 11)}
    changed |= {(10, "inserted"): 30, (10, "deleted"): 20, (10, "new_items"): 1010}
    drill = drill_of(tmp_path, incidents=incidents, changed=changed, has_churn=True, legs=2)
    assert details(drill)[2:] == [
        "1 image could not be read; its item keeps its old embedding.",
        "Meanwhile 30 items were inserted and 20 deleted; 1,010 are served at the end.",
        "The driver was started 2 times. Incidents: shard restarted (2 times).",
    ]


def test_no_traffic_and_a_drill_that_stopped(tmp_path: Path) -> None:
    quiet = drill_of(tmp_path, traffic=False)
    assert details(quiet) == [
        "1,000 items were backfilled in 3 min 20 s (5 per second, pauses included). No queries were sent meanwhile."
    ]
    assert "0 violations" in verdict(quiet)
    assert "unanswered" not in verdict(quiet)
    stopped = drill_of(tmp_path, changed={(10, "t"): 0.95})
    assert ", up to t = 95 %, while " in details(stopped)[0]


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0"), (0.012, "+1.20"), (-0.00006, "−0.01"), (-1e-16, "−1e-14"), (math.nan, "–"), (math.inf, "–")],
)
def test_points_are_zero_only_where_they_are(share: float, text: str) -> None:
    assert signed_points(share) == text


def test_numbers_as_people_say_them() -> None:
    assert [duration(s) for s in (8.46, 9.96, 59.4, 192, 7500)] == ["8.5 s", "10 s", "59 s", "3 min 12 s", "2 h 5 min"]
    assert [per_second(x) for x in (0, 0.1116, 49.84, 519.6, math.nan)] == ["0", "0.112", "49.8", "520", "–"]
    assert [milliseconds(x) for x in (4.23, 41.3, 1234.5, math.nan)] == ["4.2", "41", "1,234", "–"]
    assert [megabytes(x) for x in (51.2e6, 512e6)] == ["51.2", "512"]


def test_the_glossary_has_the_words_of_this_drill(tmp_path: Path) -> None:
    rare = {"Recall", "Churn", "Kept old", "Rollback", "Leg"}
    plain = glossary(drill_of(tmp_path))
    assert not set(plain) & rare
    assert {"mAP, mAP@k", "CMC@k", "Violation", "Exact"} <= set(plain)
    assert "MRR, MRR@k" not in plain
    changed: dict[tuple[int, str], Any] = {(4, "kept_old"): 1}
    words = {"CSLS": "A merge."}
    full = drill_of(tmp_path, is_exact=False, has_churn=True, legs=2, rollback_at=5, glossary=words, changed=changed)
    assert set(glossary(full)) - set(plain) == rare | {"CSLS"}
