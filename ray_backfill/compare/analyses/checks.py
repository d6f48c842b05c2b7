"""The guard: a fitted method that is worse than rank merge without training on items that no fit saw is marked.

A method that is better on the queries is not marked: with some sixty held-out items, as of 600 train items, the mark
came and went by chance (docs/log.md).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.results import ResultsData
from ray_backfill.core.progress import detail
from ray_backfill.page.sections import Cell, Folded, Section, limits, share, table_of, word

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves
    from ray_backfill.compare.resolve import Comparison
    from ray_backfill.engine.replay import Curve
    from ray_backfill.learn.methods import Method

BASELINE = "rm_naive"


@dataclass(frozen=True)
class CheckRow:
    """A fitted method on the validation part: a small gallery that queries itself, backfilled in random order."""

    method: Annotated[str, "as in `summary.parquet`"]
    metric: Annotated[str, "the primary metric of the run"]
    queries: Annotated[int, "number of scored validation items"]
    auc: Annotated[
        float,
        "auc of the method and of `rm_naive`, rank merge without training, in the merge that suits the method best",
    ]
    auc_rm_naive: float
    difference: Annotated[float, "auc minus auc_rm_naive, and its paired 95 % interval"]
    low: float
    high: float
    is_worse: Annotated[
        bool,
        "the interval is below 0, and the method is not better than `rm_naive` on the queries, by its interval there: "
        "reports mark it and never recommend it",
    ]


def check_fits(comparison: "Comparison", curves: "Curves", *_: object) -> list[CheckRow] | None:
    """Replay each fitted method and the baseline on the validation part; None if it cannot judge them.

    comparison: with its maps. curves: of the queries.
    """
    from ray_backfill.compare.fits import replay_on_validation, why_not_judged
    from ray_backfill.data.leakage import has_seen_queries
    from ray_backfill.engine.merges import RAW
    from ray_backfill.learn.methods import find_methods

    methods, how, validation = _fitted(comparison), comparison.evaluation, comparison.folder.validation
    if not methods or validation is None or why_not_judged(validation):
        return None
    with_baseline, metric = [*find_methods((BASELINE,)), *methods], how.metrics[0]
    merges = {method.name: comparison.merges_of(method) for method in with_baseline}
    merges[BASELINE] |= {RAW.name: RAW}  # the only merge of a reference that is fitted, such as rho_alone
    with detail("check fits"):
        checked = replay_on_validation(
            validation, with_baseline, comparison.maps, metric, how.distance, how.order_seed, merges=merges
        )
    rows = []
    for method in methods:
        pairs = [(checked[key], checked[BASELINE, key[1]]) for key in checked if key[0] == method.name]
        curve, baseline = max(pairs, key=lambda pair: pair[0].auc(metric) - pair[1].auc(metric))
        lead = curve.difference(baseline, metric)
        aucs = curve.auc(metric), baseline.auc(metric)
        is_worse = lead.high < 0 and (
            not is_better_on_queries(curves, method.name, metric) or has_seen_queries(comparison.folder)
        )
        rows.append(CheckRow(method.name, metric, len(curve.scored), *aucs, *lead, bool(is_worse)))
    return rows


def is_better_on_queries(curves: "Curves", method: str, metric: str) -> bool:
    """Whether its best merge is better than the baseline's best one on the queries, in any order."""

    def best(name: str, order: str) -> "Curve | None":
        of_order = (replayed.curve for key, replayed in curves.items() if key[:2] == (name, order))
        return max(of_order, key=lambda curve: curve.auc(metric), default=None)

    orders = {order for name, order, _ in curves if name == method}
    both = [(best(method, order), best(BASELINE, order)) for order in orders]
    return any(
        curve is not None and baseline is not None and curve.difference(baseline, metric).low > 0
        for curve, baseline in both
    )


def validation_facts(comparison: "Comparison") -> dict[str, Any]:
    """Size and origin of the validation part, and why nothing was checked on it; {} if nothing is fitted."""
    from ray_backfill.compare.fits import why_not_judged
    from ray_backfill.data.words import called
    from ray_backfill.engine.merges import all_merges

    folder, facts = comparison.folder, dict[str, Any]()
    fitted = _fitted(comparison)
    if not fitted and not any(all_merges()[name].needs_train for name in comparison.merges.names):
        return facts
    if (part := folder.validation) is not None:
        origin = "held out from every fit" if part.path.name == "train.parquet" else "in no other split"
        facts |= {"validation_items": len(part), "validation_from": f"{called(part.path, in_short=True)}, {origin}"}
    if fitted and (reason := why_not_judged(part)):
        facts["not_checked"] = reason
    return facts


def _fitted(comparison: "Comparison") -> "list[Method]":
    # A cascade's quality is bounded by how many items it recalls, whatever its map has learned.
    return [method for method in comparison.methods if method.fit and not method.recalls]


def _verdict(check: CheckRow) -> str:
    if check.is_worse:
        return "did not learn here"
    return "worse here, better on the queries" if check.high < 0 else "no worse"


def section(results: ResultsData) -> Section | None:
    """A line per fitted method, the one that is furthest behind first."""
    checks: tuple[CheckRow, ...] = results.table_of("checks")
    if not checks:
        return None
    lines = [
        [
            ("method", Cell(results.titles.get(check.method, check.method))),
            (f"average {check.metric}", share(check.auc)),
            ("RM naive", share(check.auc_rm_naive)),
            ("difference", share(check.difference)),
            ("95 % interval", limits(check.low, check.high)),
            ("verdict", word(_verdict(check))),
        ]
        for check in sorted(checks, key=lambda check: check.difference)
    ]
    words = (
        f"Fitted methods on the validation items ({results.manifest.data.get('validation_from', '')}): a gallery of "
        "these items that queries itself, backfilled in random order. A method that is worse there than rank merge "
        "without training (rm_naive) in each merge, by more than these items\u2019 noise, and not better on the "
        "queries by more than theirs, did not learn from these train items."
    )
    table = table_of("Fitted methods on the validation items", lines)
    return Section(
        "Did the fits learn?", [words, Folded(f"All {len(checks)} methods", [table], is_open=bool(results.unlearned))]
    )


ANALYSES = (Analysis("checks", CheckRow, check_fits, section, place=70),)
