"""Missing or contradictory input is named in one line; valid input is read unchanged."""

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.drill.report import print_live_table, write_live_report
from ray_backfill.drill.report.drill_folder import cost, read_drill
from ray_backfill.drill.tables import IncidentRow, Phase
from tests.drill.report.folder import ITEMS, replayed_value, write_drill, write_timeline

TABLES = ["checkpoints.parquet", "quality.parquet", "replayed.parquet", "timeline.parquet", "incidents.parquet"]


def change(path: Path, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Rewrite a table of a folder."""
    edit(pd.read_parquet(path)).to_parquet(path)


def test_reads_what_was_written(tmp_path: Path) -> None:
    drill = read_drill(write_drill(tmp_path, incidents=[(42.0, "shard restarted", "shard 1")]))
    assert [c.t for c in drill.checkpoints] == [i / 10 for i in range(11)]
    assert (drill.checkpoints[3].old_items, drill.checkpoints[3].new_items) == (700, 300)
    assert drill.metrics == ("mAP", "CMC@1")
    assert drill.quality["CMC@1"][10].live == 0.75
    assert [point.value for point in drill.replayed["mAP", "old"]] == [0.30] * 11
    assert drill.incidents == (IncidentRow(42.0, "shard restarted", "shard 1"),)
    assert drill.sent == drill.total(lambda c: c.queries) == 250 + 10 * 850


def test_rows_in_any_order_are_the_same_drill(tmp_path: Path) -> None:
    folder = write_drill(tmp_path, live_off={("mAP", 4): -0.01}, incidents=[(9.0, "b", ""), (3.0, "a", "")])
    first = read_drill(folder)
    for name in TABLES:
        change(folder / name, lambda frame: frame.sample(frac=1, random_state=3))
    second = read_drill(folder)
    assert [i.kind for i in second.incidents] == ["a", "b"]
    assert second.quality["mAP"][4].live == replayed_value("mAP", 0.4) - 0.01
    # NaN is not equal to itself, but its text is.
    assert repr((second.checkpoints, second.timeline)) == repr((first.checkpoints, first.timeline))
    assert all(second.quality[metric] == first.quality[metric] for metric in ("mAP", "CMC@1"))


@pytest.mark.parametrize("name", [*TABLES, "manifest.json"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    (write_drill(tmp_path) / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing: run the live drill again"):
        print_live_table(tmp_path)


def test_a_drill_of_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    """Whatever else its files lack: the manifest is read first."""
    write_drill(tmp_path, settings={"format": 1})
    change(tmp_path / "checkpoints.parquet", lambda frame: frame.drop(columns="phase"))
    with pytest.raises(InputError, match=r"manifest\.json was made by an earlier version .* 2 now; .* --overwrite$"):
        read_drill(tmp_path)


@pytest.mark.parametrize(
    ("name", "column"),
    [("checkpoints.parquet", column) for column in ("phase", "new_items", "new_recall")]
    + [("quality.parquet", "live"), ("replayed.parquet", "serving"), ("timeline.parquet", "leg")]
    + [("incidents.parquet", "kind")],
)
def test_a_missing_column_is_named(tmp_path: Path, name: str, column: str) -> None:
    write_drill(tmp_path)
    change(tmp_path / name, lambda frame: frame.drop(columns=column))
    with pytest.raises(InputError, match=f"{name} lacks the column {column}: ") as caught:
        write_live_report(tmp_path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "curves.png").exists()


def test_tables_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no folder of a live drill at .*nowhere"):
        read_drill(tmp_path / "nowhere")
    write_drill(tmp_path, primary_metric="mAP@100")
    with pytest.raises(InputError, match="no rows for the primary metric 'mAP@100'"):
        read_drill(tmp_path)
    write_drill(tmp_path)
    change(tmp_path / "quality.parquet", lambda frame: frame[frame["moment"] != 4])
    with pytest.raises(InputError, match="does not have mAP once for every row"):
        read_drill(tmp_path)


def test_what_the_replay_promised(tmp_path: Path) -> None:
    drill = read_drill(write_drill(tmp_path, rollback_at=5))
    assert [drill.promised(c, "mAP") for c in drill.forward] == [replayed_value("mAP", i / 10) for i in range(6)]
    assert math.isnan(drill.promised(drill.checkpoints[-1], "mAP")), "none after a rollback"
    write_drill(tmp_path)
    change(tmp_path / "replayed.parquet", lambda frame: frame[frame["serving"] != "backfill"])
    other = read_drill(tmp_path)
    assert math.isnan(other.promised(other.checkpoints[0], "mAP")), "none if items were inserted or deleted"
    between = read_drill(write_drill(tmp_path, points=5))  # t = 0.25 is no point of the replay
    assert [math.isnan(between.promised(c, "mAP")) for c in between.checkpoints] == [False, True, False, True, False]


def test_items_are_counted_with_those_that_came_and_went(tmp_path: Path) -> None:
    assert read_drill(write_drill(tmp_path)).missing == []
    churn = {(i, "inserted"): 3 * i for i in range(11)} | {(i, "deleted"): i for i in range(11)}
    served = {(i, "new_items"): 100 * i + 2 * i for i in range(11)}
    assert read_drill(write_drill(tmp_path, changed=churn | served, has_churn=True)).missing == []
    lost = read_drill(write_drill(tmp_path, changed=churn | served | {(7, "old_items"): 299}, has_churn=True)).missing
    assert [(c.moment, items) for c, items in lost] == [(7, 1)]
    # Without churn the gallery's size is known, so items that were never served are missing too.
    never = read_drill(write_drill(tmp_path, points=1, changed={(0, "old_items"): ITEMS - 2})).missing
    assert [items for _, items in never] == [2]


def test_the_cost_is_that_of_the_phases(tmp_path: Path) -> None:
    drill = read_drill(write_drill(tmp_path))
    assert list(drill.phases) == [Phase.BEFORE, Phase.DURING, Phase.AFTER, Phase.MEASURING]
    assert cost(drill) == (drill.phases[Phase.BEFORE].p99_ms, drill.phases[Phase.DURING].p99_ms)
    assert drill.queries_per_s == pytest.approx(50)


def test_too_few_requests_tell_no_cost(tmp_path: Path) -> None:
    write_drill(tmp_path)
    change(tmp_path / "phases.parquet", lambda frame: frame.assign(p99_ms=frame.p99_ms.where(frame.index > 0)))
    assert cost(read_drill(tmp_path)) is None
    write_timeline(tmp_path, 200, traffic=False)
    assert cost(read_drill(tmp_path)) is None
