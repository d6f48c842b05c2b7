"""Whether the intervals of forecasts hold what they state, over many independent samples.

    python -m benchmarks.forecast FOLDER [--share 0.02] [--samples 100] [--methods NAME ...] [--merge raw] [--queries N]
        [--halve N] [--first 0]

FOLDER: embeddings by both models, so that the truth is known. --queries: use N of its queries; where the gallery items
are the queries, N of these, which leave the gallery. The maps are fitted once; every sample is drawn, and every
forecast made, as the commands ``sample`` and ``forecast`` do. Prints for each method, order, metric and figure: the
bias and the root mean square error over the samples, the mean half-width of the 95 % interval, and the share of
intervals that hold the exact value, all in points. Then, for the area under the first metric: in random order, the
error of the naive way, an exact replay of a uniform sample of as many items; how often the ranking of methods is wrong
although the interval of their difference excludes 0; and for the first N samples (--halve) how much narrower intervals
become by as many further items as ``forecast`` says would halve them. --first: seed of the first sample, for several
processes that draw a part of the samples each.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import fit_maps
from ray_backfill.compare.replay import Curves, replay_here
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.compare.tables import HEAD_ALONE, NEW
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.replay import Curve, replay
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem
from ray_backfill.forecast import estimate as numbers
from ray_backfill.forecast.estimate import Limits, Units, moment_weights
from ray_backfill.forecast.known_items import new_embeddings, with_stand_ins
from ray_backfill.forecast.methods import Merged, Starts, exact_starts, forecast_method, gallery_here, with_merges
from ray_backfill.forecast.sample import closest_stand_ins, draw_sample, free_pairs
from ray_backfill.learn.models.apply import fit_stand_in
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context

POINTS = 5
T = np.linspace(0, 1, POINTS)
MOMENTS = {"M_0.25": 1, "M_0.5": 2, "M_1": 4}
Key = tuple[str, str]
Found = dict[tuple[str, str, str, str], Limits]


def exact_figures(replayed: Curves, metrics: list[str]) -> dict[tuple[str, str, str, str], float]:
    """(method, order, metric, figure) -> value of the exact replay."""
    found: dict[tuple[str, str, str, str], float] = {}
    alone = {name: replayed[name, "random", "raw"] for name in (NEW, "old")}
    for (method, order, _), each in replayed.items():
        curve = each.curve
        end, old = (alone[name].with_merge.get(each.merge, alone[name]).curve for name in (NEW, "old"))
        for metric in metrics:
            values = curve.values(metric)
            first, last = float(old.values(metric)[0]), float(end.values(metric)[-1])
            figures = {name: float(values[t]) for name, t in MOMENTS.items()}
            figures |= {"AUC": curve.auc(metric), "gain": (curve.auc(metric) - first) / (last - first)}
            found |= {(method, order, metric, name): value for name, value in figures.items()}
    return found


def some_queries(whole: EmbeddingFolder, number: int) -> EmbeddingFolder:
    """Keep this number of queries, chosen at random; where gallery items are the queries, they leave the gallery."""
    table = whole.gallery if whole.queries is None else whole.queries
    mixed = np.random.default_rng(0).permutation(len(table))
    queries = table.take(np.sort(mixed[:number]))
    return replace(
        whole, queries=queries, gallery=whole.gallery if whole.queries else table.take(np.sort(mixed[number:]))
    )


def forecast_all(
    comparison: Comparison, whole: EmbeddingFolder, starts: Mapping[Merged, Starts], budget: int, seed: int
) -> dict[Merged, Mapping[str, Mapping[str, Units]]]:
    """Draw a sample and forecast: method -> order -> metric -> curve. starts: of each method with its merge."""
    how = comparison.evaluation
    assert whole.queries is not None
    stand_ins = fit_stand_in(*free_pairs(whole), how.distance)(whole.gallery.old)
    form = ProductForm.of(RetrievalSystem(whole.queries.new, stand_ins), how.distance)
    sample = draw_sample(comparison.truth, budget, closest_stand_ins(form, comparison.truth), seed)
    items = new_embeddings(whole, sample, sample.position, whole.gallery.new[sample.position], how.distance)
    blind = replace(comparison, folder=with_stand_ins(whole, items))
    gallery = gallery_here(blind)
    return {merged: forecast_method(blind, merged, items, gallery, own).units for merged, own in starts.items()}


def starts_of(comparison: Comparison) -> dict[Merged, Starts]:
    """Each method that can be forecast, with its merge, which is fitted once for all samples."""
    several = with_merges(comparison)
    return dict(zip(several, exact_starts(comparison, several), strict=True))


def figures_of(units: dict[Merged, Mapping[str, Mapping[str, Units]]], first: str) -> tuple[Found, dict[Key, Units]]:
    """The figures of one forecast, and the curves of the first metric."""
    new = {m.has_csls: next(iter(by.values())) for m, by in units.items() if m.method.name == NEW}
    found: Found = {}
    rest = {merged: by for merged, by in units.items() if merged.method.name != NEW}
    for merged, of_order in rest.items():
        method = merged.method
        for order, by_metric in of_order.items():
            for metric, each in by_metric.items():
                for name, t in MOMENTS.items():
                    found[method.name, order, metric, name] = each.mean(moment_weights(POINTS, t)).limits
                found[method.name, order, metric, "AUC"] = numbers.area(each, T).limits
                found[method.name, order, metric, "gain"] = numbers.gain(each, new[merged.has_csls][metric], T)
    return found, {(m.method.name, order): by[first] for m, of in rest.items() for order, by in of.items()}


def naive_error(comparison: Comparison, curves: dict[Key, Curve], budget: int, samples: int) -> float:
    """Root mean square error of the area under the first metric, by replays of small galleries; mean over methods."""
    metric, errors = comparison.evaluation.metrics[0], []
    truth, size = comparison.truth, comparison.truth.n_gallery
    pairs = {m.name: comparison.pair(m) for m in comparison.methods if not m.is_reference}
    row_of = np.repeat(np.arange(truth.n_queries), np.diff(truth.positive_starts))
    for seed in range(samples):
        kept = np.sort(np.random.default_rng([99, seed]).permutation(size)[:budget])
        lists = [truth.positives[row_of == q] for q in range(truth.n_queries)]
        small = GroundTruth.from_positives(
            [np.flatnonzero(np.isin(kept, answers)) for answers in lists], n_gallery=budget
        )
        order = np.random.default_rng(seed).permutation(budget)
        for name, pair in pairs.items():
            found = replay(pair.of_items(kept), small, order, points=POINTS, metrics=(metric,))
            errors.append(found.auc(metric) - curves[name, "random"].auc(metric))
    return float(np.sqrt(np.mean(np.square(errors))))


def halved(
    forecast_with: Callable[[int, int], dict[Key, Units]], budget: int, n_gallery: int, samples: int
) -> pd.DataFrame:
    """Draw as many further items as would halve the interval of an area, and compare its width with the one before."""
    lines = []
    for seed in range(samples):
        for key, units in forecast_with(budget, seed).items():
            before = numbers.area(units, T)
            more = numbers.items_to_halve(before, units.n_groups, budget, n_gallery)
            if np.isfinite(more) and budget + more < n_gallery:
                after = numbers.area(forecast_with(budget + int(more), seed)[key], T)
                lines.append((*key, more, after.half_width() / before.half_width()))
    found = pd.DataFrame(lines, columns=["method", "order", "further items", "after / before"])
    return found.groupby(["method", "order"], sort=False).agg(["mean", "min", "max", "count"])


def table(found: list[Found], true: dict[tuple[str, str, str, str], float]) -> pd.DataFrame:
    lines = []
    for key in found[0]:
        values = [each[key] for each in found if np.isfinite(each[key].value)]
        error = np.array([each.value for each in values]) - true[key]
        half = np.array([(each.high - each.low) / 2 for each in values])
        held = np.mean([each.low <= true[key] <= each.high for each in values])
        lines.append(
            dict(zip(("method", "order", "metric", "figure"), key, strict=True))
            | {"exact": 100 * true[key], "bias": 100 * error.mean(), "RMSE": 100 * np.sqrt((error**2).mean())}
            | {"half-width": 100 * half.mean(), "covered %": 100 * held, "samples": len(values)}
        )
    return pd.DataFrame(lines)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=0.02)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--queries", type=int, default=0)
    parser.add_argument("--halve", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=["rm_naive", "least_squares_gallery", "rm"])
    parser.add_argument("--orders", nargs="+", default=["random", "classifier_score"])
    parser.add_argument("--merge", default="raw")
    parser.add_argument("--metrics", nargs="+", default=["mAP", "mAP@100"])
    parser.add_argument("--maps", type=Path, default=Path("runs/forecast-benchmark"))
    return parser.parse_args()


def main() -> None:
    given = read_arguments()
    whole = read_folder(given.folder)
    if given.queries:
        whole = some_queries(whole, given.queries)
    names, orders, metrics = tuple(given.methods), tuple(given.orders), tuple(given.metrics)
    evaluation = Evaluation(methods=names, orders=orders, merges=(given.merge,), metrics=metrics, points=POINTS)
    comparison = resolve(whole, evaluation.named, FitSettings())
    comparison = comparison.only([m for m in comparison.methods if m.name != HEAD_ALONE])
    given.maps.mkdir(parents=True, exist_ok=True)
    comparison, _ = fit_maps(comparison, FitSettings(), Context(given.maps))
    replayed = replay_here(comparison)
    curves = {(m, order): each.curve for (m, order, _), each in replayed.items()}
    true = exact_figures(replayed, list(metrics))
    budget = int(given.share * len(whole.gallery))
    starts = starts_of(comparison)
    found, wrong, apart, started = [], 0, 0, time.perf_counter()
    for done in range(given.samples):
        seed = given.first + done
        figures, units = figures_of(forecast_all(comparison, whole, starts, budget, seed), metrics[0])
        found.append(figures)
        for one, other in combinations(units, 2):
            if one[1] == other[1]:
                each = numbers.area(units[one].plus(units[other], -1.0), T).limits
                if each.low > 0 or each.high < 0:
                    apart += 1
                    wrong += (each.value > 0) != (curves[one].auc(metrics[0]) > curves[other].auc(metrics[0]))
        if done % 10 == 9:
            print(f"{done + 1} samples, {(time.perf_counter() - started) / (done + 1):.1f} s each", flush=True)
    shown = table(found, true)
    print(f"\n{given.folder}: {len(whole.gallery):,} items, {budget:,} sampled, {comparison.truth.n_queries:,} queries")
    print(shown.round(2).to_string(index=False))
    naive = naive_error(comparison, curves, budget, 5)
    ours = shown[(shown.figure == "AUC") & (shown.order == "random") & (shown.metric == metrics[0])].RMSE
    ratio = naive / np.sqrt((ours**2).mean()) * 100
    print(f"\nnaive: RMSE of the AUC {100 * naive:.2f} points, {ratio:.1f} times the forecast's")
    print(f"differences that exclude 0: {apart}, with the wrong sign: {wrong}")
    if given.halve:

        def forecast_with(size: int, seed: int) -> dict[Key, Units]:
            return figures_of(forecast_all(comparison, whole, starts, size, seed), metrics[0])[1]

        print(halved(forecast_with, budget, len(whole.gallery), given.halve).round(2).to_string())
    shown.to_pickle(given.maps / f"{given.folder.parent.name}-{given.folder.name}-{given.share}.pkl")


if __name__ == "__main__":
    main()
