"""What a report says of a service's stages, from stored figures: each sentence true whatever their signs are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.compare.analyses.attribution import (
    AttributionRow,
    PlainAdvice,
    changes_of,
    section,
    sentence,
    waterfall,
)
from ray_backfill.compare.report import read_results, write_report
from ray_backfill.compare.report.answers import warnings
from ray_backfill.compare.report.as_json import as_json
from ray_backfill.compare.report.terminal import draw_table
from ray_backfill.compare.report.verdict import plain_advice
from ray_backfill.compare.results import Row
from ray_backfill.core.schema import frame, write_table
from tests.compare.report.folder import METHODS, manifest_of, printed, write_results

NAN = float("nan")
SERVICE = {
    "retrieve": 1000,
    "hybrid": {"list": "/home/me/bm25", "fusion": "dbsf", "lists": "separate"},
    "rerank": {"scores": "", "model": "cross-encoder:/models/one", "top": 7},
}
# What a stage changes, in points, and half of its interval.
Points = tuple[float, float]


def write_attribution(
    folder: Path, alone: Points, stages: Mapping[str, Points], cost: Points, half: float = 0.5
) -> Row:
    """Stages of the upgrade, and what the backfill costs with the best method; returns its row."""
    changed = sum(value for value, _ in stages.values())
    sums = {"stages": (changed, half if changed else 0.0), "service": (alone[0] + changed, half)}
    upgrade = {"model": alone, **stages, **sums}
    ladder = {"old model": (30.0, 1.0), "model": alone, "merge": cost, **stages}
    row = read_results(folder).best()
    assert row is not None
    written = [
        AttributionRow(*key, "mAP", kind, stage, NAN, value / 100, (value - width) / 100, (value + width) / 100)
        for key, kind, changes in (
            (("new", row.order, "raw"), "upgrade", upgrade),
            ((row.method, *row.variant), "ladder", ladder),
            ((row.method, *row.variant), "without", {"merge": cost}),
        )
        for stage, (value, width) in changes.items()
    ]
    write_table(folder / "attribution.parquet", frame(AttributionRow, written))
    return row


CASES: dict[str, tuple[Points, Mapping[str, Points], Points, list[str], list[str]]] = {
    "hidden": (
        (13.0, 1.0), {"cut": (0.0, 0.0), "fusion": (-5.0, 1.0), "re-ranker": (-3.0, 1.0)}, (-1.2, 0.3),
        ["The fusion and re-ranker hide 8.0 of the upgrade’s 13.0 points", "costs 1.2 of the other 5.0."], [],
    ),
    "one stage hides": ((13.0, 1.0), {"cut": (-2.0, 0.5)}, (-1.0, 0.3), ["The cut hides 2.0 of", "the other 11.0"], []),
    "the backfill costs more than is left": (
        (13.0, 1.0), {"cut": (-12.0, 0.5)}, (-2.0, 0.3), ["hides 12.0 of", "costs 2.0 points."], ["other"],
    ),
    "added": (
        (13.0, 1.0), {"cut": (0.0, 0.0), "fusion": (2.0, 1.0)}, (-1.0, 0.3),
        ["The fusion adds 2.0 points to the upgrade’s 13.0 points", "1.0 of these 15.0"], ["hide"],
    ),
    "one hides and one adds": (
        (13.0, 1.0), {"cut": (0.1, 0.2), "fusion": (-4.0, 1.0), "re-ranker": (1.0, 0.5)}, (-1.0, 0.3),
        ["the fusion hides 4.0", "the re-ranker adds 1.0", "worth 10.1", "of these 10.1"], ["cut"],
    ),
    "nothing changes": (
        (13.0, 1.0), {"cut": (0.0, 0.0)}, (-1.0, 0.3),
        ["The cut changes nothing", "13.0 points better", "these 13.0"], [],
    ),
    "nothing changes and the models are equal": (
        (0.2, 1.0), {"cut": (0.0, 0.0)}, (0.1, 0.3),
        ["changes nothing", "not shown to differ", "−0.8 to 1.2", "no difference is shown", "−0.2 to 0.4"],
        ["better", "of these"],
    ),
    "no change is shown": (
        (13.0, 1.0), {"cut": (0.0, 0.0), "fusion": (-0.4, 1.0)}, (-1.0, 0.3),
        ["No difference is shown", "13.0 points", "12.6 points", "−0.9 to 0.1", "costs 1.0 points."], ["hide"],
    ),
    "neither the models nor a change are shown to differ": (
        (-0.3, 1.0), {"cut": (0.0, 0.0), "fusion": (0.2, 1.0)}, (-0.2, 0.3),
        ["not shown to differ from the old one (−0.3 points, 95 % interval −1.3 to 0.7) by the vectors alone"],
        ["worth", "hide", "worse"],
    ),
    "all is hidden": (
        (13.0, 1.0), {"cut": (-12.9, 0.5)}, (0.3, 0.5),
        ["13.0 points better than the old one by the vectors alone", "not shown to differ", "−0.4 to 0.6"],
        ["hides", "other"],
    ),
    "harmful": (
        (-5.0, 1.0), {"cut": (0.0, 0.0), "fusion": (3.0, 1.0)}, (1.5, 0.5),
        ["5.0 points worse than the old one by the vectors alone", "2.0 points worse", "serves 1.5 points more"],
        ["hide", "add"],
    ),
    "harmful in this service only": (
        (5.0, 1.0), {"cut": (-8.0, 1.0)}, (-0.5, 0.2),
        ["5.0 points better", "3.0 points worse", "costs 0.5 points."], ["hides"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_holds_whatever_the_signs(case: str, tmp_path: Path) -> None:
    alone, stages, cost, said, unsaid = CASES[case]
    row = write_attribution(write_results(tmp_path), alone, stages, cost)
    found = sentence(read_results(tmp_path), row)
    assert found.endswith(".")
    for part in said:
        assert part in found
    for part in unsaid:
        assert part not in found
    with manifest_of(tmp_path) as facts:
        facts["data"]["truth"] = {"is_retention": True, "k": 1}
    assert sentence(read_results(tmp_path), row) == "", "the new model's own results say nothing of its worth"


def test_bars_start_where_those_before_them_end(tmp_path: Path) -> None:
    alone, stages, cost, *_ = CASES["hidden"]
    row = write_attribution(write_results(tmp_path), alone, stages, cost)
    chart = waterfall(row, changes_of(read_results(tmp_path), row))
    assert chart.bars == ("old model", "new model", "backfill", "cut", "fusion", "re-ranker", "service")
    ends, adds, loses = chart.curves
    spans: dict[int, tuple[float, float]] = {}
    for curve in chart.curves:
        assert curve.bottom is not None
        spans |= {int(x): (low, low + y) for x, low, y in zip(curve.x, curve.bottom, curve.y, strict=True)}
    by_hand: Any = [(0, 30), (30, 43), (43, 41.8), (41.8, 41.8), (41.8, 36.8), (36.8, 33.8), (0, 33.8)]
    np.testing.assert_allclose([spans[place] for place in range(7)], by_hand)
    assert set(adds.x) == {1}
    assert set(loses.x) == {2, 3, 4, 5}
    assert loses.interval is not None
    assert loses.bottom is not None
    np.testing.assert_allclose(loses.interval.low - loses.bottom, [-1.5, 0.0, -6.0, -4.0])
    assert chart.y_range[0] < 30 < 43 < chart.y_range[1]
    assert ends.number == "30.0 → 33.8"


@pytest.mark.drawn
def test_the_page_has_the_section(tmp_path: Path) -> None:
    alone, stages, cost, *_ = CASES["hidden"]
    write_results(tmp_path)
    assert section(read_results(tmp_path)) is None
    write_attribution(tmp_path, alone, stages, cost)
    write_report(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "What each stage changes" in page
    assert page.count('data-key="loses"') > 1
    assert "The fusion and re-ranker hide 8.0" in printed(lambda console: draw_table(read_results(tmp_path), console))


def test_header_and_table_name_the_service(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path / "plain"))
    assert "service" not in as_json(results, tmp_path)["basis"]
    with manifest_of(write_results(tmp_path / "behind")) as facts:
        facts["settings"]["evaluation"] = {"service": SERVICE}
    results = read_results(tmp_path / "behind")
    text = " ".join(printed(lambda console: draw_table(results, console)).split())
    page = write_page(tmp_path / "behind")
    for part in ("1,000 results of each partition", "bm25 by dbsf without a merge", "the first 7 re-ranked by one"):
        assert part in text
        assert part in page
        assert part in as_json(results, tmp_path)["basis"]
    assert "mAP behind the service" in text
    assert "mAP behind the service" in page
    assert "/home/me" not in page.split("<h2>")[0]


def write_page(folder: Path) -> str:
    write_report(folder)
    return (folder / "report.html").read_text(encoding="utf-8")


HARMFUL = METHODS | {"new": ("new", (0.20, 0.20, 0.20), 0.20, 0.20, NAN, *METHODS["new"][5:])}
# In the hand-made results full RM is advised, or no upgrade where new is harmful. By the vectors alone: advice, method,
# points between it and full RM in the service, half of the interval -> what is said.
BCT: tuple[str, Points] = "bct", (-18.0, 2.0)
ADVICE: dict[str, tuple[Mapping[str, Any], str, str, Points, list[str]]] = {
    "the same": (METHODS, "merge", "rm", (0.0, 0.0), []),
    "another method": (
        METHODS,
        "merge",
        *BCT,
        ["BCT would", "it serves 18.0 points less mAP than full RM", "16.0 to 20.0"],
    ),
    "not shown": (METHODS, "merge", "bct", (-1.0, 2.0), ["no difference between BCT and full RM", "−3.0 to 1.0"]),
    "no upgrade": (METHODS, "stay", *BCT, ["no upgrade", "the finished upgrade serves 20.0 points more mAP"]),
    "a switch": (METHODS, "switch", *BCT, ["a switch", "full RM serves 23.0 points more mAP than the old service"]),
    "a merge that harms": (HARMFUL, "merge", *BCT, ["BCT would", "the finished upgrade serves 10.0 points less mAP"]),
    "a switch that harms": (HARMFUL, "switch", *BCT, ["a switch", "the finished upgrade serves 10.0 points less mAP"]),
    "no upgrade, as here": (HARMFUL, "stay", "", (NAN, NAN), []),
}


@pytest.mark.parametrize("case", ADVICE)
def test_where_the_vectors_alone_would_have_advised_otherwise(case: str, tmp_path: Path) -> None:
    methods, advice, method, (value, half), said = ADVICE[case]
    write_results(tmp_path, methods)
    assert plain_advice(read_results(tmp_path)) == ""
    key = (method, "score", "raw") if method else ("", "", "")
    row = PlainAdvice(advice, *key, value / 100, (value - half) / 100, (value + half) / 100)
    write_table(tmp_path / "plain_advice.parquet", frame(PlainAdvice, [row]))
    results = read_results(tmp_path)
    found = plain_advice(results)
    assert bool(found) == bool(said)
    for part in said:
        assert part in found
    if said:
        assert found in warnings(results)
        assert found in as_json(results, tmp_path)["warnings"]
        assert case != "another method" or found.replace(" %", "\u00a0%") in write_page(tmp_path)
        text = printed(lambda console: draw_table(results, console))
        assert found in " ".join(text.split())
    if method == "bct":
        assert plain_advice(results.only("rm")) == "" or advice != "merge"
