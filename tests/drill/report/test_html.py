"""The page and the terminal: correct numbers, no external resources, no injection through texts."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ray_backfill.drill.report import html, print_live_table, write_live_report
from ray_backfill.drill.report.drill_folder import read_drill
from ray_backfill.page.heading import INVENTED
from tests.compare.report.page import Page
from tests.drill.report.folder import write_drill


def page(folder: Path) -> tuple[str, Page]:
    """Render the page and parse it."""
    shown = Page(html.render(read_drill(folder)))
    return shown.text.replace("\u00a0", " "), shown


def printed(folder: Path) -> str:
    """The output on a wide terminal without colours."""
    console = Console(file=io.StringIO(), width=170, color_system=None)
    print_live_table(folder, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_row_a_checkpoint(tmp_path: Path) -> None:
    text, cells = page(write_drill(tmp_path, live_off={("mAP", 3): -0.004}))
    header = next(row for row in cells.rows if "retried" in row)
    third = next(row for row in cells.rows if row[0] == "30 %" and len(row) == len(header))
    assert dict(zip((h.replace("\u00a0", " ") for h in header), third, strict=True)) == {
        **{"t": "30 %", "elapsed": "1 min 5 s", "live": "33.9", "exact": "34.3", "− exact": "−0.40"},
        **{"− replay": "−0.40", "p50 ms": "14", "p95 ms": "28", "p99 ms": "44", "queries/s": "50", "items/s": "5"},
        **{"old items": "700", "new items": "300", "MB": "333", "unanswered": "0", "retried": "0"},
    }
    # 45 + 30 * (0.6 * 0.3 + 0.4 * 0.09) = 51.48
    assert ["30 %", "51.48", "51.48", "0", "51.48", "0"] in cells.rows
    assert "Live quality is not what exact indexes give: it is off by up to 0.40 points (mAP, t = 30 %)" in text


def test_what_was_run_and_what_it_cost(tmp_path: Path) -> None:
    text, cells = page(write_drill(tmp_path, data={"gallery_items": 1000, "notes": ["made by hand"]}))
    for row in (
        ["gallery items", "1,000"],
        ["traffic.rate", "50.0"],
        ["old_index.kind", "flat"],
        ["ray_backfill", "0.1.0"],
        ["before the backfill", "5.0", "12", "30", "250", "50", "0", "0", "0"],
    ):
        assert row in cells.rows
    assert "python jobs/live.py --data shop --out runs/shop" in text
    assert "made by hand" in text
    assert "Do not upgrade" not in text
    assert "<h2>Incidents</h2>" not in text


def test_an_alarm_is_loud(tmp_path: Path) -> None:
    text, cells = page(write_drill(tmp_path, changed={(4, "violations"): 3, (5, "old_items"): 498}))
    assert 'class="verdict alarming"' in text
    assert "Do not upgrade with this service until you know the cause." in text
    assert "At t = 40 %: 3 answers violated an invariant." in text
    assert "At t = 50 %: the partitions serve 2 items too few." in text
    assert any("violations" in row for row in cells.rows)


@pytest.mark.drawn
def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    write_live_report(write_drill(tmp_path, is_exact=False, rollback_at=5))
    shown = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert all(re.fullmatch("#[a-z0-9]+", address) for address in shown.addresses), "parts of the same drawing"
    assert len(set(shown.ids)) == len(shown.ids)
    assert not re.search(r"https?://|@import|url\((?!#)", shown.text)
    assert not shown.tags & {"link", "iframe", "img", "object"}
    assert shown.text.count("<script") == 1
    # Quality by metric, recall, four charts over time, items and memory of the partitions.
    assert len(shown.lines) == 2 + 1 + 4 + 2
    assert shown.lines[0] == {"live", "exact", "back", "replayed", "new model alone", "old service"}
    assert any("replayed rises from 30.0 to 50.0" in label for label in shown.labels)


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>$x_{"
    incidents = [(10.0, hostile, hostile)]
    manifest: dict[str, Any] = {"title": hostile, "command": hostile, "order": hostile, "settings": {hostile: hostile}}
    text, shown = page(write_drill(tmp_path, incidents=incidents, data={"notes": [hostile]}, **manifest))
    assert text.count("<script") == 1
    assert ["10 s", hostile, hostile] in shown.rows
    assert "[red]" in printed(write_drill(tmp_path, title="[red]"))


def test_data_set_and_date_stand_at_the_top_and_no_path_of_a_machine(tmp_path: Path) -> None:
    data = {"path": "/home/somebody/shop/embeddings", "notes": [INVENTED, "/home/somebody/x.parquet is old"]}
    incidents = [(10.0, "broken image", "/home/somebody/images/7.png")]
    text, shown = page(
        write_drill(tmp_path, data=data, incidents=incidents, command="drill --data /home/somebody/shop")
    )
    top, _, _ = text.partition('class="verdict')
    assert "<dt>data set</dt><dd>shop</dd>" in top
    assert "<dt>date</dt><dd>2026-01-02 03:04 UTC</dd>" in top
    assert INVENTED in top
    assert "somebody" not in text
    assert ["10 s", "broken image", "7.png"] in shown.rows


def test_many_incidents_are_folded_away(tmp_path: Path) -> None:
    incidents = [(10.0 + i, "broken image", f"id {i}") for i in range(30)]
    text, cells = page(write_drill(tmp_path, incidents=incidents))
    assert sum("id 3" in row for row in cells.rows) == 2
    assert sum("id 25" in row for row in cells.rows) == 1
    assert "All 30" in text
    assert ["35 s", "broken image", "id 25"] in cells.rows


@pytest.mark.parametrize(
    "settings",
    [
        {"points": 1},
        {"points": 1, "traffic": False},
        {"traffic": False},
        {"rollback_at": 0},
        {"is_exact": False, "rollback_at": 4, "recall": float("nan")},
        {"live_off": {("mAP", 0): float("nan")}},
    ],
)
def test_undefined_numbers_are_dashes(tmp_path: Path, settings: dict[str, Any]) -> None:
    text, _ = page(write_drill(tmp_path, **settings))
    words = text.partition("<script>")[0] + printed(tmp_path)
    assert not re.search(r"\b(nan|NaN|inf|None)\b", words)
    assert "built-in" not in words


def test_the_terminal_prints_rows_verdict_and_where_they_come_from(tmp_path: Path) -> None:
    text = printed(write_drill(tmp_path, rollback_at=5, changed={(3, "unanswered"): 4}))
    rows = [[c.strip() for c in line.strip("│ ").split("│")] for line in text.splitlines() if line.startswith("│")]
    assert len(rows) == 7
    assert rows[3] == ["30 %", "34.3", "34.3", "0", "14", "44", "50", "5", "700", "300", "4"]
    assert rows[6][0] == "50 %, rolled back"
    assert "Live quality equals what exact indexes give at all 7 checkpoints" in text
    assert "4 of 4,504 queries got no answer." not in text
    assert "full RM, score order, raw merge; exact indexes." in text
    assert str(tmp_path) in text.replace("\n", "").replace(" ", "")
