"""Tables in RUN/results about groups of queries."""

from dataclasses import dataclass
from typing import Annotated

# In the column ``group``: best group minus worst group.
GAP = "(gap)"
# With fewer queries, an interval is too narrow to be judged by.
FEWEST_QUERIES = 30


@dataclass(frozen=True)
class SubgroupPoint:
    """A point of a curve over the queries of one group."""

    method: Annotated[str, "as in `curves.parquet`"]
    order: str
    merge: str
    metric: str
    slice: Annotated[str, "column of the queries"]
    group: Annotated[
        str,
        f"value of this column, or the range of a quarter of its numbers; `(none)`: missing values; `(other)`: all but "
        f"the 20 largest groups; `{GAP}`: best minus worst group",
    ]
    queries: Annotated[int, "number of queries in the group"]
    t: Annotated[float, "as in `curves.parquet`; a gap has no interval"]
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class SliceRow:
    """What an upgrade does to the queries of one group; intervals are paired, and of these queries alone."""

    method: Annotated[str, "as in `subgroups.parquet`"]
    order: str
    merge: str
    metric: str
    slice: str
    group: str
    queries: int
    start: Annotated[float, "values before (M_0) and after (M_1) the backfill"]
    end: float
    change: Annotated[float, "end minus start, and its 95 % interval"]
    change_low: float
    change_high: float
    old: Annotated[float, "metric of {old, old} for these queries"]
    lowest_vs_old: Annotated[
        float, "smallest M_t minus old over the points of the curve, and its simultaneous 95 % interval"
    ]
    lowest_vs_old_low: float
    lowest_vs_old_high: float
    lowest_at: Annotated[float, "progress t at which it is smallest"]
    stays_at_old: Annotated[
        str,
        f"verdict on whether M_t never is below old: `yes`: the interval excludes a loss above the margin; `no`: it "
        f"shows a loss; `undecided`: neither, or fewer than {FEWEST_QUERIES} queries",
    ]
