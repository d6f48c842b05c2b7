"""Validated inputs of a replay as plain data. Shapes: Q queries, N items, T points, S = T - 1 segments, O orders.

A replay serves several pairs of systems at once. Pairs share systems: most upgrade methods serve {new, new} to
backfilled items. Each distinct system is searched once, for all pairs, merges and orders that it takes part in.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import RAW, Merge, all_merges, check_merge, fit_merge
from ray_backfill.engine.merges.csls import References
from ray_backfill.engine.metrics import Metric, parse_metric
from ray_backfill.engine.orders import GalleryColumns, check_order, find_order, make_order
from ray_backfill.engine.replay.block import first_item
from ray_backfill.engine.replay.nearest import room
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem, Switch, UpgradePair, as_array

# Queries per pass over the gallery: enough that reading a tile costs little compared with its products, and few enough
# that their counts and products stay in a core's cache.
_BLOCK_QUERIES = 384
# Candidates have no counts, and the gallery is read from memory once for each block.
_BLOCK_QUERIES_OF_CANDIDATES = 1024
# Blocks are not made smaller than this to occupy more threads; the gallery is split instead, into parts of this size.
_LEAST_QUERIES = 192
# With candidates, a block's own work (ranking them) is what many threads wait for: they need more blocks.
_LEAST_QUERIES_OF_CANDIDATES = 64
_LEAST_ITEMS = 16_384
# Memory for the counts or candidates of a block.
_BLOCK_BYTES = 128 << 20
# With fewer items per possible candidate (k per segment), counting is cheaper than candidates.
_ITEMS_PER_CANDIDATE = 2


@dataclass(frozen=True)
class Served:
    """A pair of systems to replay, by their indices in a list of systems.

    orders: name -> (N,) permutation. recalls: number of candidates of a cascade, whose switch is "at_end"; 0: none.
    backfilled: name of the order -> (T - 1,) number of items that are backfilled at each point but the first; if it is
    not given, equally many from point to point.
    """

    backward: int
    forward: int
    orders: Mapping[str, IntArray]
    switch: Switch = "progressively"
    merge: Merge = RAW
    recalls: int = 0
    backfilled: Mapping[str, IntArray] = field(default_factory=dict)


@dataclass(frozen=True)
class Searched:
    """A system as it is searched. references: given if CSLS transforms its vectors."""

    system: int
    references: References | None = None


@dataclass(frozen=True)
class Scan:
    """A search for the nearest items of one system in one of its two roles.

    rows: of ``Prepared.segments_ON``. pairs: that use it in this role. limited_by: aligned with ``pairs``, the scans of
    their forward systems; empty for a forward scan, and where both sides are searched apart.
    """

    searched: int
    is_forward: bool
    rows: tuple[int, ...]
    pairs: tuple[int, ...]
    limited_by: tuple[int, ...] = ()


@dataclass(frozen=True)
class ReplayedPair:
    """A pair of systems, by their indices in ``Prepared.searched`` and in ``Prepared.scans``.

    orders: names. rows: of ``Prepared.segments_ON``, one for each order. merge: makes the distances comparable.
    backward_scan: -1 if nothing serves items that are not backfilled.
    """

    backward: int
    forward: int
    backward_scan: int
    forward_scan: int
    orders: tuple[str, ...]
    rows: tuple[int, ...]
    switch: Switch
    merge: Merge

    @property
    def hides_backward(self) -> bool:
        """Whether items that are not backfilled cannot be found."""
        return self.switch == "only_backfilled"


@dataclass(frozen=True)
class ReplayedCascade:
    """What a cascade does beside its pair of systems.

    recalls: number K of candidates. points: T, while its pair is replayed at two. segments: name of each order -> (N,)
    uint16, the item is backfilled from the point behind its segment on.
    """

    recalls: int
    points: int
    segments: Mapping[str, NDArray[np.uint16]]


@dataclass(frozen=True)
class Prepared:
    """Validated inputs of a replay.

    segments_ON: (O, N) uint16 for all pairs, the forward system serves items of segment s at the points i > s. scored:
    queries with a positive. nearest: depth of the rankings that are needed; None for whole rankings. rows_of: for each
    searched system, the rows of ``segments_ON`` that any of its pairs needs. cascades: of each pair; () of others.
    """

    pairs: tuple[ReplayedPair, ...]
    searched: tuple[Searched, ...]
    scans: tuple[Scan, ...]
    rows_of: tuple[tuple[int, ...], ...]
    metrics: tuple[Metric, ...]
    points: int
    segments_ON: NDArray[np.uint16]
    scored: IntArray
    n_skipped: int
    nearest: int | None
    cascades: tuple[ReplayedCascade, ...] = ()

    @cached_property
    def segments_of(self) -> dict[tuple[int, ...], NDArray[np.uint16]]:
        """Rows of ``segments_ON`` -> a contiguous array, once for all pairs, systems and scans that use them."""
        wanted = {*self.rows_of, *(scan.rows for scan in self.scans), *(pair.rows for pair in self.pairs)}
        every = tuple(range(len(self.segments_ON)))
        return {rows: self.segments_ON if rows == every else self.segments_ON[list(rows)] for rows in wanted}

    @property
    def passes(self) -> int:
        """How many times the products of all queries and items are computed."""
        ranked = len(self.searched) if self.nearest is None else len(self.scans)
        return ranked + (len(self.scans) if self.cascades else 0)


def prepare_replay(truth: GroundTruth, served: Sequence[Served], points: int, metrics: str | Sequence[str]) -> Prepared:
    """Validate the inputs of a replay. Raise InputError for unknown metrics, bad orders or points, or no positives."""
    parsed = tuple(parse_metric(name) for name in ([metrics] if isinstance(metrics, str) else metrics))
    if not 2 <= points <= 1 << 16:
        raise InputError(f"points must be at least 2 and at most {1 << 16}, got {points}")
    if len({bool(pair.recalls) for pair in served}) > 1:
        raise InputError("cascades are replayed in a pass of their own; do not mix them with other pairs")
    if not all(pair.orders for pair in served):
        raise InputError("no order was given; give at least one, such as random")
    if not parsed:
        raise InputError("no metric was given; give at least one, such as mAP")
    if truth.n_gallery >= 1 << 32:
        raise InputError(f"a gallery may have fewer than {1 << 32:,} items, got {truth.n_gallery:,}")
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    if not len(scored):
        raise InputError("no query has a positive in the gallery, so there is nothing to measure; check the labels")
    for pair in served:
        for permutation in pair.orders.values():
            check_order(permutation, truth.n_gallery)
    cascades = tuple(
        ReplayedCascade(
            min(pair.recalls, truth.n_gallery), points,
            {name: _segments(pair, name, points, "progressively") for name in pair.orders},
        )
        for pair in served
        if pair.recalls
    )  # fmt: skip
    if cascades:  # until the last point their rankings stay the same, in all orders
        served, points = [replace(pair, orders={"": next(iter(pair.orders.values()))}) for pair in served], 2
    pairs, searched, scans, segments_ON = _share(served, points)
    rows_of = [_union(p.rows for p in pairs if index in (p.backward, p.forward)) for index in range(len(searched))]
    cuts = [metric.k for metric in parsed]
    # With fusion by rank, a merged rank depends on the number of items before it in the other list: rank all items.
    by_rank = any(pair.merge.by_rank for pair in pairs)
    nearest = None if None in cuts or by_rank else max((k for k in cuts if k), default=1)
    if nearest is not None:
        deepest = nearest + int(np.diff(truth.ignored_starts).max())
        if _ITEMS_PER_CANDIDATE * deepest * (points - 1) > truth.n_gallery:
            nearest = None
    return Prepared(
        pairs, searched, scans, tuple(rows_of), parsed, points, segments_ON, scored, len(truth.skipped), nearest,
        cascades,
    )  # fmt: skip


def _share(
    served: Sequence[Served], points: int
) -> tuple[tuple[ReplayedPair, ...], tuple[Searched, ...], tuple[Scan, ...], NDArray[np.uint16]]:
    """Find what the pairs share: systems, scans of these, and (O, N) segments."""
    # Each distinct value -> its place.
    searched, scans, segments = dict[Searched, int](), dict[tuple[int, bool], int](), dict[bytes, int]()
    pairs: list[ReplayedPair] = []
    for pair in served:
        of_backward, of_forward = pair.merge.references or (None, None)
        if pair.backward == pair.forward:
            of_forward = of_backward
        backward = searched.setdefault(Searched(pair.backward, of_backward), len(searched))
        forward = searched.setdefault(Searched(pair.forward, of_forward), len(searched))
        backward_scan = -1 if pair.switch == "only_backfilled" else scans.setdefault((backward, False), len(scans))
        forward_scan = scans.setdefault((forward, True), len(scans))
        of_orders = (_segments(pair, name, points, pair.switch).tobytes() for name in pair.orders)
        rows = tuple(segments.setdefault(of_order, len(segments)) for of_order in of_orders)
        pairs.append(
            ReplayedPair(
                backward, forward, backward_scan, forward_scan, tuple(pair.orders), rows, pair.switch, pair.merge
            )
        )
    segments_ON = np.stack([np.frombuffer(of_order, np.uint16) for of_order in segments])
    return tuple(pairs), tuple(searched), tuple(_scan(pairs, index) for index in scans.values()), segments_ON


def _scan(pairs: Sequence[ReplayedPair], index: int) -> Scan:
    """The scan of this index, with all pairs that use it."""
    forward = tuple(i for i, pair in enumerate(pairs) if pair.forward_scan == index)
    if forward:
        return Scan(pairs[forward[0]].forward, True, _union(pairs[i].rows for i in forward), forward)
    users = tuple(i for i, pair in enumerate(pairs) if pair.backward_scan == index)
    limits = tuple(pairs[i].forward_scan for i in users)
    return Scan(pairs[users[0]].backward, False, _union(pairs[i].rows for i in users), users, limits)


def _union(rows: Iterable[Sequence[int]]) -> tuple[int, ...]:
    return tuple(sorted({row for some in rows for row in some}))


def as_served(
    pair: UpgradePair, orders: Mapping[str, IntArray], merge: Merge = RAW
) -> tuple[list[RetrievalSystem], Served]:
    """The distinct systems of a pair, and what they serve."""
    systems = [pair.backward] if pair.backward is pair.forward else [pair.backward, pair.forward]
    return systems, Served(0, len(systems) - 1, orders, pair.switch, merge)


def as_permutation(order: Any, pair: UpgradePair) -> IntArray:
    """An order as an array. The name of one is enough if it needs nothing but the number of items.

    Raises:
        InputError: The order of this name has to be made from columns of the gallery.
    """
    if not isinstance(order, str):
        return as_array(order, "an order")
    if find_order(order).needs:
        raise InputError(
            f"order {order!r} needs columns of the gallery; "
            f"pass rb.make_order({order!r}, rb.GalleryColumns(old, columns))"
        )
    return make_order(order, GalleryColumns(pair.backward.gallery))


def as_merge(merge: Merge | str, distance: str) -> Merge:
    """A merge. The name of one is enough if it needs no fit.

    Raises:
        InputError: The merge of this name has to be fitted on train items.
    """
    if isinstance(merge, Merge):
        return merge
    if not isinstance(merge, str):
        raise InputError(f"merge must be a Merge or a name, not {type(merge).__name__}; pass rb.fit_merge(...)")
    check_merge(merge, distance)
    if all_merges()[merge].needs_train:
        raise InputError(
            f"merge {merge!r} is fitted on train items; pass rb.fit_merge({merge!r}, train_pair, labels, {distance!r})"
        )
    return fit_merge(merge, None, None, distance)


def count_parts(prepared: Prepared, n_blocks: int, threads: int) -> int:
    """Return into how many parts to split the gallery, so that all threads have work although there are few blocks."""
    n_gallery = prepared.segments_ON.shape[1]
    return max(1, min(threads // n_blocks, n_gallery // _LEAST_ITEMS))


def _count_blocks(prepared: Prepared, least: int, threads: int) -> int:
    """Return how many blocks of queries occupy the threads best, together with the parts of the gallery."""
    if least >= threads:
        return threads * -(-least // threads)
    smallest = _LEAST_QUERIES if prepared.nearest is None else _LEAST_QUERIES_OF_CANDIDATES
    most = max(least, min(threads, len(prepared.scored) // smallest))
    return max(
        range(least, most + 1), key=lambda n_blocks: (n_blocks * count_parts(prepared, n_blocks, threads), n_blocks)
    )


def split_queries(prepared: Prepared, truth: GroundTruth, threads: int) -> list[IntArray]:
    """Split the scored queries into blocks of bounded memory, enough for all threads if there are enough queries.

    Queries that share positives are put into the same block. Returns: arrays of indices into ``prepared.scored``.
    """
    n_segments = prepared.points - 1
    by_positives = np.argsort(first_item(truth, prepared.scored), kind="stable")
    scored = prepared.scored[by_positives]
    if prepared.nearest is None:
        n_positives = np.diff(truth.positive_starts)[scored]
        bytes_Q = 80 * len(prepared.pairs) * n_positives
        for index, rows in enumerate(prepared.rows_of):
            users = sum((pair.backward == index) + (pair.forward == index) for pair in prepared.pairs)
            # The positives' own distances are thresholds of every pair; the others differ from pair to pair.
            n_thresholds = (users + 1) * n_positives
            bytes_Q += 4 * len(rows) * n_segments * (n_thresholds + 1) + 8 * n_thresholds
        bytes_Q += sum(8 * len(pair.rows) * prepared.points * n_positives for pair in prepared.pairs)
    else:
        deepest = prepared.nearest + int(np.diff(truth.ignored_starts).max())
        bytes_Q = np.zeros(len(scored), np.int64)
        for scan in prepared.scans:
            bytes_Q += 8 * room(deepest, n_segments, len(scan.rows)) + 4 * len(scan.rows) * n_segments
    if prepared.cascades:
        deepest = max(cascade.recalls for cascade in prepared.cascades) + int(np.diff(truth.ignored_starts).max())
        bytes_Q += 8 * sum(room(deepest, n_segments, len(scan.rows)) for scan in prepared.scans) + 128 * deepest
    # What each query takes of the largest block, by memory or by number, whichever is more.
    most = _BLOCK_QUERIES if prepared.nearest is None else _BLOCK_QUERIES_OF_CANDIDATES
    taken = np.cumsum(np.maximum(bytes_Q / _BLOCK_BYTES, 1 / most))
    n_blocks = min(len(scored), _count_blocks(prepared, int(np.ceil(taken[-1] * (1 - 1e-9))), threads))
    block_of_query = (taken / taken[-1] * n_blocks * (1 - 1e-9)).astype(np.int64)
    return np.split(by_positives, np.flatnonzero(np.diff(block_of_query)) + 1)


def backfilled_at(n_gallery: int, points: int) -> IntArray:
    """(T - 1,) number of items that are backfilled at each point but the first, exactly."""
    backfilled: IntArray = np.arange(1, points) * n_gallery // (points - 1)
    return backfilled


def segment_of_item(
    order: IntArray, points: int, switch: Switch, backfilled: IntArray | None = None
) -> NDArray[np.uint16]:
    """Return the (N,) segment of each item: the forward system serves items of segment s at the points i > s.

    backfilled: (T - 1,) see ``Served``.
    """
    n_gallery = len(order)
    if switch == "at_end":
        return np.full(n_gallery, points - 2, np.uint16)
    segments = np.empty(n_gallery, np.uint16)
    counts = backfilled_at(n_gallery, points) if backfilled is None else backfilled
    segments[order] = np.searchsorted(counts, np.arange(n_gallery), side="right")
    return segments


def _segments(served: Served, name: str, points: int, switch: Switch) -> NDArray[np.uint16]:
    return segment_of_item(served.orders[name], points, switch, served.backfilled.get(name))
