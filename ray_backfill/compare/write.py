"""From a comparison to a results folder: what earlier runs have left there, the replay, the tables and the report."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ray_backfill.compare.analyses import all_analyses, all_tables
from ray_backfill.compare.analyses.checks import CheckRow, check_fits, validation_facts
from ray_backfill.compare.analyses.shown import first_results
from ray_backfill.compare.cutoffs import cutoffs_left_out
from ray_backfill.compare.evaluation import Named
from ray_backfill.compare.manifest import comparison_key, now, origin_of, traits_of, versions, weighting
from ray_backfill.compare.orders import store_sigma
from ray_backfill.compare.replay import Curves, replay_here
from ray_backfill.compare.report import REPORT_FILES, read_data, results_of, write_report
from ray_backfill.compare.report.verdict import verdict
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.tables import FORMAT, SPINE, Manifest, ScoredQuery
from ray_backfill.compare.tabulate import tabulate
from ray_backfill.core.errors import InputError
from ray_backfill.core.printable import printable_in
from ray_backfill.core.progress import task, track
from ray_backfill.core.runkey import RunKey, first_difference, other_format
from ray_backfill.core.schema import block, frame, write_table
from ray_backfill.core.secrets import cleaned
from ray_backfill.core.stages import (
    begin_stage,
    finish_stage,
    is_finished,
    is_whole,
    manifest_of,
    note_facts,
    other_settings,
    read_json,
    refuse_other_files,
    replaced_whole,
)
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.engine.merges import RAW
from ray_backfill.engine.statistics import relative_weights
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.learn.training.fit import Tuned
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context

STAGE = "simulation"
# What a further run adds to finished results.
_NAMES = ("methods", "orders", "merges", "cutoffs")


def files() -> frozenset[str]:
    """The files that a run writes into its results folder."""
    return frozenset(("manifest.json", *REPORT_FILES, *(f"{name}.parquet" for name in all_tables())))


def results_key(folder: EmbeddingFolder, truth: GroundTruth, named: Named, more: Mapping[str, Any]) -> RunKey:
    """What determines the results of these methods. more: settings besides those of the evaluation."""
    key = comparison_key(STAGE, FORMAT, folder, truth, named, more)
    return replace(key, made_from={**key.made_from, "texts": folder.shown_fingerprint})


def joined(named: Named, out: Path) -> Named:
    """The evaluation with the methods, orders, merges and cut-offs that ``out`` already has results of.

    It is unchanged if there are no results, or if those were computed with other settings.
    """
    recorded, asked = _recorded(out), named.recorded()
    others_there, others_asked = (
        {name: value for name, value in evaluation.items() if name not in _NAMES} for evaluation in (recorded, asked)
    )
    if not recorded or first_difference(others_there, cleaned(others_asked)):
        return named
    names: dict[str, Any] = {name: tuple(dict.fromkeys((*recorded.get(name, ()), *asked[name]))) for name in _NAMES}
    try:
        return replace(named.evaluation, **names).named
    except InputError:  # a plugin is gone
        return named


def check_can_be_extended(
    out: Path, folder: EmbeddingFolder, truth: GroundTruth, named: Named, more: Mapping[str, Any]
) -> None:
    """Check that new results can take the place of those in ``out``: the same, or more of the same.

    Raises:
        OtherSettingsError: ``out`` has results that the new ones would not contain, or belongs to another stage.
        InputError: ``out`` holds other files.
    """
    if not (out / "manifest.json").exists():
        refuse_other_files(out)
        return
    manifest, asked = manifest_of(out), named.recorded()
    recorded = asked | _recorded(out)
    # What the same settings would give for the methods, orders, merges and cut-offs that are there.
    there: dict[str, Any] = {
        name: tuple(recorded[name] if set(recorded[name]) <= set(asked[name]) else asked[name]) for name in _NAMES
    }
    fewer = replace(named, evaluation=replace(named.evaluation, **there))
    for kinds in ("methods", "orders", "merges"):
        by_name = {kind.name: kind for kind in getattr(named, kinds)}
        found_there: dict[str, Any] = {kinds: tuple(by_name[name] for name in there[kinds])}
        fewer = replace(fewer, **found_there)
    if difference := results_key(folder, truth, fewer, more).difference(manifest):
        raise other_settings(out, difference)


def is_there(out: Path, key: RunKey) -> bool:
    """Whether ``out`` holds the results of this key with all tables. What is missing of verdict and report is made."""
    if not is_finished(out) or key.difference(manifest := read_json(out / "manifest.json")):
        return False
    tables_of_analyses = manifest["analyses"]
    tables = (*SPINE, *chain.from_iterable(tables_of_analyses.values()))
    if not all(is_whole(out / f"{name}.parquet") for name in tables):
        return False
    if any(analysis.name not in tables_of_analyses for analysis in all_analyses()):
        return False
    if not all(is_whole(out / name) for name in REPORT_FILES):
        _conclude(out)
    return True


def _conclude(out: Path) -> None:
    """The verdict and the report, from the tables."""
    note_facts(out, {"verdict": verdict(read_data(out))})
    write_report(out)


def _recorded(out: Path) -> dict[str, Any]:
    """The evaluation of the results there, also if a file of them is damaged; {} if there are none of this format."""
    settings: Any = manifest_of(out).get("settings") if (out / "manifest.json").exists() else None
    return {} if other_format(settings, FORMAT) else settings.get("evaluation", {})


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
    stages = {name: out / name / "manifest.json" for name in (*(f"backbones/{m}" for m in folder.models), "embeddings")}
    # Users may keep their own embeddings in the run's folder, which have no manifest.
    made = {name: read_json(path) for name, path in stages.items() if path.exists()}
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
    of_methods = {tuned.method: dict(tuned.values) for tuned in chosen}
    return {"fits": asdict(fits)} | ({"chosen": of_methods} if of_methods else {})


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
    if is_there(out, key):
        return out
    if not overwrite:
        check_can_be_extended(out, *of_results)
    with ExitStack() as display:
        with replaced_whole(out, files()) as new:
            for method in methods:
                if method.has_sigma:
                    store_sigma(folder, method, comparison.maps)
            started = time.perf_counter()
            curves = replayed(comparison)
            begin_stage(new, key)
            tables = tabulate(methods, curves, evaluation) | {"queries": scored_queries(comparison)}
            manifest = _manifest(comparison, folder.fingerprint(folder.models), facts)
            # Analyses read the ranking of the methods, which needs no curves, and the tables of other analyses.
            no_curves = {name: tables[name].iloc[:0] for name in ("curves", "moments", "differences")}
            so_far = results_of({"summary": tables["summary"]} | no_curves, manifest)
            tables_of_analyses: dict[str, list[str]] = {}
            for analysis in track(all_analyses(), "analyse", "tables"):
                computed = analysis.computed(comparison, curves, so_far)
                tables_of_analyses[analysis.name] = list(computed)
                tables |= computed
                further = {name: (analysis.tables[name], table) for name, table in computed.items()}
                so_far = replace(so_far, tables=so_far.tables.with_further(further))
            display.enter_context(task("write report"))
            for name, table in tables.items():
                write_table(new / f"{name}.parquet", table)
            manifest = replace(
                manifest,
                timings_s=dict(manifest.timings_s) | {"replay": round(time.perf_counter() - started, 2)},
                analyses=tables_of_analyses,
                first_results=first_results(curves, tables.get("shown")),
            )
            note_facts(new, manifest.facts())
            finish_stage(new)
        _conclude(out)  # after the results: a page that cannot be made must not take them with it
    return out


def scored_queries(comparison: Comparison) -> pd.DataFrame:
    """The queries with a right answer, in the order of all values per query."""
    table, truth = comparison.folder.queries or comparison.folder.gallery, comparison.truth
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    weights = None if truth.weights is None else relative_weights(truth.weights[scored])
    return block(ScoredQuery, table.id[scored].astype(str), scored, 1.0 if weights is None else weights)


def results_in_memory(comparison: Comparison, curves: Curves, facts: Facts) -> ResultsData:
    """The results that ``write_results`` would write, as a report reads them; of analyses only those of the fits."""
    tables = tabulate(comparison.methods, curves, comparison.evaluation)
    manifest = _manifest(comparison, "", facts)
    manifest = replace(manifest, data=printable_in(manifest.data))
    return results_of(tables | {"checks": frame(CheckRow, check_fits(comparison, curves) or [])}, manifest)


def _manifest(comparison: Comparison, fingerprint: str, facts: Facts) -> Manifest:
    folder, evaluation, truth = comparison.folder, comparison.evaluation, comparison.truth
    sizes = {
        "fingerprint": fingerprint,
        "gallery_items": len(folder.gallery),
        "queries": truth.n_queries,
        "queries_skipped": len(truth.skipped),
    }
    right_answers = dict(comparison.truth_facts) | weighting(comparison)
    merges = (RAW.name, *comparison.merges.names)
    dims = {f"{model}_dim": folder.gallery.vectors[model].shape[1] for model in folder.models}
    return Manifest(
        command=facts.command,
        recipe=facts.recipe,
        created=now(),
        versions=versions(),
        seed=evaluation.order_seed,
        primary_metric=evaluation.metrics[0],
        margin=evaluation.margin,
        traits=traits_of(comparison.methods, comparison.named.orders, merges, comparison.orders.gallery),
        left_out=(*comparison.left_out, *cutoffs_left_out(comparison)),
        tuned=facts.tuned,
        timings_s=facts.timings_s | {"replay": 0.0},
        backbones=facts.backbones,
        data=sizes | right_answers | dims | validation_facts(comparison) | facts.origin,
    )
