"""From a comparison to a results folder: replays every method and order, writes the tables and the report."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ray_backfill.compare.checks import check_fits, checked_methods, validation_facts
from ray_backfill.compare.costs import cost_table
from ray_backfill.compare.cutoffs import cutoff_table, cutoffs_left_out, has_cutoffs
from ray_backfill.compare.earlier import FILES, check_can_be_extended, is_there, results_key
from ray_backfill.compare.flips import flip_table
from ray_backfill.compare.manifest import now, origin_of, traits_of, versions, weighting
from ray_backfill.compare.orders import store_sigma
from ray_backfill.compare.replay import Curves, replay_here
from ray_backfill.compare.report import Results, read_results, results_of, write_report
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.shown import flips_of, shown_queries
from ray_backfill.compare.tables.checks import CheckRow
from ray_backfill.compare.tables.queries import LOST, WON, ScoredQuery, ShownQuery, SkippedQuery
from ray_backfill.compare.tables.results import TABLES, Manifest
from ray_backfill.compare.tabulate import tabulate
from ray_backfill.core.printable import printable_in
from ray_backfill.core.progress import task
from ray_backfill.core.schema import block, frame, write_table
from ray_backfill.core.stages import begin_stage, finish_stage, note_facts, read_json, replaced_whole
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.learn.training.fit import Tuned
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context


@dataclass(frozen=True)
class Facts:
    """Facts of a run for its manifest that the comparison does not contain.

    settings: everything besides data and evaluation that determines the results. recipe: the whole recipe, {} for a
    user's folder. origin: of the data, see ``origin_of``. backbones: model -> macs and parameters of one
    embedding and training_flops, if the models are known. tuned: settings that were chosen on the validation split.
    """

    command: str
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    timings_s: dict[str, float] = field(default_factory=dict)
    backbones: dict[str, dict[str, Any]] = field(default_factory=dict)
    tuned: tuple[Tuned, ...] = ()


def facts_of(
    comparison: Comparison,
    fits: FitSettings,
    context: Context,
    recipe: Mapping[str, Any] | None,
    maps_s: float,
    tuned: tuple[Tuned, ...] = (),
) -> Facts:
    """Facts from the stages of this run's folder. maps_s: seconds spent on tuning and fitting the maps."""
    out, folder = context.out, comparison.folder
    made = {name: read_json(out / name / "manifest.json") for name in _stages(out, folder.models)}
    known = ("macs", "parameters", "training_flops", "seconds")
    return Facts(
        context.command,
        recorded_settings(fits, context.chosen),
        dict(recipe or {}),
        origin_of(comparison, context, recipe or {}),
        {name: manifest.get("seconds", 0.0) for name, manifest in made.items()} | {"maps": round(maps_s, 2)},
        {
            model: {name: made[f"backbones/{model}"].get(name) for name in known}
            for model in folder.models
            if recipe and f"backbones/{model}" in made
        },
        tuned,
    )


def recorded_settings(fits: FitSettings, chosen: Sequence[Tuned] = ()) -> dict[str, Any]:
    """What determines the results besides data and evaluation. chosen: by another run, see ``Context``."""
    of_methods = {each.method: dict(each.values) for each in chosen}
    return {"fits": asdict(fits)} | ({"chosen": of_methods} if of_methods else {})


def _stages(out: Path, models: Sequence[str]) -> list[str]:
    """The stages in this run's folder that made the embeddings."""
    names = (*(f"backbones/{model}" for model in models), "embeddings")
    # Users may keep their own embeddings in the run's folder, which have no manifest.
    return [name for name in names if (out / name / "manifest.json").exists()]


def write_results(
    comparison: Comparison,
    out: Path,
    facts: Facts,
    replayed: Callable[[Comparison], Curves] = replay_here,
    overwrite: bool = False,
) -> Path:
    """Replay and report; does nothing if ``out`` already contains these results.

    Results of fewer methods, orders or merges are replaced when the new ones are complete. replayed: computes the
    curves; by default in this process. overwrite: also replace results of other settings.

    Raises:
        InputError: ``out`` belongs to another run.
    """
    folder, evaluation, methods = comparison.folder, comparison.evaluation, comparison.methods
    of_results = folder, comparison.truth, comparison.named, facts.settings
    key = results_key(*of_results)
    if is_there(out, key, _tables_of(comparison)):
        return out
    if not overwrite:
        check_can_be_extended(out, *of_results)
    with ExitStack() as display:
        with replaced_whole(out, FILES) as new:
            for method in methods:
                if method.has_sigma:
                    store_sigma(folder, method, comparison.maps)
            started = time.perf_counter()
            curves = replayed(comparison)
            begin_stage(new, key)
            tables = tabulate(methods, curves, evaluation, comparison.slices)
            cutoffs = cutoff_table(comparison)
            display.enter_context(task("write report"))
            dims = {model: folder.gallery.vectors[model].shape[1] for model in folder.models}
            frames = vars(tables) | {"costs": cost_table(methods, dims, comparison.maps, facts.backbones)}
            frames |= {"queries": scored_queries(comparison), "skipped_queries": skipped_queries(comparison)}
            frames |= {"checks": _checks(comparison), "flips": _flips(comparison, curves), "cutoffs": cutoffs}
            manifest = _manifest(comparison, folder.fingerprint(folder.models), facts, 0.0)
            shown = _shown(comparison, curves, {n: table for n, table in frames.items() if table is not None}, manifest)
            frames |= {"shown": frame(ShownQuery, shown) if shown else None}
            for name, table in frames.items():
                if table is not None:
                    write_table(new / f"{name}.parquet", table)
            seconds = round(time.perf_counter() - started, 2)
            timings = dict(manifest.timings_s) | {"replay": seconds}
            note_facts(new, replace(manifest, timings_s=timings, first_results=first_results(curves, shown)).facts())
            finish_stage(new)
        note_facts(out, {"verdict": read_results(out).verdict})
        write_report(out)  # after the results: a page that cannot be made must not take them with it
    return out


def _tables_of(comparison: Comparison) -> list[str]:
    """The tables that results of this comparison consist of."""
    rarely = {
        "skipped_queries": len(comparison.truth.skipped) > 0,
        "subgroups": len(comparison.slices) > 0,
        "slices": len(comparison.slices) > 0,
        "checks": bool(checked_methods(comparison)),
        "shown": False,  # there may be no such query
        "cutoffs": has_cutoffs(comparison),
        "permutations": comparison.evaluation.permutations > 1
        and any(order.is_random for order in comparison.orders.orders)
        and not all(method.is_reference for method in comparison.methods),
    }
    return [name for name in TABLES if rarely.get(name, True)]


def _checks(comparison: Comparison) -> pd.DataFrame | None:
    """What the guard found out about fitted methods; None if it has nothing to judge."""
    rows = check_fits(comparison)
    return frame(CheckRow, rows) if rows else None


def _flips(comparison: Comparison, curves: Curves) -> pd.DataFrame:
    """Which queries change their first result, and to which item."""
    folder, any_curve = comparison.folder, next(iter(curves.values()))
    flips = {key: found.flips for key, found in curves.items() if found.flips is not None}
    query_ids = (folder.queries or folder.gallery).id[any_curve.curve.scored]
    return flip_table(flips, any_curve.t, query_ids, folder.gallery.id)


def _shown(
    comparison: Comparison, curves: Curves, tables: Mapping[str, pd.DataFrame], manifest: Manifest
) -> tuple[ShownQuery, ...]:
    """The worst and best queries of the row that the main sentence is about; () if only references took part."""
    # The ranking of the methods needs no curves.
    without = {name: tables[name].iloc[:0] for name in ("curves", "moments", "differences")}
    few = {name: tables[name] for name in ("summary", "checks") if name in tables}
    results = results_of(few | without, manifest)
    leading = next((row for row in results.candidates(results.primary) if not row.is_reference), None)
    if leading is None:
        return ()
    return shown_queries(comparison.folder, curves, (leading.method, *leading.variant), results.primary)


def first_results(curves: Curves, shown: Sequence[ShownQuery]) -> dict[str, int]:
    """How many queries lose and win their right first result on the way, in the curve that the shown queries are of."""
    if not shown:
        return {}
    flips = flips_of(curves[shown[0].key])
    lost, won = (len(np.unique(flips.query[flips.is_lost == is_lost])) for is_lost in (True, False))
    return {LOST: lost, WON: won}


def scored_queries(comparison: Comparison) -> pd.DataFrame:
    """The queries with a right answer, in the order of all values per query."""
    table, truth = comparison.folder.queries or comparison.folder.gallery, comparison.truth
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    weights = None if truth.weights is None else relative_weights(truth.weights[scored])
    return block(ScoredQuery, table.id[scored].astype(str), scored, 1.0 if weights is None else weights)


def skipped_queries(comparison: Comparison) -> pd.DataFrame | None:
    """The queries without a right answer; None if each has one."""
    table, skipped = comparison.folder.queries or comparison.folder.gallery, comparison.truth.skipped
    return block(SkippedQuery, table.id[skipped].astype(str), skipped) if len(skipped) else None


def results_in_memory(comparison: Comparison, curves: Curves, facts: Facts) -> Results:
    """The results that ``write_results`` would write, without slices and costs, as a report reads them."""
    tables = vars(tabulate(comparison.methods, curves, comparison.evaluation)) | {"checks": _checks(comparison)}
    manifest = _manifest(comparison, "", facts, replay_s=0.0)
    manifest = replace(manifest, data=printable_in(manifest.data))
    return results_of({name: table for name, table in tables.items() if table is not None}, manifest)


def _manifest(comparison: Comparison, fingerprint: str, facts: Facts, replay_s: float) -> Manifest:
    """The content of the manifest besides the settings."""
    folder, evaluation, truth = comparison.folder, comparison.evaluation, comparison.truth
    sizes = {
        "fingerprint": fingerprint,
        "gallery_items": len(folder.gallery),
        "queries": truth.n_queries,
        "queries_skipped": len(truth.skipped),
    }
    right_answers = dict(comparison.truth_facts) | weighting(comparison)
    dims = {f"{model}_dim": folder.gallery.vectors[model].shape[1] for model in folder.models}
    return Manifest(
        command=facts.command,
        recipe=facts.recipe,
        created=now(),
        versions=versions(),
        seed=evaluation.order_seed,
        primary_metric=evaluation.metrics[0],
        margin=evaluation.margin,
        traits=traits_of(
            comparison.methods,
            comparison.orders.orders,
            (RAW.name, *comparison.merges.names),
            comparison.orders.gallery,
        ),
        left_out=(*comparison.left_out, *cutoffs_left_out(comparison)),
        tuned=facts.tuned,
        timings_s=facts.timings_s | {"replay": replay_s},
        backbones=facts.backbones,
        data=sizes | right_answers | dims | validation_facts(comparison) | facts.origin,
    )
