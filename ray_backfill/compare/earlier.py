"""What earlier runs have left in a results folder: the same results, some of them, or those of other settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from ray_backfill.compare.analyses import all_analyses, all_tables
from ray_backfill.compare.evaluation import Named
from ray_backfill.compare.keys import comparison_key
from ray_backfill.compare.report import REPORT_FILES, write_report
from ray_backfill.compare.tables import SPINE
from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import RunKey, first_difference
from ray_backfill.core.secrets import cleaned
from ray_backfill.core.stages import is_finished, other_settings, read_json, refuse_other_files
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.engine.merges import MergeKind
from ray_backfill.engine.orders import Order
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.learn.methods import Method

T = TypeVar("T", Method, Order, MergeKind)

STAGE = "simulation"
# Version of the results folder; increases when the shape of a table or the meaning of the key changes.
FORMAT = 8
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
    found, own = _recorded(out).get("evaluation", {}), _settings(named)
    if not found or first_difference(_without_names(found), cleaned(_without_names(own))):
        return named
    names: dict[str, Any] = {name: tuple(dict.fromkeys((*found.get(name, ()), *own[name]))) for name in _NAMES}
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
    manifest = read_json(out / "manifest.json")
    if not manifest.get("finished") and manifest.get("stage") == STAGE:
        return
    own = _settings(named)
    recorded = own | _recorded(out).get("evaluation", {})
    # What the same settings would give for the methods, orders, merges and cut-offs that are there.
    there: dict[str, Any] = {
        name: tuple(recorded[name] if set(recorded[name]) <= set(own[name]) else own[name]) for name in _NAMES
    }
    fewer = replace(
        named,
        evaluation=replace(named.evaluation, **there),
        methods=_in_order(named.methods, there["methods"]),
        orders=_in_order(named.orders, there["orders"]),
        merges=_in_order(named.merges, there["merges"]),
    )
    if difference := results_key(folder, truth, fewer, more).difference(manifest):
        raise other_settings(out, difference)


def _in_order(kinds: Iterable[T], names: Sequence[str]) -> tuple[T, ...]:
    """Those of these names, in their order."""
    by_name = {kind.name: kind for kind in kinds}
    return tuple(by_name[name] for name in names)


def is_there(out: Path, key: RunKey) -> bool:
    """Whether ``out`` holds the results of this key with all tables. A missing report is written from the tables."""
    if not is_finished(out) or key.difference(manifest := read_json(out / "manifest.json")):
        return False
    # Results of earlier versions do not record which analyses were computed.
    analyses = manifest.get("analyses") or {each.name: [] for each in all_analyses()}
    tables = (*SPINE, *chain.from_iterable(analyses.values()))
    if any(each.name not in analyses for each in all_analyses()):
        return False
    if any(not (out / f"{name}.parquet").exists() for name in tables):
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


def _settings(named: Named) -> dict[str, Any]:
    """The settings of an evaluation as results record them, with each method by its name."""
    return asdict(named.evaluation) | {"methods": [method.name for method in named.methods]}


def _without_names(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in evaluation.items() if name not in _NAMES}
