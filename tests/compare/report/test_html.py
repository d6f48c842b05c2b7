"""The page: correct numbers, answers in their place, no external resources, no injection through titles."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ray_backfill.compare.report import html, read_results, write_report
from ray_backfill.page.heading import INVENTED
from tests.compare.report.folder import MANIFEST, METHODS, manifest_of, many_methods, write_costs, write_results
from tests.compare.report.page import Page

QUESTIONS = ["Which method?", "When to switch?", "What does it cost?", "What is at risk?"]


def page(folder: Path) -> Page:
    return Page(html.render(read_results(folder)))


def test_numbers_of_both_metrics(tmp_path: Path) -> None:
    shown = page(write_results(tmp_path))
    rows, heads = shown.rows, ["method", "average", "95 % interval", "gain", "start", "end", "largest fall"]
    heads += ["as old from", "half gain from", "as new from"]
    assert [*heads, "lost", "lost vs own start"] in rows
    steps = ["start", "50 %", "end"]
    marked = ["40.0✓", "62.0✓", "0.0✓"]
    assert ["full RM", "53.0", "52.0 to 54.0", "115 %", *marked, *steps, "6.2", "3.1"] in rows
    marked = ["30.0✓", "50.0✓", "2.0✗"]
    assert ["RM naive", "34.0", "33.0 to 35.0", "20 %", *marked, *steps, "15.0", "7.5"] in rows
    assert ["old", "30.0", "29.0 to 31.0", "0 %", "30.0", "30.0", "0.0", "–", "–", "–", "0.0", "0.0"] in rows
    assert heads in rows  # the second metric
    assert ["full RM", "73.0", "72.0 to 74.0", "115 %", "60.0✓", "82.0✓", "0.0✓", *steps] in rows
    assert ["BCT", "18.0", "16.0 to 20.0", "better"] in rows
    mark = '<span class="mark no" aria-hidden="true">✗</span><span class="hidden">, never falls: no</span>'
    assert mark in shown.text, "marks have words for screen readers"
    assert '<span class="hidden">, starts no worse than old: yes</span>' in shown.text


def test_four_questions_are_answered_in_order(tmp_path: Path) -> None:
    shown = page(write_results(tmp_path))
    assert [heading for heading in shown.headings if heading in QUESTIONS] == QUESTIONS
    assert "<p>Full RM: 53.0\u00a0% mAP on average.</p>" in shown.text
    assert shown.text.count("Merge online with full RM: users get 23.0 points more mAP") == 1, (
        "the verdict stands above the questions"
    )


def test_where_nothing_is_recommended_there_are_no_questions(tmp_path: Path) -> None:
    worse = METHODS | {"new": ("new", (0.2, 0.2, 0.2), 0.2, *METHODS["new"][3:])}
    shown = page(write_results(tmp_path, worse))
    assert "Do not upgrade: the new model is worse than the old one" in shown.text
    assert not set(QUESTIONS) & set(shown.headings)
    assert "If the upgrade is needed for another reason" in shown.text


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"name": "shop", "recipe": "gldv2"}, {"data set": "shop", "recipe": "gldv2"}),
        ({"path": "/home/me/runs/shop/embeddings"}, {"data set": "shop", "recipe": None}),
        ({}, {"data set": None, "recipe": None}),
    ],
)
def test_data_set_recipe_and_date_stand_with_what_was_run(
    tmp_path: Path, data: dict[str, str], expected: dict[str, str | None]
) -> None:
    _, _, top = page(write_results(tmp_path, data=MANIFEST["data"] | data)).text.partition("<h2>What was run</h2>")
    for word, value in (expected | {"date": "2026-01-02 03:04 UTC"}).items():
        assert (f"<dt>{word}</dt>" in top) == (value is not None)
        assert value is None or f"<dt>{word}</dt><dd>{value}</dd>" in top


def test_invented_data_and_warnings_follow_the_verdict(tmp_path: Path) -> None:
    text = page(write_results(tmp_path / "drawn", data=MANIFEST["data"] | {"notes": [INVENTED]})).text
    assert text.index('class="verdict"') < text.index(INVENTED) < text.index('class="first"')
    text = page(write_results(tmp_path / "real")).text
    assert INVENTED not in text
    for warning in ("old was stored as float16", "left out: 9; skipped_queries.parquet lists them."):
        assert text.index('class="verdict"') < text.index(warning) < text.index('class="first"')


def test_what_was_run_is_folded_away(tmp_path: Path) -> None:
    shown = page(write_results(tmp_path))
    for row in (
        ["gallery items", "12,345"],
        ["simulate.metrics", "mAP, CMC@1"],
        ["heads.rm.tau", "0.1"],
        ["seed", "7"],
        ["numpy", "2.4.6"],
        ["replay", "1.2"],
    ):
        assert row in shown.rows
        assert row not in shown.open
    assert ["fct", "needs a train table"] in shown.open
    assert "<pre>python jobs/simulate.py --data shop --out runs/shop</pre>" in shown.text


def test_no_path_of_a_machine_is_told(tmp_path: Path) -> None:
    home = "/home/somebody/work"
    facts: dict[str, Any] = {
        "command": f"python {home}/jobs/simulate.py --data={home}/shop --out '{home}/my runs/shop'",
        "data": MANIFEST["data"] | {"path": f"{home}/shop", "notes": [f"{home}/shop/queries.parquet is old"]},
        "settings": {"data": f"{home}/shop", "files": [f"{home}/a", f"{home}/b"]},
        "left_out": [{"kind": "method", "name": "fct", "reason": f"no {home}/shop/train.parquet"}],
    }
    text = page(write_results(tmp_path, **facts)).text
    assert "somebody" not in text
    assert "<pre>python simulate.py --data=shop --out &#39;shop&#39;</pre>" in text
    assert "queries.parquet is old" in text
    assert "no train.parquet" in text


@pytest.mark.drawn
def test_the_page_needs_nothing_else_and_runs_one_script_only(tmp_path: Path) -> None:
    write_report(write_results(tmp_path))
    shown = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert all(re.fullmatch("#[a-z0-9-]+", address) for address in shown.addresses), "parts of the same drawing"
    assert len(set(shown.ids)) == len(shown.ids)
    assert not re.search(r"https?://|@import|url\((?!#)", shown.text)
    assert not shown.tags & {"link", "iframe", "img", "object"}
    scripts = re.findall(r"<script>(.*?)</script>", shown.text, flags=re.DOTALL)
    assert len(scripts) == shown.text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert f'content="{policy}"' in shown.text
    # 2 metrics and 4 kinds of flips; every line of a legend is drawn.
    assert [len(lines) for lines in shown.lines] == [5] * 6
    assert [set(legend) for legend in shown.legends[:2]] == [{"old", "new", "RM naive", "full RM", "BCT"}] * 2
    assert shown.legends[0]["full RM"] == "53.0"
    assert len([label for label in shown.labels if "full RM rises from 40.0 to 62.0" in label]) == 1


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>$x_{'\""
    methods = METHODS | {"rm": (hostile, *METHODS["rm"][1:])}
    write_results(
        tmp_path, methods, ("score", hostile), command=hostile, settings={hostile: hostile},
        left_out=[{"kind": "method", "name": "fct", "reason": hostile}],
        data=MANIFEST["data"] | {"notes": [hostile], "name": hostile, "recipe": hostile},
    )  # fmt: skip
    shown = page(tmp_path)
    assert shown.text.count("<script") == 1  # the page's own
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown.text
    assert any(row and row[0] == hostile for row in shown.rows)


@pytest.mark.drawn
def test_hostile_titles_stay_texts_in_charts(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>\"'"
    methods = METHODS | {'"><script>': (hostile, *METHODS["rm"][1:])}
    shown = page(write_results(tmp_path, methods, flips=False))
    assert shown.text.count("<script") == 1
    assert '"><script>' in shown.lines[0]
    assert any(hostile in label for label in shown.labels)


def test_undefined_numbers_are_dashes(tmp_path: Path) -> None:
    write_results(tmp_path, intervals=False)
    summary = pd.read_parquet(tmp_path / "summary.parquet")
    missing = float("nan")
    gone = dict.fromkeys(("gain", "largest_fall", "passes_new_at"), missing)
    summary.assign(starts_at_old="undecided", **gone).to_parquet(tmp_path / "summary.parquet")
    shown = page(tmp_path)
    row = ["full RM", "53.0", "–", "–", "40.0?", "62.0✓", "–✓", "start", "–", "never", "6.2", "3.1"]
    assert row in shown.rows
    assert not re.search(r"\bnan\b", shown.text.partition("<script>")[0], flags=re.IGNORECASE)
    assert "bands are 95" not in shown.text


def test_no_flips_still_make_a_page(tmp_path: Path) -> None:
    shown = page(write_results(tmp_path, flips=False))
    assert len(shown.lines) == 2
    assert "Which queries change for users?" not in shown.headings


@pytest.mark.parametrize("orders", [("score", "oracle_loss"), tuple("abcdef"), ("oracle_loss",)])
def test_several_orders_and_oracles(tmp_path: Path, orders: tuple[str, ...]) -> None:
    shown = page(write_results(tmp_path, orders=orders))
    if len(orders) > 1:
        assert ["full RM", orders[0], "53.0", "52.0 to 54.0", "115 %"] in [row[:5] for row in shown.rows]
    else:
        assert "<dd>oracle_loss †</dd>" in shown.text
    assert ("† An upper bound" in shown.text) == ("oracle_loss" in orders)
    assert ("with the highest average are drawn" in shown.text) == (len(orders) > 4)


def test_hundreds_of_rows_are_folded_away(tmp_path: Path) -> None:
    orders, merges = ("oracle_loss", "score", "random"), ("raw", "csls")
    shown = page(write_results(tmp_path, many_methods(12), orders, merges=merges))
    own = [row for row in shown.open if row[0] == "method 3"]
    # Once each: in numbers, by order, by merge, with its best order, and in the differences.
    numbers = ["32.6", "31.6 to 33.6", "14 %", "30.0✓", "40.0✓", "0.0✓", "start", "50 %", "end", "2.0", "1.0"]
    assert own == [
        ["method 3", "score", "raw", *numbers],
        ["method 3", "33.6", "32.6", "31.6"],
        ["method 3", "32.6", "32.2"],
        ["method 3", "score", "32.6", "31.6", "1.0", "−1.0 to 3.0"],
        ["method 3", "score", "raw", "19.4", "17.4 to 21.4", "better"],
    ]
    everything = [row for row in shown.rows if row[0] == "method 3" and len(row) == len(own[0])]
    assert len(everything) == 1 + len(orders) * len(merges)
    assert ["method 3", "oracle_loss †", "raw"] in [row[:3] for row in everything]
    assert "mAP: all 92 rows, every order and merge" in shown.text
    assert "the 8 best of 15 methods" in shown.text
    assert "15 methods, 3 orders, 2 merges" in shown.text
    assert 'class="top" style="--s:' in shown.text


def test_all_methods_are_in_the_chart_and_the_weaker_ones_start_switched_off(tmp_path: Path) -> None:
    shown = page(write_results(tmp_path, many_methods(12)))
    assert len(shown.legends[0]) == 17
    first = shown.text[: shown.text.index("</figure>")]
    assert first.count('class="off"') == 15 - 8
    assert re.search(r'data-key="m11"[^>]* class="off"', first)


def test_costs_as_people_write_them(tmp_path: Path) -> None:
    with manifest_of(write_results(tmp_path)) as facts:
        facts["traits"]["methods"]["rm"] |= {"needs_labels": True, "stays": True}
    shown = page(write_costs(tmp_path))
    heads = ["method", "models that embed a query", "other MACs per query", "other parameters", "MACs per gallery item"]
    # Uncounted costs have no column.
    assert [*heads, "FLOPs to fit", "models to train", "needs labels", "after the backfill"] in shown.rows
    costs = ["131.1 k", "132.9 k", "0", "1.8 G", "new"]
    assert ["full RM", "old + new", *costs, "yes", "its maps stay"] in shown.rows
    assert ["BCT", "old + new", *costs, "no", "only the new model"] in shown.rows
    known = page(write_costs(tmp_path, query_backbone_macs=2.5e12))
    assert ["full RM", "old + new", "2.5 T", *costs, "yes", "its maps stay"] in known.rows


def test_methods_left_out_for_one_reason_stand_together(tmp_path: Path) -> None:
    names = ("method", "fct", "no labels"), ("merge", "isotonic", "no labels"), ("method", "rm", "?")
    left_out = [{"kind": kind, "name": name, "reason": reason} for kind, name, reason in names]
    rows = page(write_results(tmp_path, left_out=left_out)).rows
    assert ["fct, isotonic merge", "no labels"] in rows
    assert ["rm", "?"] in rows


def test_scroll_boxes_can_be_reached_and_have_a_name(tmp_path: Path) -> None:
    text = page(write_costs(write_results(tmp_path, orders=("a", "b")))).text
    boxes = re.findall(r'<div class="scroll"[^>]*>', text)
    assert len(boxes) > 4
    assert all('tabindex="0" role="region" aria-label="' in box for box in boxes)
