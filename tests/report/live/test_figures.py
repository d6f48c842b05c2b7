"""Figures: dots and lines have the stored values, resampling keeps peaks."""

import io
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from PIL import Image

from ray_backfill.display.drawing import to_png
from ray_backfill.report.live import read_drill, write_live_report
from ray_backfill.report.live.figures import partitions_figure, quality_figure, recall_figure
from ray_backfill.report.live.panels import MAX_POINTS, binned, timeline_figure
from tests.report.live.folder import replayed_value, write_drill, write_timeline

pytestmark = pytest.mark.slow


def heights(axes: Axes) -> list[list[float]]:
    """The values of every line, in per cent."""
    return [np.round(np.asarray(line.get_ydata(), float), 9).tolist() for line in axes.lines]


def test_live_dots_lie_on_the_replayed_line(tmp_path: Path) -> None:
    figure = quality_figure(read_drill(write_drill(tmp_path, live_off={("mAP", 4): -0.01})))
    plots = [axes for axes in figure.axes if axes.get_ylabel()]
    assert [axes.get_ylabel() for axes in plots] == ["mAP (%)", "CMC@1 (%)"]
    curve = [round(100 * replayed_value("CMC@1", i / 10), 9) for i in range(11)]
    assert heights(plots[1]) == [curve, [75.0] * 11, [45.0] * 11, curve]  # exact values are not drawn if equal
    replayed, _, _, live, exact = heights(plots[0])
    assert exact == replayed
    assert [round(r - v, 6) for r, v in zip(replayed, live, strict=True)] == [0] * 4 + [1.0] + [0] * 6


def test_curves_png_is_the_first_figure(tmp_path: Path) -> None:
    before = {p.name for p in write_drill(tmp_path).iterdir()}
    write_live_report(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} - before == {"curves.png", "report.html"}
    assert (tmp_path / "curves.png").read_bytes() == to_png(quality_figure(read_drill(tmp_path)))
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.width == 1350
        assert np.asarray(picture.convert("L")).std() > 10  # not a blank sheet
    assert plt.get_fignums() == []


def test_partitions_are_bars_that_add_up(tmp_path: Path) -> None:
    items, sizes = partitions_figure(read_drill(write_drill(tmp_path, rollback_at=5))).axes
    tops = [bar.get_height() for bar in items.patches]  # type: ignore[attr-defined]
    assert tops == [1000, 900, 800, 700, 600, 500, 1000, 0, 100, 200, 300, 400, 500, 0]
    assert [text.get_text() for text in items.get_xticklabels()] == ["0", "10", "20", "30", "40", "50", "back"]
    assert sizes.patches[-2].get_height() == 256.0  # type: ignore[attr-defined]


def test_recall_only_where_it_is_not_exact(tmp_path: Path) -> None:
    assert recall_figure(read_drill(write_drill(tmp_path))) is None
    figure = recall_figure(read_drill(write_drill(tmp_path, is_exact=False, recall=0.9)))
    assert figure is not None
    old, new = heights(figure.axes[0])
    assert (old[0], new[-1], np.isnan(old[-1]), np.isnan(new[0])) == (90.0, 90.0, True, True)


def test_panels_of_the_timeline(tmp_path: Path) -> None:
    incidents = [(42.0, "shard restarted", ""), (60.0, "broken image", "")]
    figure = timeline_figure(read_drill(write_drill(tmp_path, incidents=incidents)))
    assert figure is not None
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [t for t in titles if t] == ["Incidents", "Latency of queries", "Queries", "Backfill"]
    marks = figure.axes[0].lines[:2]
    assert [np.asarray(m.get_xdata()).tolist() for m in marks] == [[42.0], [60.0]]
    ranges = {axes.get_xlim() for axes, title in zip(figure.axes, titles, strict=True) if title}
    assert len(ranges) == 1
    quiet = timeline_figure(read_drill(write_drill(tmp_path, traffic=False)))
    assert quiet is not None
    assert [t for axes in quiet.axes if (t := axes.get_title(loc="left"))] == ["Backfill"]


def test_no_timeline_no_figure(tmp_path: Path) -> None:
    write_drill(tmp_path)
    pd.read_parquet(tmp_path / "timeline.parquet").iloc[:0].to_parquet(tmp_path / "timeline.parquet")
    assert timeline_figure(read_drill(tmp_path)) is None
    write_live_report(tmp_path)


@pytest.mark.parametrize("spread", [2.0, 50.0])
def test_wide_latencies_get_a_logarithmic_scale(tmp_path: Path, spread: float) -> None:
    write_drill(tmp_path)
    frame = pd.read_parquet(tmp_path / "timeline.parquet")
    frame.assign(p50_ms=10.0, p99_ms=10.0 * spread).to_parquet(tmp_path / "timeline.parquet")
    figure = timeline_figure(read_drill(tmp_path))
    assert figure is not None
    assert figure.axes[0].get_yscale() == ("log" if spread > 12 else "linear")


def test_thousands_of_seconds_become_few_points_and_no_peak_is_lost(tmp_path: Path) -> None:
    write_drill(tmp_path)
    write_timeline(tmp_path, 5000, killed_at=1234)
    frame = pd.read_parquet(tmp_path / "timeline.parquet")
    frame.loc[777, ["p99_ms", "unanswered"]] = 9999.0, 5
    frame.loc[2000:2100, ["p50_ms", "p99_ms"]] = float("nan")
    frame.to_parquet(tmp_path / "timeline.parquet")
    drill = read_drill(tmp_path)
    few = binned(drill.timeline)
    assert [second for point in few for second in point] == list(drill.timeline)
    assert MAX_POINTS // 2 < len(few) <= MAX_POINTS
    # 5000 over 450, rounded up: a point of 12 seconds, and of at most 11 at the end of a leg.
    sizes = [12] * (1234 // 12) + [1234 % 12] + [12] * ((5000 - 1234) // 12) + [(5000 - 1234) % 12]
    assert [len(point) for point in few] == sizes
    assert {len({second.leg for second in point}) for point in few} == {1}
    figure = timeline_figure(drill)
    assert figure is not None
    latency, _, queries = figure.axes[:3]
    assert max(np.nanmax(np.asarray(line.get_ydata(), float)) for line in latency.lines[:4]) == 9999.0
    marks = np.asarray(next(line for line in queries.lines if line.get_marker() == "v").get_ydata(), float)
    assert marks.tolist() == [5 / 12], "unanswered, a second of the point"
    with Image.open(io.BytesIO(to_png(figure))) as picture:
        assert picture.width == 1350
    assert len(binned(read_drill(write_drill(tmp_path)).timeline)) == 210
