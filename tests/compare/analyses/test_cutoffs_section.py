"""How should score cut-offs change, in hand-made results: the table, the sentences, and nothing if none was given."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray_backfill.compare.analyses.cutoffs import (
    NOTHING_TRANSLATED,
    CutoffRow,
    cutoff_lines,
    notes_on,
    section,
    sentence,
    table_line,
)
from ray_backfill.compare.report import Results, html, read_results
from ray_backfill.core.schema import frame, write_table
from tests.compare.report.folder import METHODS, made_traits, write_results
from tests.compare.report.page import Page
from tests.compare.report.test_terminal import printed

WITH_OFFLINE = METHODS | {"offline": ("offline", *METHODS["old"][1:])}
# Method -> its translated cut-offs: not backfilled, backfilled.
LIMITS = {"old": (0.85, 0.85), "offline": (0.85, 0.7123), "rm_naive": (0.85, 0.7123), "rm": (0.8, 0.71)}


def points(method: str, merge: str, backward: float, forward: float, order: str = "score") -> list[CutoffRow]:
    """Three moments; precision falls from 93 % to 61 % at t = 0.5 and 40 % at the end if nothing is translated."""
    key, before = (method, order, merge, 0.85), (0.93, 0.5, 12.0)
    shares = {0.0: (0.93, 0.93), 0.5: (0.61, 0.94), 1.0: (0.4, 0.95)}
    return [
        CutoffRow(*key, t, backward, forward, *before, raw, 0.6, 20.0, share if merge != "raw" else raw, 0.55, 13.25)
        for t, (raw, share) in shares.items()
    ]


def results_with(folder: Path, merges: Sequence[str] = ("raw", "quantile"), **changed: Any) -> Results:
    write_results(folder, WITH_OFFLINE, merges=merges, **changed)
    limits = LIMITS | {"new": (0.7123, 0.7123), "bct": (0.85, 0.85)}
    rows = [
        row
        for method, (backward, forward) in limits.items()
        for merge in merges
        for row in points(method, merge, *((0.85, 0.85) if merge == "raw" else (backward, forward)))
    ]
    write_table(folder / "cutoffs.parquet", frame(CutoffRow, rows))
    return read_results(folder)


def told(results: Results, method: str) -> str:
    (line,) = (line for line in cutoff_lines(results) if line.row.method == method)
    return sentence(results, line)


def test_each_method_has_the_sentence_that_users_want(tmp_path: Path) -> None:
    results = results_with(tmp_path)
    assert told(results, "rm_naive") == (
        "RM naive, quantile merge: 0.85 becomes 0.7123 for backfilled items (cosine similarity of the new model) and "
        "stays 0.85 for the others; precision 93.0 % before, 94.0 % at t = 0.5; unchanged it would be 61.0 %, "
        "with 20 results per query instead of 13.2."
    )
    assert "becomes 0.71 for backfilled items (cosine similarity of the new model) and 0.8 for" in told(results, "rm")
    assert told(results, "bct") == (
        "BCT, quantile merge: 0.85 stays as it is; precision 93.0 % before, 94.0 % at t = 0.5."
    )
    assert told(results, "offline") == (
        "Offline, quantile merge: 0.85 becomes 0.7123 for backfilled items (cosine similarity of the new model); "
        "precision 93.0 % before, 95.0 % at the end; unchanged it would be 40.0 %, with 20 results per query "
        "instead of 13.2."
    )
    assert [line.row.method for line in cutoff_lines(results)].count("old") == 0


def test_the_unit_and_the_forward_system_are_named(tmp_path: Path) -> None:
    traits = asdict(made_traits(WITH_OFFLINE, ("score",), ("raw", "quantile")))
    traits["methods"]["rm"]["stays"] = True
    results = results_with(tmp_path, traits=traits, settings={"evaluation": {"distance": "l2"}})
    assert "0.71 for backfilled items (l2 distance of the forward system)" in told(results, "rm")
    lines = cutoff_lines(results)
    found = section(results)
    assert found is not None
    assert found.printed is not None
    assert found.printed.table.label == "Cut-offs: largest l2 distance of a result"
    nothing = replace(lines[0].half, forward_cutoff=-math.inf, backward_cutoff=math.inf)
    cells = dict(table_line(results, replace(lines[0], half=nothing), has_orders=False))
    assert [cells[head].text for head in ("cut-off", "not backfilled", "backfilled")] == ["0.85", "all", "none"]


def test_raw_translates_nothing_and_says_so(tmp_path: Path) -> None:
    results = results_with(tmp_path, merges=("raw",))
    assert told(results, "rm") == (
        "Full RM, raw merge: 0.85 stays as it is; precision 93.0 % before, 61.0 % at t = 0.5."
    )
    assert notes_on(cutoff_lines(results))[-1] == NOTHING_TRANSLATED
    assert NOTHING_TRANSLATED not in notes_on(cutoff_lines(results_with(tmp_path)))


def test_terminal_and_page_have_the_table(tmp_path: Path) -> None:
    results = results_with(tmp_path)
    text = printed(tmp_path)
    assert "Cut-offs: least cosine similarity of a result" in text
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in text.splitlines()]
    wanted = ["RM naive", "quantile", "0.85", "0.85", "0.7123", "93.0", "94.0", "61.0", "95.0", "40.0"]
    assert wanted in rows
    assert "Full RM, quantile merge: 0.85 becomes 0.71" in " ".join(text.split()), "of the best method"
    assert "RM naive, quantile merge: 0.85 becomes" not in " ".join(text.split())
    page = Page(html.render(results))
    assert "How should score cut-offs change?" in page.headings
    assert [*wanted, "12", "13.25", "50.0", "55.0"] in page.open
    assert page.text.count("quantile merge: 0.85 becomes") == 4, "new, offline, RM naive and full RM"


def test_without_cutoffs_nothing_is_said(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path))
    assert results.cutoffs == ()
    assert "ut-off" not in html.render(results)
    assert "ut-off" not in printed(tmp_path)
