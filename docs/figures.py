"""Draws the figures of docs/how-it-works.md into docs/img.

    python docs/figures.py runs/text/data runs/text/qrels.txt runs/text/four

The first two arguments come from the commands at the top of examples/text/cranfield.py, the last one from

    ray-backfill simulate --data runs/text/data --out runs/text/four --truth qrels runs/text/qrels.txt \\
        --metrics nDCG@10 recall@100 MRR@10 --methods rm_naive ridge_gallery cascade@100 instant --merges best raw

Two of the figures are drawings and need no data; they are drawn without arguments.
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from numpy.typing import NDArray

IMAGES = Path(__file__).parent / "img"
OLD, NEW, INK, GREY = "#d55e00", "#0072b2", "#1b2433", "#69707d"


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
    """A rounded box with a text in its middle."""
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0.02", facecolor=color, edgecolor="none", alpha=0.18
    )
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", linespacing=1.4)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=GREY, linewidth=1.2))


def half_backfilled() -> None:
    """A query in a service of which 40 % are backfilled."""
    figure, axes = plt.subplots(figsize=(8.6, 3.1))
    axes.set(xlim=(0, 10), ylim=(0, 4))
    axes.axis("off")
    box(axes, 0.1, 1.5, 1.2, 1.0, "query", GREY)
    box(axes, 2.1, 2.7, 1.5, 1.0, "new model", NEW)
    box(axes, 2.1, 0.3, 1.5, 1.0, "old model", OLD)
    box(axes, 4.6, 2.7, 2.4, 1.0, "search {new, new}\nbackfilled items, 40 %", NEW)
    box(axes, 4.6, 0.3, 2.4, 1.0, "search {old, old}\nother items, 60 %", OLD)
    box(axes, 7.9, 1.5, 2.05, 1.0, "merge by distance:\none ranking", GREY)
    for start, end in (
        ((1.35, 2.2), (2.05, 3.1)),
        ((1.35, 1.8), (2.05, 0.9)),
        ((3.65, 3.2), (4.55, 3.2)),
        ((3.65, 0.8), (4.55, 0.8)),
        ((7.05, 3.1), (7.85, 2.2)),
        ((7.05, 0.9), (7.85, 1.8)),
    ):
        arrow(axes, start, end)
    figure.savefig(IMAGES / "half-backfilled.png", dpi=150, bbox_inches="tight")


def replay() -> None:
    """Thirty items in five segments; a right answer that is not backfilled yet is the threshold in both systems."""
    rng = np.random.default_rng(7)
    figure, both = plt.subplots(1, 2, figsize=(8.6, 3.1), sharey=True)
    for axes, title, color, threshold, counted in (
        (both[0], "{old, old}: distance to the query", OLD, 0.45, range(2, 5)),
        (both[1], "{new, new}: distance to the query", NEW, 0.45, range(2)),
    ):
        for segment in range(5):
            y = 4 - segment
            distances = np.sort(rng.uniform(0.08, 0.95, 6))
            closer = distances < threshold
            if segment in counted:
                axes.add_patch(Rectangle((0, y - 0.4), threshold, 0.8, color=color, alpha=0.15, linewidth=0))
            axes.scatter(distances[closer], np.full(closer.sum(), y), color=color, s=28, zorder=3)
            axes.scatter(distances[~closer], np.full((~closer).sum(), y), color=GREY, s=28, alpha=0.5, zorder=3)
            axes.text(
                1.03, y, str(closer.sum()), color=INK, va="center", weight="bold" if segment in counted else "normal"
            )
        axes.axvline(threshold, color=INK, linewidth=1.2)
        if color == OLD:
            axes.scatter([threshold], [1], marker="*", s=160, color=INK, zorder=4)
        axes.set(title=title, xlim=(0, 1.1), ylim=(-0.6, 4.6), xticks=[], yticks=range(5))
        axes.set_yticklabels([f"segment {5 - y}" for y in range(5)])
        axes.tick_params(length=0)
        axes.text(1.05, 4.45, "closer", ha="center", fontsize=8, color=GREY)
    figure.tight_layout()
    figure.savefig(IMAGES / "replay.png", dpi=150, bbox_inches="tight")


def unit(vectors: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    stacked = np.stack(vectors)
    return stacked / np.linalg.norm(stacked, axis=1, keepdims=True)


def text(data: Path, judged: Path, run: Path) -> None:
    """Distances of both models on Cranfield, and what they do to the merge."""
    gallery = pq.read_table(data / "gallery.parquet").to_pandas()
    queries = pq.read_table(data / "queries.parquet").to_pandas()
    qrels = pd.read_csv(judged, sep=r"\s+", names=["query", "iteration", "item", "grade"])
    right = np.zeros((len(queries), len(gallery)), bool)
    places = {key: place for place, key in enumerate(gallery["id"])}
    names = {key: place for place, key in enumerate(queries["id"])}
    for row in qrels[qrels["grade"] > 0].itertuples():
        if row.item in places and row.query in names:
            right[names[row.query], places[row.item]] = True
    figure, (left, middle) = plt.subplots(1, 2, figsize=(8.6, 3.1))
    for model, color, dimensions in (("old", OLD, 32), ("new", NEW, 256)):
        distances = 1 - unit(list(queries[model])) @ unit(list(gallery[model])).T
        nearest = np.sort(distances, axis=1)[:, :10].ravel()
        settings = {"bins": np.linspace(0, 1, 41).tolist(), "density": True, "color": color}
        left.hist(nearest, alpha=0.35, label=f"{model}, {dimensions} dimensions: first 10 results", **settings)
        left.hist(distances[right], histtype="step", linewidth=1.6, label=f"{model}: right answers", **settings)
    left.set(xlabel="cosine distance to the query", yticks=[], title="Distances do not compare")
    left.legend(fontsize=7, frameon=False, loc="upper right", bbox_to_anchor=(1.0, 1.02))
    left.set_ylim(0, 8.5)
    curves = pd.read_parquet(run / "results" / "curves.parquet").query("metric == 'nDCG@10'")
    for method, merge, label, color, dashes in (
        ("new", "raw", "new", GREY, "--"),
        ("cascade@100", "raw", "re-rank 100 items", "#009e73", "-"),
        ("rm_naive", "best", "rank merge, CSLS", NEW, "-"),
        ("ridge_gallery", "best", "ridge, CSLS", "#cc79a7", "-"),
        ("old", "raw", "old", GREY, ":"),
        ("rm_naive", "raw", "rank merge by distance", OLD, "-"),
    ):
        curve = curves[(curves["method"] == method) & (curves["merge"] == merge)]
        middle.plot(100 * curve["t"], 100 * curve["value"], color=color, linestyle=dashes, label=label)
    middle.set(
        xlabel="share of the gallery backfilled (%)", ylabel="nDCG@10 (%)", title="What that does to the service"
    )
    middle.legend(fontsize=7, frameon=False, loc="lower left", labelspacing=0.25)
    figure.tight_layout()
    figure.savefig(IMAGES / "distances.png", dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    matplotlib.use("agg")
    plt.rc("font", size=10)
    plt.rc("text", color=INK)
    plt.rc("axes.spines", top=False, right=False)
    half_backfilled()
    replay()
    if len(sys.argv) == 4:
        text(*map(Path, sys.argv[1:]))
