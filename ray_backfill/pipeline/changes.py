"""What changes in a gallery while it is backfilled: items come, get another content, and go.

Shapes: Q queries, N gallery items, T points, P right answers, b queries of a block, M metrics.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import fingerprint
from ray_backfill.data.columns import in_words
from ray_backfill.data.folder import EmbeddingTable
from ray_backfill.data.words import called
from ray_backfill.engine.lists import measure_lists
from ray_backfill.engine.replay import Served
from ray_backfill.engine.replay.partitions import Lifetimes
from ray_backfill.engine.replay.prepare import backfilled_at
from ray_backfill.engine.systems import GroundTruth, IntArray, rows_of

# Results among which stale ones are counted.
STALE_RESULTS = 10


@dataclass(frozen=True)
class Period:
    """The time of a backfill, for columns of dates."""

    start: datetime
    end: datetime


class Timeline(NamedTuple):
    """When N items change, in points: there at since <= i < until, and changed from ``changed`` on. (N,) int64.

    Where something never happens, ``until`` and ``changed`` are T.
    """

    since: IntArray
    until: IntArray
    changed: IntArray

    def of(self, items: IntArray) -> "Timeline":
        """That of some items."""
        return Timeline(*(point[items] for point in self))

    def lifetimes(self, with_inserted: bool) -> Lifetimes:
        """When items are there. with_inserted: otherwise, of a partition that items never enter that are inserted."""
        return Lifetimes(self.since, self.until if with_inserted else np.where(self.since > 0, 0, self.until))

    def likely_depth(self, k: int, points: int) -> int:
        """Among so many items of a partition there are likely to be k that are there, at every point."""
        n, passing = len(self.since), int(((self.since > 0) | (self.until < points)).sum())
        return k + min(passing, 16 + 2 * k * passing // max(1, n - passing))


@dataclass(frozen=True, eq=False)
class Changes:
    """When each of N items is inserted, gets its present content, and is deleted: progress of the backfill in [0, 1].

    (N,) float64; 0 where nothing happens, or happened before the backfill began.

    Raises:
        InputError: A time is NaN or outside [0, 1], or an item is changed or deleted before what must precede it.
    """

    inserted_at: NDArray[np.float64]
    changed_at: NDArray[np.float64]
    deleted_at: NDArray[np.float64]

    def __post_init__(self) -> None:
        of_name = {column.name: getattr(self, column.name) for column in fields(self)}
        for name, times in of_name.items():
            _refuse(~((times >= 0) & (times <= 1)), f"{name} is not in [0, 1]: {{}}", times)
        for before, after in (("inserted", "changed"), ("inserted", "deleted"), ("changed", "deleted")):
            first, second = of_name[f"{before}_at"], of_name[f"{after}_at"]
            _refuse((second > 0) & (second < first), f"{after}_at {{}} is before {before}_at {{}}", second, first)

    @property
    def fingerprint(self) -> str:
        """A hash of all times."""
        return fingerprint(self.inserted_at, self.changed_at, self.deleted_at)

    def at(self, points: int) -> Timeline:
        """What happens by which of T points: the first at t >= the time."""
        t = np.arange(points) / (points - 1)
        until, changed = (
            np.where(times > 0, np.searchsorted(t, times), points) for times in (self.deleted_at, self.changed_at)
        )
        return Timeline(np.searchsorted(t, self.inserted_at), until, changed)


def _refuse(is_bad_N: NDArray[np.bool_], why: str, *values: NDArray[np.float64]) -> None:
    """why: of the first one, whose values fill it in."""
    if is_bad_N.any():
        row, rows = int(np.argmax(is_bad_N)), int(is_bad_N.sum())
        many = f" ({rows:,} such rows)" if rows > 1 else ""
        reason = why.format(*(f"{times[row]:g}" for times in values))
        raise InputError(
            f"gallery row {row}: {reason}{many}; times are progress of the backfill (dates: from changes.start to "
            "changes.end), and 0 where nothing happens during it"
        )


def read_changes(gallery: EmbeddingTable, period: Period | None = None) -> Changes:
    """Read the columns inserted_at, changed_at and deleted_at, of which one is enough.

    period: of columns of dates, in which a missing date is none. Without it they are progress, as numbers.

    Raises:
        InputError: There is none of these columns, one holds other values or misses some, or a time is impossible.
    """
    names = [column.name for column in fields(Changes)]
    there = [name for name in names if gallery.has_column(name)]
    if not there:
        raise InputError(f"{called(gallery.path)} has none of the columns {', '.join(names)}; leave changes out")
    times: dict[str, NDArray[np.float64]] = {name: np.zeros(len(gallery)) for name in names}
    for name in there:
        if period is None and (numbers := gallery.find_numbers(name)) is not None:
            times[name] = numbers
        if period is None:
            continue
        column = gallery.column(name)
        if not pa.types.is_date(column.type) and getattr(column.type, "tz", "") is not None:
            raise InputError(
                f"{called(gallery.path, name)} must hold dates or times without a zone, not {in_words(column.type)}; "
                "or give changes: true for numbers"
            )
        start, end = np.datetime64(period.start), np.datetime64(period.end)
        share = (column.cast(pa.timestamp("us")).to_numpy() - start) / (end - start)
        if name == "deleted_at":
            _refuse(share <= 0, "deleted_at is not after the beginning of the backfill")
        times[name] = np.maximum(np.where(np.isnan(share), 0, share), 0)
    return Changes(**times)


def with_changes(pair: Served, timeline: Timeline, points: int) -> Served:
    """The pair with orders in which items that are inserted enter the new partition then, whatever the order says.

    The others are backfilled evenly in the order, or as ``Served.backfilled`` says of them. Deleted items keep their
    place in it.
    """
    orders, backfilled = dict[str, IntArray](), dict[str, IntArray]()
    for name, order in pair.orders.items():
        queue, segments = order[timeline.since[order] == 0], timeline.since - 1
        counts = pair.backfilled.get(name, backfilled_at(len(queue), points))
        segments[queue] = np.searchsorted(counts, np.arange(len(queue)), side="right")
        orders[name] = np.argsort(segments, kind="stable")
        backfilled[name] = np.searchsorted(segments[orders[name]], np.arange(1, points))
    return replace(pair, orders=orders, backfilled=backfilled)


def always_answered(truth: GroundTruth, changes: Changes, points: int) -> GroundTruth:
    """The ground truth without right answers of the queries that have none at some of T points.

    Memory: 12 bytes a query and point.

    Raises:
        InputError: No query has one at all points.
    """
    timeline = changes.at(points).of(truth.positives)
    query = np.repeat(np.arange(truth.n_queries), np.diff(truth.positive_starts))
    answers = np.zeros((truth.n_queries, points + 1), np.int32)
    np.add.at(answers, (query, timeline.since), 1)
    np.add.at(answers, (query, timeline.until), -1)
    is_answered = np.cumsum(answers, axis=1)[:, :points].min(axis=1) > 0
    stays: NDArray[np.bool_] = is_answered[query]
    if not stays.any():
        raise InputError("no query has a right answer that is there at every moment, by inserted_at and deleted_at")
    return replace(
        truth,
        positives=truth.positives[stays],
        positive_starts=np.concatenate([[0], np.cumsum(stays)])[truth.positive_starts],
        grades=None if truth.grades is None else truth.grades[stays],
    )


def measure_changing(
    item: IntArray, at: IntArray, truth: GroundTruth, queries: IntArray, metrics: Sequence[str], timeline: Timeline
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """``measure_lists`` where the right answers of a moment are those that are there.

    item: (b, t, k) at the points ``at``, ascending. timeline: of the gallery. Cost: that, and O(P + b) for each point
    at which right answers of these queries come or go.
    """
    positives, starts = rows_of(truth.positives, truth.positive_starts, queries)
    ignored = rows_of(truth.ignored, truth.ignored_starts, queries)
    grades = None if truth.grades is None else rows_of(truth.grades, truth.positive_starts, queries)[0]
    of_positives, measured = timeline.of(positives), []
    edges = np.searchsorted(at, np.unique(np.concatenate(of_positives[:2])))
    for places in np.split(np.arange(len(at)), edges):
        if len(places):
            point = at[places[0]]
            stays = (of_positives.since <= point) & (point < of_positives.until)
            of_point = GroundTruth(
                truth.n_gallery, positives[stays], np.concatenate([[0], np.cumsum(stays)])[starts], *ignored,
                None if grades is None else grades[stays],
            )  # fmt: skip
            measured.append(measure_lists(item[:, places], of_point, np.arange(len(queries)), metrics))
    values, top1 = (np.concatenate(parts, axis=1) for parts in zip(*measured, strict=True))
    return values, top1
