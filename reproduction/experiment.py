"""Complete experiments: a recipe with several seeds, an ablation, subgroups, and one page about them.

Folders of an experiment: seed-<n> (a run of the recipe, with results, results_merges and published), seed-<n>-long,
biased-<n>, ablation.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.fits import chosen
from ray_backfill.compare.orders import read_sigma, why_not_of_images
from ray_backfill.compare.replay import replay_here
from ray_backfill.compare.report import read_results
from ray_backfill.compare.resolve import resolve
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage, read_json
from ray_backfill.data.folder import Classifier, read_folder
from ray_backfill.data.write import write_parquet
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import find_order
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.models.apply import load_network, transform
from ray_backfill.learn.papers.fastfill import disc_losses, fit_classifier, spread
from ray_backfill.learn.training.fit import class_rows
from ray_backfill.learn.training.settings import FitSettings, TransformSettings
from ray_backfill.recipes import Recipe, all_recipes, load_recipe
from ray_backfill.recipes.run.pipeline import run_recipe
from ray_backfill.workers.session import session
from ray_backfill.workers.settings import Context
from reproduction.further_runs import long_of, run_long, run_published
from reproduction.page import PageInput, write_page
from reproduction.runs import SeedRun
from reproduction.settings import Experiment
from reproduction.variants import fit_variants

# Orders that recipes can make; least_confidence is left out because it is the same as classifier_score.
_ORDERS = (
    *("classifier_score", "random", "entropy", "margin", "centroid_cosine", "class_mean_distance", "sigma"),
    *("mapped_class_mean_distance", "mapped_least_confidence", "oracle_loss"),
)
# The main order, with which rank merge reports its results.
_ORDER = "classifier_score"
# Losses of the ablation. CL-M without rho is left out because it trains exactly what CL-S trains (docs/log.md).
_LOSSES = ("rqt", "cl_s", "mcl", "rqt_rho", "cl_s_rho", "cl_m_rho", "rm")
_TAUS = (1.0, 0.1, 0.03)


def reproduce(experiment: Experiment, context: Context, page: Path, findings: Path | None) -> Path:
    """Run everything that is missing and write the page with its figure.

    context: of the whole experiment; each run gets a folder in its ``out``. findings: handwritten Markdown to include
    in the page.

    Raises:
        InputError: Names, data or folders are wrong.
    """
    with session():
        first = _run_seed(experiment, experiment.seeds[0], context)
        # What is chosen on the first seed's validation split holds for all runs: tuning costs more than all of them.
        tuned = replace(context, chosen=read_results(first.folder).manifest.tuned)
        runs = (first, *(_run_seed(experiment, seed, tuned) for seed in experiment.seeds[1:]))
        published = tuple(run_published(experiment, run, tuned, _ORDER) for run in runs if experiment.published)
        long = tuple(run_long(experiment, run, tuned, _ORDER) for run in long_of(experiment, runs))
        groups = tuple(_run_subgroups(experiment, seed, tuned) for seed in experiment.seeds if experiment.subgroups)
        ablation = _ablate(experiment, context) if experiment.ablation else None
    minutes = _minutes([*runs, *published, *long, *groups])
    write_page(
        PageInput(
            title=f"{experiment.recipe.replace('_', ' ').capitalize()}: {_compared(experiment)}",
            protocol=all_recipes()[experiment.recipe].description,
            runs=runs,
            # The path of the images on this machine is of no use to readers.
            command=re.sub(r"(--data-root[ =])\S+", r"\1PATH", context.command),
            date=date.today().isoformat(),
            machine=f"{_machine()}; {minutes:.0f} minutes for all runs, the ablation aside",
            order=_ORDER,
            kendall_tau=_sigma_against_loss(experiment, tuned),
            published_runs=published,
            long_runs=long,
            long_epochs=experiment.long_epochs,
            ablation=ablation,
            subgroup_runs=groups,
            subgroup_note=all_recipes()[experiment.subgroups].description if experiment.subgroups else "",
            findings=findings,
        ),
        page,
    )
    return page


def _run_seed(experiment: Experiment, seed: int, context: Context) -> SeedRun:
    """Run all methods with all orders and the raw merge, and with the main order and all merges.

    context: with the settings that the first seed chose; for this one, without any.
    """
    recipe = _with_permutations(experiment, load_recipe(experiment.recipe, experiment.data_root, seed))
    if seed == experiment.seeds[0]:
        recipe = replace(recipe, fits=replace(recipe.fits, tune=experiment.tune))
    context = replace(context, out=context.out / f"seed-{seed}", recipe=experiment.recipe)
    evaluation = replace(recipe.evaluation, methods=experiment.methods)
    methods = evaluation.named.methods
    orders = tuple(name for name in _ORDERS if not why_not_of_images(find_order(name), methods))
    recipe = replace(recipe, evaluation=replace(evaluation, orders=orders))
    results = run_recipe(recipe, context)
    merged = replace(recipe, evaluation=replace(evaluation, orders=(_ORDER,), merges=_merges(evaluation)))
    with_merges = evaluate_folder(
        context.out / "embeddings", merged.evaluation, merged.fits, context, asdict(merged), results="results_merges"
    )
    return SeedRun(seed, results, (with_merges,))


def _with_permutations(experiment: Experiment, recipe: Recipe[Any]) -> Recipe[Any]:
    return replace(recipe, evaluation=replace(recipe.evaluation, permutations=experiment.permutations))


def _merges(evaluation: Evaluation) -> tuple[str, ...]:
    return tuple(name for name, kind in all_merges().items() if kind.suits(evaluation.distance) and not kind.is_choice)


def _run_subgroups(experiment: Experiment, seed: int, context: Context) -> SeedRun:
    recipe = _with_permutations(experiment, load_recipe(experiment.subgroups, experiment.data_root, seed))
    return SeedRun(
        seed, run_recipe(recipe, replace(context, out=context.out / f"biased-{seed}", recipe=experiment.subgroups))
    )


def _ablate(experiment: Experiment, context: Context) -> Path:
    """Train heads by loss, rho, mining and temperature on the first seed's embeddings: ``ablation.parquet``."""
    recipe = load_recipe(experiment.recipe, experiment.data_root, experiment.seeds[0])
    out = context.out
    data, path = out / f"seed-{experiment.seeds[0]}" / "embeddings", out / "ablation" / "ablation.parquet"
    cases = [
        (name, mining, tau)
        for name, mining, tau in product(_LOSSES, (True, False), _TAUS)
        # RQT has neither mining nor a temperature.
        if not name.startswith("rqt") or (mining, tau) == (True, _TAUS[0])
    ]
    folder = read_folder(data)
    settings = {"cases": cases, "fits": asdict(recipe.fits), "evaluation": asdict(recipe.evaluation)}
    key = RunKey("ablation", settings, {"data": folder.fingerprint()}, format=2)
    if begin_stage(path.parent, key, context.overwrite):
        return path
    fits = [(name, _with_loss(recipe.fits, mining, tau)) for name, mining, tau in cases]
    networks = fit_variants(folder, fits, recipe.evaluation.distance, path.parent, context.workers.max_failures)
    rows = []
    for (name, mining, tau), network in zip(cases, networks, strict=True):
        (method,) = find_methods((name,))
        rows.append(
            {"loss": method.title.removesuffix(" + rho"), "rho": name.endswith("_rho") or name == "rm"}
            | {"mining": mining, "tau": tau if not name.startswith("rqt") else np.nan}
            | _measure(recipe, data, method, network)
        )
    write_parquet(path, pa.Table.from_pandas(pd.DataFrame(rows), preserve_index=False))
    finish_stage(path.parent)
    return path


def _with_loss(fits: FitSettings, mining: bool, tau: float) -> FitSettings:
    loss = replace(fits.heads.loss, hard_mining=mining, tau=tau)
    return replace(fits, heads=replace(fits.heads, loss=loss))


def _measure(recipe: Recipe[Any], data: Path, method: Method, network: Path) -> dict[str, float]:
    """AUC, gain, M_0 and M_1 of one method in the main order."""
    metric = recipe.evaluation.metrics[0]
    evaluation = replace(
        recipe.evaluation, methods=(method.name,), orders=(_ORDER,), merges=("raw",), metrics=(metric,)
    )
    comparison = resolve(read_folder(data), evaluation.named, recipe.fits, from_images=True)
    curves = replay_here(comparison.fitted({method.name: network}))
    old, new, curve = (curves[name, _ORDER, "raw"].curve for name in ("old", "new", method.name))
    values = curve.values(metric)
    gain = curve.gain(metric, old, new)
    return {"auc": curve.auc(metric), "gain": gain, "start": float(values[0]), "end": float(values[-1])}


def _sigma_against_loss(experiment: Experiment, context: Context) -> tuple[float, ...]:
    """Kendall's tau of FastFill's sigma and its true loss over the gallery, for each seed; () without FastFill."""
    recipe = load_recipe(experiment.recipe, experiment.data_root)
    methods = replace(recipe.evaluation, methods=experiment.methods).named.methods
    fastfill = next((m for m in methods if m.name == "fastfill"), None)
    if fastfill is None:
        return ()
    settings = chosen(context.chosen, recipe.fits).get("fastfill", recipe.fits).transforms.loss
    taus = []
    for seed in experiment.seeds:
        run = context.out / f"seed-{seed}"
        folder, network = read_folder(run / "embeddings"), run / "maps" / "fastfill"
        table = folder.gallery
        assert table.label is not None
        # Without a classifier, use the substitute made of these items.
        known = folder.classifier or fit_classifier(table.new, table.label, settings)
        losses_N = item_losses(load_network(network), known, table.old, table.new, table.label, settings)
        sigma_N = read_sigma(network / "sigma.parquet", folder.gallery)
        known_N = np.isfinite(losses_N)  # items of classes that the new model's classifier knows
        taus.append(float(kendalltau(sigma_N[known_N], losses_N[known_N]).statistic))
    return tuple(taus)


def item_losses(
    network: Any,
    classifier: Classifier,
    old_Nd: FloatArray,
    new_Nd: FloatArray,
    label_N: NDArray[Any],
    settings: TransformSettings,
) -> NDArray[np.float64]:
    """(N,) l2 + disc of each item, which the uncertainty should predict. Source: FastFill, eq. 3 and appendix E.

    NaN for items of classes that the classifier does not know, because their loss is unknown. ``relative`` losses are
    shares of the spread of these items, as they are of that of the train split in training.
    """
    scale = spread(new_Nd) if settings.relative else 1.0
    h_Nd = torch.from_numpy(transform(network, old_Nd))
    weight, bias = (torch.from_numpy(v.copy()) for v in (classifier.weight, classifier.bias))
    with torch.inference_mode():
        l2_N = (h_Nd - torch.from_numpy(np.array(new_Nd, np.float32))).square().mean(1) / scale**2
        rows_N = torch.from_numpy(class_rows(classifier, label_N))
        disc_N = disc_losses(h_Nd, rows_N, weight, bias, settings).masked_fill(rows_N < 0, torch.nan)
        return (l2_N + settings.disc_weight * disc_N).double().numpy()


def _compared(experiment: Experiment) -> str:
    if "all" in experiment.methods:
        return "every method"
    return "methods of two models" if "two_models" in experiment.methods else "some methods"


def _minutes(runs: Sequence[SeedRun]) -> float:
    """Minutes that the stages of these runs took when they were computed, from their manifests."""
    stages: dict[tuple[str, str], float] = {}
    for folder in (folder for run in runs for folder in (run.folder, *run.more)):
        manifest = read_json(folder / "manifest.json")
        for name, seconds in manifest["timings_s"].items():
            key = (str(folder.parent), name if name != "replay" else manifest["created"])
            stages[key] = max(seconds, stages.get(key, 0.0))
    return sum(stages.values()) / 60


def _machine() -> str:
    """Cores and processor model of this machine, without its host name."""
    models = {line.split(":")[1].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")}
    return f"{usable_cpus()} cores of {' and '.join(sorted(models)) or 'an unknown processor'}"


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
