"""What a comparison can decide: whether the new model is better, and whether there are enough queries to tell."""

from enum import Enum

from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.tables.results import NEW, OLD
from ray_backfill.page import Difference

# Below this number of queries a percentile bootstrap is known to be too narrow.
FEW_QUERIES = 30

# Values of a metric that differ by less are equal.
_SAME = 1e-9


class Situation(Enum):
    """What can be said about an upgrade, from the primary metric."""

    TOO_FEW_QUERIES = "no interval can be estimated"
    WORSE = "the new model is worse than the old one"
    EQUAL = "the new model cannot be told apart from the old one"
    NO_METHOD = "only old and new were compared, or controls beside them"
    UNLEARNED = "all methods were fitted and did not learn here"
    ONLY_CASCADES = "only cascades were compared"
    ONLY_BOUNDS = "only oracle orders were compared"
    NOT_MIXED = "no method serves better than the old service while the backfill runs"
    UPGRADE = "some method serves better than the old service while the backfill runs"


def find_situation(results: Results) -> Situation:
    """The situation of these results, by the primary metric."""
    step = upgrade(results)
    if queries(results) == 1 or step is None:
        return Situation.TOO_FEW_QUERIES
    if step.high < 0:
        return Situation.WORSE
    if not step.low > 0:
        return Situation.EQUAL
    best, old = results.best(), reference(results, OLD)
    if best is None:
        own = [row for row in results.rows if not (row.is_end or row.method in results.controls)]
        if own and all(row.method in results.unlearned for row in own):
            return Situation.UNLEARNED
        if results.best_cascade() is not None:
            return Situation.ONLY_CASCADES
        return Situation.ONLY_BOUNDS if any(row.is_bound for row in own) else Situation.NO_METHOD
    if old is not None and best.auc <= old.auc:
        return Situation.NOT_MIXED
    return Situation.UPGRADE


def queries(results: Results) -> int | None:
    """Number of scored queries; None if the manifest does not tell."""
    data = results.manifest.data
    return data["queries"] - data.get("queries_skipped", 0) if "queries" in data else None


def reference(results: Results, name: str, metric: str = "") -> Row | None:
    """The row of old or new."""
    rows = results.panel(metric or results.primary, results.best_variant)
    return next((row for row in rows if row.method == name), None)


def merge_outlives(results: Results, row: Row) -> bool:
    """Whether the merge, such as csls, changes the ranking even when everything is backfilled by the new model."""
    new, traits = reference(results, NEW, row.metric), results.manifest.traits.methods[row.method]
    if new is None or row.merge == "raw" or traits.stays or row.is_reference:
        return False
    return abs(row.end - new.end) > _SAME


def upgrade(results: Results, metric: str = "") -> Difference | None:
    """AUC of new minus AUC of old with its interval; None without one."""
    old, new = reference(results, OLD, metric), reference(results, NEW, metric)
    found = results.difference(new, old) if old is not None and new is not None else None
    return found if found is not None and found.low == found.low else None
