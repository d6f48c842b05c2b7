"""The gap between subgroups of queries at chosen moments."""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.papers.names import REFERENCES
from ray_backfill.papers.runs import Case, Floats, Runs
from ray_backfill.report.results import Results, Variant
from ray_backfill.tables.results import GAP

MOMENTS = (0.0, 0.25, 0.5, 1.0)


def nearest(t: Floats, moment: float) -> NDArray[np.intp]:
    """Indices of the points nearest to a moment: two if it lies in the middle between them."""
    distance = np.abs(t - moment)
    return np.flatnonzero(distance <= distance.min() + 1e-9)


def gap_at(runs: Runs, case: Case, moment: float) -> Floats:
    """(S,) best minus worst group at the nearest point (the mean if two are equally near), as a share."""
    return np.array([_gap(results, case, runs.primary, moment) for results in runs.results])


def moments_read(runs: Runs, moment: float) -> tuple[float, ...]:
    """The points used for a moment, from the first gap that is found; () without subgroups."""
    for results in runs.results:
        for lines in results.groups.values():
            if GAP in lines:
                t = lines[GAP].t
                return tuple(float(x) for x in t[nearest(t, moment)])
    return ()


def cases_with_gaps(runs: Runs) -> list[Case]:
    """Methods, orders and merges that have a gap curve of the primary metric; old, new and offline once."""
    found: dict[Case, None] = {}
    seen: set[str] = set()
    for results in runs.results:
        for (method, variant, metric), lines in results.groups.items():
            if metric == runs.primary and GAP in lines and not (method in REFERENCES and method in seen):
                found[Case(method, variant.order, variant.merge)] = None
                seen.add(method)
    place = {method: index for index, method in enumerate(runs.methods)}
    return sorted(found, key=lambda c: place.get(c.method, len(place)))


def _gap(results: Results, case: Case, metric: str, moment: float) -> float:
    own = results.groups.get((case.method, Variant(case.order, case.merge), metric), {})
    if GAP not in own:
        return float("nan")
    line = own[GAP]
    return float(line.value[nearest(line.t, moment)].mean())
