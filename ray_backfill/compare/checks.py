"""The guard: a fitted method that is worse than rank merge without training on items that no fit saw is marked."""

from typing import Any

from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.tables.checks import CheckRow
from ray_backfill.compare.validation import replay_on_validation, why_not_judged
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.replay import Curve
from ray_backfill.learn.methods import Method, find_methods

BASELINE = "rm_naive"


def checked_methods(comparison: Comparison) -> list[Method]:
    """The methods that the guard judges: all that are fitted, if the validation part allows it."""
    return [] if why_not_judged(comparison.folder.validation) else _fitted(comparison)


def check_fits(comparison: Comparison) -> list[CheckRow]:
    """Replay each fitted method and the baseline on the validation part. comparison: with its maps."""
    methods, how, validation = checked_methods(comparison), comparison.evaluation, comparison.folder.validation
    if not methods or validation is None:
        return []
    with_baseline = [*find_methods((BASELINE,)), *methods]
    curves = replay_on_validation(
        validation, with_baseline, comparison.maps, how.metrics[0], how.distance, how.order_seed
    )
    baseline = curves[BASELINE]
    return [_compared(method, curves[method.name], baseline, how.metrics[0]) for method in methods]


def validation_facts(comparison: Comparison) -> dict[str, Any]:
    """Size and origin of the validation part, and why nothing was checked on it; {} if nothing is fitted."""
    folder, facts = comparison.folder, dict[str, Any]()
    fitted = _fitted(comparison)
    if not fitted and not any(all_merges()[name].needs_train for name in comparison.merges.names):
        return facts
    if (part := folder.validation) is not None:
        origin = "held out from every fit" if part.path.name == "train.parquet" else "in no other split"
        facts |= {"validation_items": len(part), "validation_from": f"{part.path.name}, {origin}"}
    if fitted and (reason := why_not_judged(part)):
        facts["not_checked"] = reason
    return facts


def _fitted(comparison: Comparison) -> list[Method]:
    # A cascade's quality is bounded by how many items it recalls, whatever its map has learned.
    return [method for method in comparison.methods if method.fit and not method.recalls]


def _compared(method: Method, own: Curve, baseline: Curve, metric: str) -> CheckRow:
    found = own.difference(baseline, metric)
    return CheckRow(
        method.name, metric, len(own.scored), own.auc(metric), baseline.auc(metric), found.value, found.low, found.high,
        is_worse=bool(found.high < 0),
    )  # fmt: skip
