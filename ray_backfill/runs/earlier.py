"""What earlier runs have left in a results folder: the same results, some of them, or those of other settings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.comparison.slices import mark_of_slices
from ray_backfill.comparison.traffic import mark_of_log
from ray_backfill.comparison.truth import mark_of_filter
from ray_backfill.errors import InputError
from ray_backfill.files import first_difference, is_finished, look_at_stage, other_settings, read_json
from ray_backfill.methods import Method, models_of
from ray_backfill.orders import find_order
from ray_backfill.report import REPORT_FILES, write_report
from ray_backfill.store import EmbeddingFolder
from ray_backfill.tables.results import TABLES
from ray_backfill.truths import mark_of_truth

STAGE = "simulation"
# The files that a run writes into its results folder.
FILES = frozenset(("manifest.json", *REPORT_FILES, *(f"{name}.parquet" for name in TABLES)))
# What a further run adds to finished results.
_NAMES = ("methods", "orders", "merges", "cutoffs")


def settings_of(
    folder: EmbeddingFolder, evaluation: Evaluation, methods: Sequence[Method], more: Mapping[str, Any]
) -> dict[str, Any]:
    """What determines the results of these methods. more: settings besides data and evaluation."""
    models = [model for model in folder.models if model in models_of(methods)]
    columns = dict.fromkeys(column for name in evaluation.orders for column in find_order(name).needs)
    # Record the methods by name, because "all" has another meaning when methods are added.
    compared = evaluation.recorded() | {"methods": [method.name for method in methods]}
    mark = mark_of_truth(evaluation.truth)
    marks = {"truth": mark} if mark else {}
    if evaluation.filter:
        marks["filter"] = mark_of_filter(folder, evaluation.filter)
    if (log := mark_of_log(folder)) and "lazy" in evaluation.orders:
        marks["log"] = log
    if sliced := mark_of_slices(folder, evaluation.slices):
        marks["slices"] = sliced
    return {**more, **marks, "data": folder.fingerprint(models, further=columns), "evaluation": compared}


def joined(evaluation: Evaluation, out: Path) -> Evaluation:
    """The evaluation with the methods, orders, merges and cut-offs that ``out`` already has results of.

    It is unchanged if there are no results, or if those were computed with other settings.
    """
    found = _recorded(out).get("evaluation", {})
    named = asdict(evaluation) | {"methods": [method.name for method in evaluation.find_methods()]}
    if not found or first_difference(_without_names(found), _without_names(named)):
        return evaluation
    names: dict[str, Any] = {name: tuple(dict.fromkeys((*found.get(name, ()), *named[name]))) for name in _NAMES}
    both = replace(evaluation, **names)
    try:
        both.check()
    except InputError:  # a plugin is gone
        return evaluation
    return both


def check_can_be_extended(
    out: Path, folder: EmbeddingFolder, evaluation: Evaluation, methods: Sequence[Method], more: Mapping[str, Any]
) -> None:
    """Check that new results can take the place of those in ``out``: the same, or more of the same.

    Raises:
        OtherSettingsError: ``out`` has results that the new ones would not contain, or belongs to another stage.
        InputError: ``out`` holds other files.
    """
    if not is_finished(out):
        look_at_stage(out, STAGE, read_json(out / "manifest.json").get("settings", {}) if _has_manifest(out) else {})
        return
    manifest = read_json(out / "manifest.json")
    named = asdict(evaluation) | {"methods": [method.name for method in methods]}
    recorded = named | {"cutoffs": ()} | _recorded(out).get("evaluation", {})
    # What the same settings would give for the methods, orders, merges and cut-offs that are there.
    there: dict[str, Any] = {
        name: tuple(recorded[name] if set(recorded[name]) <= set(named[name]) else named[name]) for name in _NAMES
    }
    fewer = replace(evaluation, **there)
    kept = [method for name in fewer.methods for method in methods if method.name == name]
    wanted = {"stage": STAGE, "settings": settings_of(folder, fewer, kept, more)}
    if difference := first_difference({name: manifest.get(name) for name in wanted}, wanted):
        raise other_settings(out, difference)


def is_there(out: Path, wanted: Mapping[str, Any], needed: Sequence[str]) -> bool:
    """Whether ``out`` holds these results with all tables. A missing report is written from the tables.

    needed: names of the tables that must be there.
    """
    if not is_finished(out) or first_difference(_recorded(out), wanted):
        return False
    if any(not (out / f"{name}.parquet").exists() for name in needed):
        return False
    if any(not (out / name).exists() for name in REPORT_FILES):
        write_report(out)
    return True


def _recorded(out: Path) -> dict[str, Any]:
    """The settings of finished results; {} if there are none."""
    if not is_finished(out):
        return {}
    found = read_json(out / "manifest.json").get("settings")
    return found if isinstance(found, dict) else {}


def _has_manifest(out: Path) -> bool:
    return (out / "manifest.json").exists()


def _without_names(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in evaluation.items() if name not in _NAMES}
