"""Distances of synthetic embeddings compared with those of real models: a Markdown table and a figure.

python -m benchmarks.scale_figures --real landmarks=RUN/embeddings omniglot=RUN/embeddings --drawn full=RUN/embeddings \
    --figure docs/results/scale-distances.png
The first folder is also imitated at its own size, with as few latent dimensions as such models have.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

import ray_backfill as rb
from benchmarks.galleries import header, row
from ray_backfill.compare.orders import embeddings_of
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.truth import ground_truth
from ray_backfill.engine.distances import normalise
from ray_backfill.learn.methods import all_methods
from ray_backfill.learn.methods.adapters import Pairs
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.page.charts import COLOURS, FAINT, INK
from ray_backfill.page.drawing import blank_figure, to_png
from ray_backfill.recipes.run.synthetic import MODELS, SyntheticGallery, draw_gallery

Values = NDArray[np.float64]
# The size of the demo's landmarks: 200 classes, of which its old model learns 60. Models of 200 classes spread them
# over 13 dimensions; the default has more dimensions because it has more classes.
_DEFAULT = SyntheticGallery()
LIKE_LANDMARKS = replace(
    _DEFAULT, items=6000, queries=500, classes=200, known_classes=60, train_items=8000, groups=20, classifier_scale=9.0,
    old=replace(_DEFAULT.old, seen=13), new=replace(_DEFAULT.new, seen=13),
)  # fmt: skip
KINDS = ("same class", "closest of another class", "any of another class")
METHODS = ("rm_naive", "procrustes_gallery", "least_squares_gallery")
_QUERIES = 300


def distances(folder: EmbeddingFolder, model: str) -> dict[str, Values]:
    """Cosine distances of some queries by kind of pair."""
    queries, rng = folder.queries or folder.gallery, np.random.default_rng(0)
    rows = rng.choice(len(queries), min(_QUERIES, len(queries)), replace=False)
    gallery = normalise(folder.gallery.vectors[model])
    found: dict[str, list[Values]] = {kind: [] for kind in KINDS}
    label = np.asarray(folder.gallery.label)
    for q in rows:
        dist = 1 - gallery @ normalise(queries.vectors[model][q : q + 1])[0]
        same = label == np.asarray(queries.label)[q]
        itself = np.arange(len(label)) == q if folder.queries is None else np.zeros(len(label), bool)
        matches, others = dist[same & ~itself], dist[~same]
        found[KINDS[0]].append(rng.choice(matches, min(len(matches), 100), replace=False))
        found[KINDS[1]].append(others.min(keepdims=True))
        found[KINDS[2]].append(rng.choice(others, 500))
    return {kind: np.concatenate(values) for kind, values in found.items()}


def foretold(folder: EmbeddingFolder, source: str, target: str) -> float:
    """R^2 on the gallery of the least-squares map fitted on the train split."""
    assert folder.train is not None
    x, y = (normalise(folder.train.vectors[model]) for model in (source, target))
    weight = Pairs(x, y).centred.regression(0.0)
    some = slice(0, 50_000)
    a, b = (normalise(folder.gallery.vectors[model][some]) for model in (source, target))
    missed = b - y.mean(0) - (a - x.mean(0)) @ weight
    return float(1 - (missed**2).sum() / ((b - b.mean(0)) ** 2).sum())


def qualities(folder: EmbeddingFolder) -> dict[str, float]:
    """Quality and gains in random order; each class has the same weight, however many queries it has."""
    truth, embeddings = ground_truth(folder, refuse_unknown_ids=False), embeddings_of(folder)
    order = rb.make_order("random", rb.GalleryColumns(folder.gallery.old))
    known, curves = all_methods(), {}
    for name in ("old", "new", *METHODS):
        fit = known[name].fit
        network = None
        if fit is not None:
            assert folder.train is not None
            network = fit.fit(TrainSet(folder.train.vectors, folder.train.label), FitSettings(), "cosine").network
        curve = rb.replay(known[name].pair(embeddings, network), truth, order, 11, ("mAP@100",))
        label = np.asarray((folder.queries or folder.gallery).label)[curve.scored]
        of_class = np.unique(label, return_inverse=True)[1]
        weight = 1 / np.bincount(of_class)[of_class]
        curves[name] = weight @ curve.per_query["mAP@100"] / weight.sum()
    area = {name: float(np.trapezoid(values, dx=0.1)) for name, values in curves.items()}
    found = {"mAP@100 {old, old}": 100 * area["old"], "mAP@100 {new, new}": 100 * area["new"]}
    for name in METHODS:
        found[f"gain of {name}, %"] = 100 * (area[name] - area["old"]) / (area["new"] - area["old"])
    found["mAP@100 {new, Procrustes(old)}"] = 100 * curves["procrustes_gallery"][0]
    found["mAP@100 {new, least squares(old)}"] = 100 * curves["least_squares_gallery"][0]
    return found


def tables(folders: dict[str, EmbeddingFolder]) -> None:
    """Print the distances, then the results of some methods on them."""
    header("model", "cosine distance to", "of", "mean", "sd", "1 %", "10 %", "50 %", "90 %", "99 %")
    for model in MODELS:
        for kind in KINDS:
            for name, folder in folders.items():
                values = distances(folder, model)[kind]
                quantiles = np.quantile(values, (0.01, 0.1, 0.5, 0.9, 0.99))
                row(model, kind, name, *(f"{v:.2f}" for v in (values.mean(), values.std(), *quantiles)))
    header("", *folders)
    found = [qualities(folder) for folder in folders.values()]
    for what in found[0]:
        row(what, *(f"{values[what]:.1f}" for values in found))
    for source, target in (MODELS, MODELS[::-1]):
        row(f"R² of {target} from {source}", *(f"{foretold(f, source, target):.2f}" for f in folders.values()))
    scores = [np.quantile(f.gallery.numbers["old_score"], (0.1, 0.5, 0.9)) for f in folders.values()]
    row("old score: 10 %, 50 %, 90 %", *(", ".join(f"{v:.2f}" for v in of_folder) for of_folder in scores))


def figure(real: tuple[str, EmbeddingFolder], drawn: EmbeddingFolder, path: Path) -> None:
    """One panel per model: filled areas are real distances, lines are synthetic ones."""
    canvas = blank_figure(3.4)
    for place, model in enumerate(MODELS):
        plot: Axes = canvas.add_subplot(1, 2, place + 1)
        of_real, of_drawn = distances(real[1], model), distances(drawn, model)
        bins = np.linspace(0, 1.7, 52).tolist()
        for kind, colour in zip(KINDS, COLOURS, strict=False):
            plot.hist(of_real[kind], bins, density=True, color=colour, alpha=0.3, label=f"{real[0]}: {kind}")
            plot.hist(
                of_drawn[kind], bins, density=True, histtype="step", color=colour, linewidth=1.6, label=f"drawn: {kind}"
            )
        plot.set_title(f"{model} model", loc="left", fontsize=10.5, fontweight="bold", color=INK)
        plot.set_xlabel("cosine distance of a query to an item", color=FAINT, fontsize=9)
        plot.set_xlim(0, 1.7)
        plot.set_yticks([])
        plot.spines[["left", "right", "top"]].set_visible(False)
        plot.tick_params(colors=FAINT, labelsize=8)
    plot.legend(fontsize=7.5, frameon=False, loc="upper right")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_png(canvas))


def named(word: str) -> tuple[str, Path]:
    name, _, path = word.partition("=")
    return name, Path(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--real", type=named, nargs="+", required=True, help="NAME=FOLDER of embeddings, landmarks first"
    )
    parser.add_argument("--drawn", type=named, nargs="*", default=[], help="NAME=FOLDER of synthetic embeddings")
    parser.add_argument("--figure", type=Path, help="path of the figure")
    arguments = parser.parse_args()
    folders = {name: read_folder(path) for name, path in arguments.real}
    first = next(iter(folders.items()))
    with tempfile.TemporaryDirectory() as scratch:
        like = read_folder(draw_gallery(LIKE_LANDMARKS, Path(scratch)))
    folders = {first[0]: first[1], f"drawn like {first[0]}": like} | folders
    folders |= {name: read_folder(path) for name, path in arguments.drawn}
    tables(folders)
    if arguments.figure:
        figure(first, like, arguments.figure)


if __name__ == "__main__":
    main()
