"""A curve shows itself: lines, a table in a notebook, a figure, differences from other curves."""

import io
import os

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

import ray_backfill as rb
from ray_backfill.engine.replay import usable_cpus

T = np.linspace(0, 1, 3)


def curve(end: float, metrics: tuple[str, ...] = ("mAP", "CMC@1"), queries: int = 40) -> rb.Curve:
    """From 0.2 to ``end`` on average over queries of unequal difficulty; CMC@1 falls at the end."""
    hardness = np.linspace(-0.1, 0.1, queries)[:, None]
    values = {"mAP": 0.2 + hardness + (end - 0.2) * T, "CMC@1": 0.5 + hardness * [1, 2, 1] + [0, 0.2, 0.1]}
    scored = np.arange(queries)
    return rb.Curve(T, {name: values[name] for name in metrics}, np.ones((queries, 3), bool), scored, 2)


def test_a_line_for_each_metric() -> None:
    assert repr(curve(0.6)).splitlines() == [
        "Curve: 3 points, 40 queries (2 without a positive left out)",
        "mAP: 20.0 % at the start, 60.0 % at the end, average 40.0 %",
        "CMC@1: 50.0 % at the start, 60.0 % at the end, average 62.5 %",
    ]


def test_a_table_in_a_notebook() -> None:
    html = curve(0.6)._repr_html_()
    assert html.startswith("<p><b>Curve: 3 points, 40 queries (2 without a positive left out), in per cent</b></p>")
    low, high = curve(0.6).auc_interval("mAP")
    for cell in ("mAP", "40.0", f"{100 * low:.1f} to {100 * high:.1f}", "never falls", "10.0"):
        assert f"<td>{cell}</td>" in html


def test_differences_from_other_curves_are_paired() -> None:
    good, poor = curve(0.6), curve(0.5)
    compared = good.compare(poor)
    assert compared.frame.metric.tolist() == ["mAP", "CMC@1"]
    assert compared.frame.verdict.tolist() == ["better", "not distinguishable"]
    assert tuple(compared.frame.iloc[0][["difference", "low", "high"]]) == tuple(good.difference(poor, "mAP"))
    # Queries differ far more than the curves, but by as much in both.
    assert compared.frame.low[0] == pytest.approx(0.05)
    several = poor.compare({"good": good, "itself": poor}, "mAP").frame
    assert several[["other", "metric", "verdict"]].to_numpy().tolist() == (
        [["good", "mAP", "worse"], ["itself", "mAP", "not distinguishable"]]
    )
    with pytest.raises(rb.InputError, match="the two curves have different queries"):
        good.compare(curve(0.6, queries=10))
    with pytest.raises(rb.InputError, match="this curve has no metric 'CMC@1'; it has: mAP"):
        good.compare(curve(0.6, metrics=("mAP",)))


def test_lines_carry_the_values_and_bands_the_intervals() -> None:
    figure = curve(0.6).plot()
    (plot,) = figure.axes
    assert [np.round(np.asarray(line.get_ydata(), float), 9).tolist() for line in plot.lines] == (
        [[20, 40, 60], [50, 70, 60]]
    )
    low, high = curve(0.6).interval("mAP")
    band = np.asarray(plot.patches[0].get_path().vertices)[:, 1]
    assert (band.min(), band.max()) == (pytest.approx(100 * low.min()), pytest.approx(100 * high.max()))
    legend = plot.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["mAP", "CMC@1"]
    png, _ = figure._repr_png_()  # type: ignore[attr-defined]
    with Image.open(io.BytesIO(png)) as picture:
        assert picture.width == 1350
    with pytest.raises(rb.InputError, match="no metric 'mAP@5'"):
        curve(0.6).plot("mAP@5")


def test_curves_share_axes_and_differ_in_colour() -> None:
    figure = curve(0.6).plot("mAP", label="good")
    assert curve(0.5).plot("mAP", label="costs $5, then $6", ax=figure.axes[0]) is figure
    lines = figure.axes[0].lines
    assert [line.get_label() for line in lines] == ["good", "costs $5, then $6"]
    assert len({line.get_color() for line in lines}) == 2
    assert figure.axes[0].get_title(loc="left") == "mAP during the backfill"
    figure._repr_png_()  # type: ignore[attr-defined]
    own, axes = plt.subplots()
    assert curve(0.6).plot(ax=axes) is own
    plt.close(own)


def test_drawing_opens_no_figure_of_pyplot() -> None:
    before = plt.get_fignums()
    curve(0.6).plot()
    assert plt.get_fignums() == before


def test_replays_where_the_system_tells_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(0).normal(size=(30, 4))
    pair = rb.UpgradePair(rb.RetrievalSystem(vectors[:5], vectors), rb.RetrievalSystem(vectors[:5], -vectors))
    truth = rb.GroundTruth.from_labels(np.arange(5), np.arange(30) % 5)
    there = rb.replay(pair, truth, np.arange(30), metrics="mAP")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 5})
    assert usable_cpus() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert usable_cpus() == 7
    np.testing.assert_array_equal(
        rb.replay(pair, truth, np.arange(30), metrics="mAP").values("mAP"), there.values("mAP")
    )
    moment = rb.replay_moment(pair, truth, np.arange(30) < 0, metrics="mAP")
    assert moment["mAP"].mean() == there.values("mAP")[0]
