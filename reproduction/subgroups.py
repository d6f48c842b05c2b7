"""The gap between subgroups of queries at chosen moments.

FastFill, section 5.3, measures top-1 accuracy, which is CMC@1. So do these functions, whatever the primary metric is.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.analyses.slices import GAP
from ray_backfill.compare.results import Variant
from reproduction.names import REFERENCES
from reproduction.runs import Case, Floats, Groups, Runs
from reproduction.spread import mean_of

METRIC = "CMC@1"
MOMENTS = (0.0, 0.25, 0.5, 1.0)
# Moments for which the share of the gap that is closed by then is told.
EARLY = (0.25, 0.5)


def nearest(t: Floats, moment: float) -> NDArray[np.intp]:
    """Indices of the points nearest to a moment: two if it lies in the middle between them."""
    distance = np.abs(t - moment)
    return np.flatnonzero(distance <= distance.min() + 1e-9)


def gap_at(runs: Runs, case: Case, moment: float) -> Floats:
    """(S,) best minus worst group at the nearest point (the mean if two are equally near), as a share."""
    return np.array([_gap(groups, case, moment) for groups in runs.groups])


def share_closed(runs: Runs, case: Case, moment: float) -> float:
    """The share of the closable gap (at the start minus at the end) that is closed at a moment; it can exceed 1.

    Gaps are means over the seeds that have them, because a single seed may have next to nothing to close. NaN if the
    upgrade does not reduce the gap.
    """
    start, now, end = (mean_of(gap_at(runs, case, t)) for t in (0.0, moment, 1.0))
    return (start - now) / (start - end) if start > end else float("nan")


def moments_read(runs: Runs, moment: float) -> tuple[float, ...]:
    """The points used for a moment, from the first gap that is found; () without subgroups."""
    for groups in runs.groups:
        for lines in groups.values():
            if GAP in lines:
                t = lines[GAP].t
                return tuple(float(x) for x in t[nearest(t, moment)])
    return ()


def cases_with_gaps(runs: Runs) -> list[Case]:
    """Methods, orders and merges that have a gap curve; old, new and offline once."""
    found: dict[Case, None] = {}
    seen: set[str] = set()
    for groups in runs.groups:
        for (method, variant, metric), lines in groups.items():
            if metric == METRIC and GAP in lines and not (method in REFERENCES and method in seen):
                found[Case(method, variant.order, variant.merge)] = None
                seen.add(method)
    place = {method: index for index, method in enumerate(runs.methods)}
    return sorted(found, key=lambda c: place.get(c.method, len(place)))


def _gap(groups: Groups, case: Case, moment: float) -> float:
    own = groups.get((case.method, Variant(case.order, case.merge), METRIC), {})
    if GAP not in own:
        return float("nan")
    line = own[GAP]
    return float(line.value[nearest(line.t, moment)].mean())
