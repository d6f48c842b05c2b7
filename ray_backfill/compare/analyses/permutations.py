"""How much the AUC varies over the permutations of a random order."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ray_backfill.compare.analyses import Analysis

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves


@dataclass(frozen=True)
class PermutationRow:
    """The spread of a curve over random permutations; one row for each method, merge and metric in a random order."""

    method: Annotated[str, "as in `summary.parquet`, whose `auc` is the mean over the permutations"]
    order: str
    merge: str
    metric: str
    permutations: Annotated[int, "number of permutations"]
    auc_std: Annotated[float, "sample standard deviation, least and largest value of their AUCs"]
    auc_min: float
    auc_max: float


def compute(_: object, curves: "Curves", __: object) -> list[PermutationRow] | None:
    """One row for each curve that is a mean over several permutations; None without them."""
    rows = [
        PermutationRow(*key, metric, len(aucs_P), float(aucs_P.std(ddof=1)), float(aucs_P.min()), float(aucs_P.max()))
        for key, curve in curves.items()
        for metric, aucs_P in curve.permutation_aucs.items()
    ]
    return rows or None


ANALYSES = (Analysis("permutations", PermutationRow, compute),)
