"""The page: right numbers, nothing from outside, nothing that a title could smuggle in."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.report import write_report
from tests.report.folder import METHODS, write_results


class Cells(HTMLParser):
    """Collects the rows of all tables as text, and every address that the page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data.strip()


def page(folder: Path) -> tuple[str, Cells]:
    """Write the report and parse it."""
    write_report(folder)
    text = (folder / "report.html").read_text(encoding="utf-8")
    cells = Cells()
    cells.feed(text)
    return text, cells


def test_numbers_of_both_metrics(tmp_path: Path) -> None:
    _, cells = page(write_results(tmp_path))
    assert ["full RM", "53.0", "52.0 to 54.0", "52.3", "115.0 %", "40.0", "62.0", "never", "3.1"] in cells.rows
    assert ["RM naive", "34.0", "33.0 to 35.0", "36.0", "20.0 %", "30.0", "50.0", "by 2.0", "7.5"] in cells.rows
    assert ["full RM", "73.0", "72.0 to 74.0", "72.3", "115.0 %", "60.0", "82.0", "never"] in cells.rows
    assert ["old", "30.0", "29.0 to 31.0", "30.0", "0.0 %", "30.0", "30.0", "never", "–"] in cells.rows


def test_conditions_as_ticks(tmp_path: Path) -> None:
    _, cells = page(write_results(tmp_path))
    assert ["full RM", "✓holds", "✓holds", "✓holds", "0.0"] in cells.rows
    assert ["BCT", "18.0", "16.0 to 20.0", "better"] in cells.rows
    assert ["RM naive", "✓holds", "✓holds", "✗does not hold", "2.0"] in cells.rows
    assert ["BCT", "✗does not hold", "✗does not hold", "✓holds", "0.0"] in cells.rows


def test_what_was_run(tmp_path: Path) -> None:
    text, cells = page(write_results(tmp_path))
    for row in (
        ["gallery items", "12,345"],
        ["simulate.metrics", "mAP, CMC@1"],
        ["heads.rm.tau", "0.1"],
        ["seed", "7"],
        ["numpy", "2.4.6"],
        ["replay", "1.2"],
        ["fct", "needs a train table"],
    ):
        assert row in cells.rows
    assert "python jobs/simulate.py --data shop --out runs/shop" in text
    assert "9 queries have no right answer" in text
    assert "old was stored as float16" in text
    assert "Full RM reaches 115\u00a0% of the upgrade’s gain" in text


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    text, cells = page(write_results(tmp_path))
    assert len(cells.addresses) == 2  # curves and flips
    assert all(address.startswith("data:image/png;base64,") for address in cells.addresses)
    assert not re.search(r"https?://|@import|url\(", text)
    assert not cells.tags & {"script", "link", "iframe"}


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>$x_{"
    methods = METHODS | {"rm": (hostile, *METHODS["rm"][1:])}
    write_results(
        tmp_path,
        methods=methods,
        command=hostile,
        settings={hostile: hostile},
        left_out={"fct": hostile},
        data={"notes": [hostile]},
    )
    text, cells = page(tmp_path)
    assert "script" not in cells.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert any(row and row[0] == hostile for row in cells.rows)


def test_undefined_numbers_are_dashes(tmp_path: Path) -> None:
    write_results(tmp_path, intervals=False)
    summary = pd.read_parquet(tmp_path / "summary.parquet")
    undefined = summary.assign(gain=float("nan"), monotone=None, starts_at_old=None, largest_fall=float("nan"))
    undefined.to_parquet(tmp_path / "summary.parquet")
    text, cells = page(tmp_path)
    assert ["full RM", "53.0", "–", "52.3", "–", "40.0", "62.0", "–", "3.1"] in cells.rows
    assert ["full RM", "–not checked", "✓holds", "–not checked", "–"] in cells.rows
    assert not re.search(r"\bnan\b", re.sub(r"base64,[^\"]*", "", text), flags=re.IGNORECASE)
    assert "bootstrap" not in text


def test_a_bare_manifest_and_no_flips_still_make_a_page(tmp_path: Path) -> None:
    write_results(tmp_path, flips=False)
    (tmp_path / "manifest.json").write_text('{"primary_metric": "mAP"}')
    text, cells = page(tmp_path)
    assert len(cells.addresses) == 1
    assert "Which queries change" not in text


@pytest.mark.parametrize("orders", [("score", "oracle_loss"), tuple("abcdef")])
def test_several_orders(tmp_path: Path, orders: tuple[str, ...]) -> None:
    text, cells = page(write_results(tmp_path, orders=orders))
    assert [
        "full RM",
        orders[0],
        "53.0",
        "52.0 to 54.0",
        "52.3",
        "115.0 %",
        "40.0",
        "62.0",
        "never",
        "3.1",
    ] in cells.rows
    assert ("† An upper bound" in text) == ("oracle_loss" in orders)
    assert ("with the highest AUC are drawn" in text) == (len(orders) > 4)
