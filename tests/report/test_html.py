"""The page: correct numbers, no external resources, no injection through titles."""

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.report import write_report
from ray_backfill.tables.results import LeftOut
from tests.report.folder import METHODS, made_traits, many_methods, write_costs, write_results

pytestmark = pytest.mark.slow


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
    assert ["full RM", "53.0", "52.0 to 54.0", "52.3", "115.0 %", "40.0", "62.0", "0.0", "6.2", "3.1"] in cells.rows
    assert ["RM naive", "34.0", "33.0 to 35.0", "36.0", "20.0 %", "30.0", "50.0", "2.0", "15.0", "7.5"] in cells.rows
    assert ["full RM", "73.0", "72.0 to 74.0", "72.3", "115.0 %", "60.0", "82.0", "0.0"] in cells.rows
    assert ["old", "30.0", "29.0 to 31.0", "30.0", "0.0 %", "30.0", "30.0", "0.0", "0.0", "0.0"] in cells.rows


def test_conditions_as_ticks(tmp_path: Path) -> None:
    _, cells = page(write_results(tmp_path))
    assert ["full RM", "✓yes", "✓yes", "✓yes", "0.0"] in cells.rows
    assert ["BCT", "18.0", "16.0 to 20.0", "better"] in cells.rows
    assert ["RM naive", "✓yes", "✓yes", "✗no", "2.0"] in cells.rows
    assert ["BCT", "✗no", "✗no", "✓yes", "0.0"] in cells.rows


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
    assert "Queries without a right answer in the gallery, left out: 9; skipped_queries.parquet lists them." in text
    assert "old was stored as float16" in text
    assert "Full RM gives users 115\u00a0% of the upgrade’s improvement" in text


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
        left_out=[{"kind": "method", "name": "fct", "reason": hostile}],
        data={"notes": [hostile]},
    )
    text, cells = page(tmp_path)
    assert "script" not in cells.tags
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert any(row and row[0] == hostile for row in cells.rows)


def test_undefined_numbers_are_dashes(tmp_path: Path) -> None:
    write_results(tmp_path, intervals=False)
    summary = pd.read_parquet(tmp_path / "summary.parquet")
    undefined = summary.assign(gain=float("nan"), starts_at_old="undecided", largest_fall=float("nan"))
    undefined.to_parquet(tmp_path / "summary.parquet")
    text, cells = page(tmp_path)
    assert ["full RM", "53.0", "–", "52.3", "–", "40.0", "62.0", "–", "6.2", "3.1"] in cells.rows
    assert ["full RM", "?undecided", "✓yes", "✓yes", "–"] in cells.rows
    assert not re.search(r"\bnan\b", re.sub(r"base64,[^\"]*", "", text), flags=re.IGNORECASE)
    assert "bands are 95" not in text


def test_a_bare_manifest_and_no_flips_still_make_a_page(tmp_path: Path) -> None:
    write_results(tmp_path, flips=False)
    traits = asdict(made_traits(METHODS, ("score",), ("raw",)))
    (tmp_path / "manifest.json").write_text(json.dumps({"primary_metric": "mAP", "traits": traits}))
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
        "0.0",
        "6.2",
        "3.1",
    ] in cells.rows
    assert ("† An upper bound" in text) == ("oracle_loss" in orders)
    assert ("with the highest AUC are drawn" in text) == (len(orders) > 4)


def test_hundreds_of_rows_are_folded_away(tmp_path: Path) -> None:
    orders, merges = ("oracle_loss", "score", "random"), ("raw", "csls")
    text, cells = page(write_results(tmp_path, many_methods(12), orders, merges=merges))
    assert len(re.findall("<details", text)) == len(re.findall("<details>", text)) > 0  # none is open
    in_the_open = Cells()
    in_the_open.feed(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL))
    own = [row for row in in_the_open.rows if row[0] == "method 3"]
    # Once each: in numbers, by order, by merge, in the differences, and in the safety table.
    assert own == [
        ["method 3", "score", "raw", "32.6", "31.6 to 33.6", "33.0", "14.0 %", "30.0", "40.0", "0.0", "2.0", "1.0"],
        ["method 3", "33.6", "32.6", "31.6"],
        ["method 3", "32.6", "32.2"],
        ["method 3", "score", "raw", "19.4", "17.4 to 21.4", "better"],
        ["method 3", "score", "raw", "✓yes", "✓yes", "✓yes", "0.0"],
    ]
    everything = [row for row in cells.rows if row[0] == "method 3" and len(row) == 12]
    assert len(everything) == 1 + len(orders) * len(merges)
    assert ["method 3", "oracle_loss\u00a0†", "raw"] in [row[:3] for row in everything]
    assert "mAP: all 92 rows, every order and merge" in text
    assert "the 8 best of 15 methods" in text
    assert "15 methods, 3 orders, 2 merges" in text
    assert 'class="top" style="--s:' in text
    assert not re.search(r"https?://|@import|url\(", text)


def test_a_small_page_has_nothing_folded(tmp_path: Path) -> None:
    text, _ = page(write_results(tmp_path))
    assert "<details" not in text
    assert "best of" not in text
    assert 'class="heat"' not in text
    assert "What each method costs" not in text


def test_costs_as_people_write_them(tmp_path: Path) -> None:
    text, cells = page(write_costs(write_results(tmp_path)))
    assert "What each method costs" in text
    header = [
        "method",
        "models that embed a query",
        "other MACs per query",
        "other parameters",
        "MACs per gallery item",
    ]
    assert [*header, "FLOPs to fit", "models to train"] in cells.rows  # uncounted costs have no column
    assert ["full RM", "old + new", "131.1 k", "132.9 k", "0", "1.8 G", "new"] in cells.rows
    _, known = page(write_costs(tmp_path, query_backbone_macs=2.5e12))
    assert ["full RM", "old + new", "2.5 T", "131.1 k", "132.9 k", "0", "1.8 G", "new"] in known.rows


def test_an_oracle_order_is_marked_where_it_is_the_only_one(tmp_path: Path) -> None:
    text, _ = page(write_results(tmp_path, orders=("oracle_loss",)))
    assert "<dd>oracle_loss †</dd>" in text
    assert "† An upper bound" in text


def test_methods_left_out_for_one_reason_stand_together(tmp_path: Path) -> None:
    gone = (
        LeftOut("method", "fct", "no labels"),
        LeftOut("merge", "isotonic", "no labels"),
        LeftOut("method", "rm", "?"),
    )
    _, cells = page(write_results(tmp_path, left_out=[asdict(each) for each in gone]))
    assert ["fct, isotonic merge", "no labels"] in cells.rows
    assert ["rm", "?"] in cells.rows
