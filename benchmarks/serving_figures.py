"""The figures of ``benchmarks.serving``."""

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from benchmarks.honesty import METRICS, OF_INDEX, RERANKED, Curves
from benchmarks.prices import LIMIT, Price
from ray_backfill.drill.plan import NEW, OLD
from ray_backfill.page.charts import COLOURS, FAINT, GRID, INK, MARKERS, Style
from ray_backfill.page.drawing import blank_figure, dress, legend, to_png

_EXACT = Style(INK, "-", "", 2.4, 5)


def price_figure(prices: list[Price], path: Path) -> None:
    """Ratios by index, one marker per k and batch; hollow: just before a compaction."""
    labels = list(dict.fromkeys(price.label for price in prices))
    kinds = list(dict.fromkeys((price.k, price.batch, price.threads) for price in prices))
    figure = blank_figure(1.2 + 0.6 * len(labels))
    plot = figure.subplots()
    for price in prices:
        style = kinds.index((price.k, price.batch, price.threads))
        y = len(labels) - labels.index(price.label) + 0.6 * (0.5 - (style + 0.5) / len(kinds))
        colour, marker = COLOURS[style % len(COLOURS)], MARKERS[style % len(MARKERS)]
        plot.plot(price.ratio[::2], (y, y), color=colour, linewidth=1.2)
        plot.plot(price.before[1], y, marker=marker, markersize=5, markerfacecolor="none", color=colour, linestyle="")
        known = price.label == labels[0]
        name = f"k = {price.k}, batch {price.batch}, {price.threads} thread{'s' if price.threads > 1 else ''}"
        plot.plot(price.ratio[1], y, marker=marker, markersize=6, color=colour, linestyle="",
                  label=name if known else None)  # fmt: skip
    plot.axvline(LIMIT, color=INK, linewidth=1.2, linestyle="--")
    plot.axvline(1, color=GRID, linewidth=1.2)
    plot.set_yticks(range(len(labels), 0, -1), labels)
    plot.set_xlim(left=0)
    plot.set_xlabel("queries per second, half-backfilled shard / one partition", color=FAINT, fontsize=9)
    title = "The price of two partitions (hollow: just before a compaction; dashed: the target)"
    plot.set_title(title, loc="left", fontsize=10.5, fontweight="bold", color=INK)
    plot.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(1.0, 0.0))
    _plain(plot)
    path.write_bytes(to_png(figure))


def honesty_figure(found: list[Curves], path: Path) -> None:
    """Quality by index, recall of each side, and the effect of merges on quantised indexes."""
    quantised = [curves for curves in found if curves.is_quantised]
    heights = [3.2, 3.2, max(3.2, 0.26 * 4 * (len(quantised) + 1))]
    figure = blank_figure(sum(heights))
    grid = figure.add_gridspec(3, 2, width_ratios=(2.2, 1), height_ratios=heights)
    styles = [Style(COLOURS[i % len(COLOURS)], "-", MARKERS[i], 1.5, 3) for i in range(len(found))]
    metric = METRICS[0]
    exact = 100 * np.array(found[0].exact["raw", metric])
    plot = figure.add_subplot(grid[0, 0])
    dress(plot, f"{metric} by index, raw distances", f"{metric} (%)")
    entries = [("exact search", "", _EXACT)]
    _line(plot, found[0].t, exact, _EXACT)
    for curves, style in zip(found, styles, strict=True):
        _line(plot, curves.t, 100 * np.array(curves.quality["raw", metric]), style)
        entries.append((curves.name, "", style))
    legend(figure.add_subplot(grid[0, 1]), heights[0], "", entries, longest=40)
    plot = figure.add_subplot(grid[1, 0])
    dress(plot, "recall@100 of old (dashed) and new items", "share of the exact answer (%)")
    for curves, style in zip(found, styles, strict=True):
        for side, dashes in ((OLD, "--"), (NEW, "-")):
            of_side = Style(style.colour, dashes, style.marker, 1.3, 3)
            _line(plot, curves.t, 100 * np.array(curves.recall[side]), of_side)
    figure.add_subplot(grid[1, 1]).set_axis_off()
    _merges(figure.add_subplot(grid[2, 0]), figure.add_subplot(grid[2, 1]), heights[2], quantised)
    path.write_bytes(to_png(figure))


def _merges(plot: Axes, side: Axes, height_in: float, quantised: list[Curves]) -> None:
    """The difference to exact search with raw distances, for raw distances and merges of the index."""
    metric = METRICS[0]
    dress(plot, f"{metric} minus that of exact search: raw, mapped, and re-ranked", "points")
    plot.axhline(0, color=INK, linewidth=1.2)
    entries = []
    merges = (("raw", "-"), (f"quantile{OF_INDEX}", "--"), (f"isotonic{OF_INDEX}", "-."), (RERANKED, ":"))
    for index, curves in enumerate(quantised):
        base = np.array(curves.exact["raw", metric])
        for merge, dashes in merges:
            if (merge, metric) in curves.quality:
                style = Style(COLOURS[index % len(COLOURS)], dashes, MARKERS[index] if dashes == "-" else "", 1.4, 3)
                _line(plot, curves.t, 100 * (np.array(curves.quality[merge, metric]) - base), style)
                entries.append((f"{curves.name}: {'re-ranked exactly' if merge == RERANKED else merge}", "", style))
    legend(side, height_in, "", entries, longest=48)


def _line(plot: Axes, t: list[float], values: NDArray[np.float64], style: Style) -> None:
    plot.plot(100 * np.array(t), values, color=style.colour, linestyle=style.dashes, marker=style.marker,
              linewidth=style.width, markersize=5, markeredgecolor="white", markeredgewidth=0.6,
              zorder=style.layer)  # fmt: skip


def _plain(plot: Axes) -> None:
    plot.tick_params(colors=FAINT, labelcolor=INK, labelsize=9, length=3)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        plot.spines[side].set_color(FAINT)
