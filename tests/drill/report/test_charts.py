"""Charts of a drill: dots and lines have the stored values, bars add up, resampling keeps peaks."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from ray_backfill.drill.report import write_live_report
from ray_backfill.drill.report.charts import (
    INCIDENT,
    MAX_POINTS,
    NEW_LEG,
    binned,
    partition_charts,
    quality_charts,
    recall_charts,
    timeline_charts,
)
from ray_backfill.drill.report.drill_folder import read_drill
from ray_backfill.page.charts import Chart
from ray_backfill.page.drawing import chart_svg, panels_figure, to_png
from tests.drill.report.folder import replayed_value, write_drill, write_timeline


def heights(chart: Chart) -> dict[str, list[float]]:
    """The values of every line."""
    return {curve.key: np.round(curve.y, 9).tolist() for curve in chart.curves}


def test_live_dots_lie_on_the_replayed_line(tmp_path: Path) -> None:
    charts = quality_charts(read_drill(write_drill(tmp_path, live_off={("mAP", 4): -0.01})))
    assert [(chart.unit, chart.choices) for chart in charts] == [("mAP (%)", ("mAP",)), ("CMC@1 (%)", ("CMC@1",))]
    curve = [round(100 * replayed_value("CMC@1", i / 10), 9) for i in range(11)]
    # Exact values are not drawn where they are equal.
    assert heights(charts[1]) == {
        "live": curve, "replayed": curve, "new model alone": [75.0] * 11, "old service": [45.0] * 11
    }  # fmt: skip
    found = heights(charts[0])
    assert found["exact"] == found["replayed"]
    gaps = [round(r - v, 6) for r, v in zip(found["replayed"], found["live"], strict=True)]
    assert gaps == [0] * 4 + [1.0] + [0] * 6


@pytest.mark.drawn
def test_curves_png_is_the_first_figure(tmp_path: Path) -> None:
    before = {p.name for p in write_drill(tmp_path).iterdir()}
    write_live_report(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} - before == {"curves.png", "report.html"}
    charts = quality_charts(read_drill(tmp_path))
    assert (tmp_path / "curves.png").read_bytes() == to_png(panels_figure(charts))
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width == 1350
        assert np.asarray(picture.convert("L")).std() > 10  # not a blank sheet
    assert plt.get_fignums() == []


def test_partitions_are_bars_that_add_up(tmp_path: Path) -> None:
    items, sizes = partition_charts(read_drill(write_drill(tmp_path, rollback_at=5)))
    assert heights(items) == {
        "old": [1000, 900, 800, 700, 600, 500, 1000], "new": [0, 100, 200, 300, 400, 500, 0]
    }  # fmt: skip
    assert items.bars == ("0", "10", "20", "30", "40", "50", "back")
    assert heights(sizes)["new"][5] == 256.0
    svg = chart_svg(items, "items", "")
    assert svg.count('data-key="old"') == svg.count('data-key="new"') == 7


def test_recall_only_where_it_is_not_exact(tmp_path: Path) -> None:
    assert recall_charts(read_drill(write_drill(tmp_path))) == []
    (chart,) = recall_charts(read_drill(write_drill(tmp_path, is_exact=False, recall=0.9)))
    old, new = heights(chart).values()
    assert (old[0], new[-1], np.isnan(old[-1]), np.isnan(new[0])) == (90.0, 90.0, True, True)


def test_charts_over_time(tmp_path: Path) -> None:
    incidents = [(42.0, "shard restarted", ""), (60.0, "broken image", "")]
    charts = timeline_charts(read_drill(write_drill(tmp_path, incidents=incidents)))
    titles = ["Latency of queries", "Queries", "Backfill", "Items with their new embedding"]
    assert [chart.title for chart in charts] == titles
    for chart in charts:
        assert [rule.x for rule in chart.rules if rule.style == INCIDENT] == [42.0, 60.0]
        assert len(chart.shades) == 11, "a measurement at each checkpoint"
        assert chart.shades[1] == (25.0, 28.0)
    assert len({chart.x_range for chart in charts}) == 1
    quiet = timeline_charts(read_drill(write_drill(tmp_path, traffic=False)))
    assert [chart.title for chart in quiet] == titles[2:]


def test_long_drills_are_told_in_minutes(tmp_path: Path) -> None:
    write_drill(tmp_path)
    write_timeline(tmp_path, 600)
    chart = timeline_charts(read_drill(tmp_path))[0]
    assert (chart.x_unit, chart.place, chart.x_range) == ("minutes since the drill began", "minutes", (0.0, 10.0))


def test_no_timeline_no_chart(tmp_path: Path) -> None:
    write_drill(tmp_path)
    pd.read_parquet(tmp_path / "timeline.parquet").iloc[:0].to_parquet(tmp_path / "timeline.parquet")
    assert timeline_charts(read_drill(tmp_path)) == []
    write_live_report(tmp_path)


@pytest.mark.parametrize("spread", [2.0, 50.0])
def test_wide_latencies_get_a_logarithmic_scale(tmp_path: Path, spread: float) -> None:
    write_drill(tmp_path)
    frame = pd.read_parquet(tmp_path / "timeline.parquet")
    frame.assign(p50_ms=10.0, p99_ms=10.0 * spread).to_parquet(tmp_path / "timeline.parquet")
    chart = timeline_charts(read_drill(tmp_path))[0]
    assert chart.is_log == (spread > 12)
    assert chart.y_range[0] < 10 < 10 * spread < chart.y_range[1]


def test_thousands_of_seconds_become_few_points_and_no_peak_is_lost(tmp_path: Path) -> None:
    write_drill(tmp_path)
    write_timeline(tmp_path, 5000, killed_at=1234)
    frame = pd.read_parquet(tmp_path / "timeline.parquet")
    frame.loc[777, ["p99_ms", "unanswered"]] = 9999.0, 5
    frame.loc[2000:2100, ["p50_ms", "p99_ms"]] = float("nan")
    frame.to_parquet(tmp_path / "timeline.parquet")
    drill = read_drill(tmp_path)
    few = binned(drill.timeline)
    points = [point for _, point in few]
    assert pd.concat(points).equals(drill.timeline)
    assert MAX_POINTS // 2 < len(few) <= MAX_POINTS
    # 5000 over 450, rounded up: a point of 12 seconds, and of at most 11 at the end of a leg.
    sizes = [12] * (1234 // 12) + [1234 % 12] + [12] * ((5000 - 1234) // 12) + [(5000 - 1234) % 12]
    assert [len(point) for point in points] == sizes
    assert {point.leg.nunique() for point in points} == {1}
    latency, queries, *_ = timeline_charts(drill)
    p99 = next(curve for curve in latency.curves if curve.key == "p99")
    assert np.nanmax(p99.y) == 9999.0
    gap = int(np.flatnonzero(np.isnan(p99.y))[0])
    assert gap == 1234 // 12 + 1, "the line has a gap where the driver was killed"
    assert [round(60 * rule.x, 6) for rule in latency.rules if rule.style == NEW_LEG] == [1234.0]
    marks = next(curve for curve in queries.curves if curve.key == "unanswered")
    assert marks.y.tolist() == [5 / 12], "unanswered, a second of the point"
    assert len(binned(read_drill(write_drill(tmp_path)).timeline)) == 210
