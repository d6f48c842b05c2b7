"""Where another method serves better than the best one, at all judged moments."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from ray_backfill.compare.report.results import Results, Row
from ray_backfill.compare.report.selection import find_row


class Crossing(NamedTuple):
    """A stretch of the backfill on which another method serves better.

    start, end: progress. lead: its largest lead, a share.
    """

    row: Row
    start: float
    end: float
    lead: float


def crossings(results: Results, best: Row) -> list[Crossing]:
    """The stretches where a method leads by more than the margin, in the order and merge of ``best``, largest first."""
    mine = results.moments[best.method, best.variant, best.metric]
    found = []
    for row in results.panel(best.metric, best.variant):
        if row == best or row.is_reference:
            continue
        theirs = results.moments[row.method, row.variant, row.metric]
        lead = theirs.value - mine.value
        ahead = np.flatnonzero(lead > results.manifest.margin)
        for stretch in np.split(ahead, np.flatnonzero(np.diff(ahead) > 1) + 1) if len(ahead) else ():
            start, end = mine.t[stretch[[0, -1]]]
            found.append(Crossing(row, float(start), float(end), float(lead[stretch].max())))
    return sorted(found, key=lambda each: each.lead, reverse=True)


def crossing_frame(results: Results, method: str, metric: str, order: str = "", merge: str = "") -> pd.DataFrame:
    """The stretches where others lead, as numbers; see ``Results.crossings``."""
    found = crossings(results, find_row(results, method, metric, order, merge))
    rows = [(each.row.method, *each.row.variant, each.start, each.end, each.lead) for each in found]
    return pd.DataFrame(rows, columns=["method", "order", "merge", "start", "end", "lead"])
