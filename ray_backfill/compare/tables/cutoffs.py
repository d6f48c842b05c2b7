"""Table in RUN/results of score cut-offs translated between the systems."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class CutoffRow:
    """A cut-off at a moment; one row for each method, order, merge, cut-off and reported moment."""

    method: Annotated[
        str,
        "as in `curves.parquet`, but merge is the one that translates the cut-off, also for old, new, offline and "
        "instant",
    ]
    order: str
    merge: str
    cutoff: Annotated[
        float,
        "the cut-off for {old, old} as given: the least similarity of a result (cosine, inner_product) or its largest "
        "distance (l2)",
    ]
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1"]
    backward_cutoff: Annotated[
        float,
        "the translated cut-off for items that are not backfilled yet (NaN if nothing serves them) and for backfilled "
        "items, in the unit of the given one; infinite if nothing passes, or everything",
    ]
    forward_cutoff: float
    precision_before: Annotated[
        float,
        "of the results within the cut-off in {old, old}, before the upgrade: the share that is right (NaN without "
        "results), the share of all right answers that they contain, and their mean number per query; over all results "
        "of all scored queries together, weighted",
    ]
    recall_before: float
    results_before: float
    precision_unchanged: Annotated[float, "the same at t, if both systems use the cut-off as given"]
    recall_unchanged: float
    results_unchanged: float
    precision: Annotated[float, "the same at t, with the translated cut-offs"]
    recall: float
    results: float
