"""Figures: lines have the stored values, methods have distinct styles, files are complete pictures."""

import io
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ray_backfill.compare import charts
from ray_backfill.compare.analyses.flips import flip_charts
from ray_backfill.compare.analyses.slices import subgroup_charts
from ray_backfill.compare.report import figures, html, read_results, write_report
from ray_backfill.page.drawing import to_png
from tests.compare.report.folder import METHODS, many_methods, write_results


@pytest.mark.drawn
def test_curves_png_is_a_picture_of_plausible_size(tmp_path: Path) -> None:
    write_report(write_results(tmp_path))
    with Image.open(tmp_path / "curves.png") as picture:
        picture.verify()
        assert picture.width == 1350
        assert 700 < picture.height < 1200
    tables = ("curves", "differences", "moments", "summary")
    assert {p.name for p in tmp_path.iterdir()} == (
        {*(f"{name}.parquet" for name in tables), "curves.png", "manifest.json", "report.html"}
    )
    with Image.open(tmp_path / "curves.png") as picture:
        assert np.asarray(picture.convert("L")).std() > 10  # not a blank sheet


def test_lines_are_drawn_at_all_judged_moments_and_bands_at_the_points(tmp_path: Path) -> None:
    folder = write_results(tmp_path)
    moments = pd.read_parquet(folder / "moments.parquet")
    between = moments[moments.t == 0.5].assign(t=0.9, value=0.99)
    pd.concat([moments, between]).to_parquet(folder / "moments.parquet")
    chart, other = charts.curve_charts(read_results(folder))
    assert [chart.unit, other.unit] == ["mAP (%)", "CMC@1 (%)"]
    assert {c.key: np.round(c.y, 6).tolist() for c in chart.curves} == {
        key: [round(100 * v, 6) for v in (*values[1][:2], 0.99, values[1][2])] for key, values in METHODS.items()
    }
    banded = {c.key: c.interval.x.tolist() for c in chart.curves if c.interval}
    assert banded == {key: [0.0, 50.0, 100.0] for key in ("rm_naive", "rm", "bct")}
    figure = figures.curves_figure(read_results(folder))
    plots = [axes for axes in figure.axes if axes.get_ylabel()]
    assert [axes.get_ylabel() for axes in plots] == ["mAP (%)", "CMC@1 (%)"]
    assert [len(line.get_xdata()) for line in plots[0].lines] == [4] * 5  # type: ignore[arg-type]
    assert [band.get_gid() for band in plots[0].patches] == ["band-rm", "band-bct", "band-rm_naive"]


def test_references_are_steps(tmp_path: Path) -> None:
    offline = ("offline", (0.3, 0.3, 0.5), 0.3, *METHODS["old"][3:])
    results = read_results(write_results(tmp_path, METHODS | {"offline": offline}))
    (chart, _), flips = charts.curve_charts(results), flip_charts(results, results.best_variant)
    for found in (chart, *flips):
        assert {c.key for c in found.curves if c.is_step} == {"old", "new", "offline"}
    plot = figures.curves_figure(results).axes[0]
    lines = {line.get_gid(): line.get_drawstyle() for line in plot.lines}
    assert lines["line-offline"] == "steps-post"
    assert lines["line-rm"] == "default"


def test_without_intervals_there_are_no_bands(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, intervals=False))
    assert not charts.has_intervals(results)
    assert not any(axes.patches for axes in figures.curves_figure(results).axes)


def test_twenty_methods_look_different(tmp_path: Path) -> None:
    many = METHODS | {f"m{i}": (f"method {i}", *METHODS["bct"][1:]) for i in range(20)}
    styles = charts.method_styles(read_results(write_results(tmp_path, methods=many)))
    looks = {(s.colour, s.dashes, s.marker) for s in (styles[m] for m in many)}
    assert len(looks) == len(many)


def test_many_orders_are_compared_but_not_all_drawn(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, orders=tuple("abcdef")))
    assert [v.order for v in charts.drawn_variants(results)] == ["a", "b", "c", "d"]
    (orders,) = charts.order_charts(results)
    assert len(orders.curves) == 6
    assert charts.order_charts(read_results(write_results(tmp_path))) == []


def test_gain_bars(tmp_path: Path) -> None:
    plot = figures.gain_figure(read_results(write_results(tmp_path))).axes[0]
    assert [round(bar.get_width(), 6) for bar in plot.patches] == [20.0, 115.0, 25.0]  # type: ignore[attr-defined]
    assert [text.get_text() for text in plot.texts] == ["20.0 %", "115.0 %", "25.0 %"]


@pytest.mark.parametrize("flips", [True, False])
def test_flips(tmp_path: Path, flips: bool) -> None:
    results = read_results(write_results(tmp_path, flips=flips))
    figure = figures.flips_figure(results)
    assert (figure is not None) == flips
    if figure is not None:
        assert len([axes for axes in figure.axes if axes.get_ylabel() == "queries (%)"]) == 4


def test_png_is_reproducible_and_leaves_no_global_figure(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path))
    first, second = (to_png(figures.curves_figure(results)) for _ in range(2))
    assert first == second
    assert Image.open(io.BytesIO(first)).format == "PNG"
    assert plt.get_fignums() == []


def test_subgroups_have_a_chart_and_a_section(tmp_path: Path) -> None:
    folder = write_results(tmp_path, flips=False)
    assert subgroup_charts(read_results(folder)) == []
    assert "Which subgroups benefit, and when?" not in html.render(read_results(folder))
    curves = pd.read_parquet(folder / "curves.parquet").query("metric == 'mAP'")
    parts = [
        curves.assign(slice="group", group=group, queries=10, value=curves.value + shift)
        for group, shift in [("f", -0.05), ("m", 0.05), ("(gap)", -0.2)]
    ]
    pd.concat(parts).to_parquet(folder / "subgroups.parquet")
    (chart,) = subgroup_charts(read_results(folder))
    assert {c.title: c.number for c in chart.curves} == {
        "f": "35.0 → 57.0", "m": "45.0 → 67.0", "gap, best to worst": "20.0 → 42.0"
    }  # fmt: skip
    assert "Which subgroups benefit, and when?" in html.render(read_results(folder))


def _drawn(figure: Figure) -> list[dict[str, tuple[Any, ...]]]:
    """The name and style of every line, by legend."""
    legends: list[dict[str, tuple[Any, ...]]] = []
    for axes in figure.axes:
        names = [t.get_text() for t in axes.texts if t.get_position()[0] == 0.16]
        looks = [(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines]
        if names:
            legends.append(dict(zip(names, looks, strict=True)))
    return legends


def test_of_many_methods_the_best_are_drawn_and_look_the_same_everywhere(tmp_path: Path) -> None:
    known, weak = many_methods(30), [f"m{i}" for i in range(5, 30)]
    # The drawn methods are listed eight apart, so styles by list position would share one colour.
    names = ["rm", *weak[:7], "bct", *weak[7:14], "rm_naive"]
    methods = {name: known[name] for name in (*names, *known)}
    results = read_results(write_results(tmp_path, methods, orders=("a", "b")))
    flips = figures.flips_figure(results)
    assert flips is not None
    legends = _drawn(figures.curves_figure(results)) + _drawn(flips)
    assert len(legends) == 3
    for legend in legends:
        assert set(legend) == {"old", "new", "full RM", "BCT", "RM naive", *(f"method {i}" for i in range(5))}
        assert legend == legends[0]
        assert len({look[0] for name, look in legend.items() if name not in ("old", "new")}) == 8  # colours
    texts = [text.get_text() for axes in figures.curves_figure(results).axes for text in axes.texts]
    assert texts.count("the 8 best of 33 methods") == 2
    bars = figures.gain_figure(results).axes[0]
    assert len(bars.patches) == 8
    assert "the 8 best of 33 methods" in bars.get_title(loc="left")


def test_oracle_orders_are_marked_in_figures_and_give_way(tmp_path: Path) -> None:
    few = read_results(write_results(tmp_path, orders=("oracle_loss", "a", "b")))
    curves, orders = figures.curves_figure(few), figures.FIGURES["orders"](few)
    assert orders is not None
    assert [axes.get_title(loc="left") for axes in curves.axes if axes.get_ylabel()] == [
        f"mAP during the backfill, {name} order" for name in ("a", "oracle_loss †", "b")
    ]
    assert set(_drawn(orders)[0]) == {"oracle_loss † order", "a order", "b order"}
    for figure, times in ((curves, 1), (orders, 1)):
        texts = [text.get_text() for axes in figure.axes for text in axes.texts]
        assert texts.count("† upper bound: uses the answer") == times
    many = read_results(write_results(tmp_path, orders=("oracle_loss", *"abcd")))
    assert [v.order for v in charts.drawn_variants(many)] == ["a", "b", "c", "d"]


def test_many_orders_and_merges_of_the_best_method(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, orders=("oracle_loss", *"abcde"), merges=("raw", "csls")))
    figure = figures.FIGURES["orders"](results)
    assert figure is not None
    (legend,) = _drawn(figure)
    assert len(legend) == len(set(legend.values())) == 8
    assert list(legend)[:3] == ["oracle_loss †, raw", "a, raw", "a, csls"]
    assert "8 of 12 combinations" in [text.get_text() for axes in figure.axes for text in axes.texts]
