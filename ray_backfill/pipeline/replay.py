"""Exact curves of a service with stages around its partitions: what ``engine.replay`` is for its vectors alone.

At every moment each partition returns its first K items by its own distances, also when it has nearly none left. Then
come the merge, the cut, a fusion with a text list and a re-ranker. Variations leave stages out, on the same lists.

Shapes: Q scored queries, N gallery items, T points, K results of a partition.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.lists import RankedLists, measure_lists
from ray_backfill.engine.metrics import parse_metric
from ray_backfill.engine.replay import Curve, Served
from ray_backfill.engine.replay.block import Block
from ray_backfill.engine.replay.filtered import GalleryPart, parts_of
from ray_backfill.engine.replay.partitions import Partition, Visit, search_partitions
from ray_backfill.engine.replay.prepare import Prepared
from ray_backfill.engine.systems import GroundTruth, IntArray, RetrievalSystem
from ray_backfill.pipeline.changes import (
    STALE_RESULTS,
    Timeline,
    always_answered,
    measure_changing,
    with_changes,
)
from ray_backfill.pipeline.lists import (
    Entries,
    Places,
    Scores,
    Stages,
    TextPart,
    fuse_places,
    merge_places,
    ranked_lists,
    rerank_places,
)
from ray_backfill.pipeline.service import Service

# Memory for the lists of a block; they are made for some of its queries at a time.
_LIST_BYTES = 64 << 20


class Listed(NamedTuple):
    """Lists of a pair, for some queries in one order.

    queries: (b,) rows. places: (b, T, n) of ``entries``; T is 2 for pairs that change at the end only, unless the
    gallery changes.
    """

    queries: IntArray
    places: Places
    entries: Entries


# (pair, order, variation, lists): called in several threads, each time for other queries.
Take = Callable[[int, str, int, Listed], None]


def check_metrics(stages: Stages, metrics: Sequence[str]) -> None:
    """Raise InputError for metrics that lists of this length cannot have."""
    shown = stages.shown
    for name in metrics:
        k = parse_metric(name).k
        if k is None:
            raise InputError(
                f"{name} needs the whole ranking, but the service returns {shown:,} results; give a metric with a "
                f"cut-off, such as {name}@{min(shown, 100)}"
            )
        if k > shown:
            raise InputError(
                f"{name} needs {k:,} results, but the service returns {shown:,}; increase retrieve and cut"
            )


def replay_service(
    systems: Sequence[RetrievalSystem],
    served: Sequence[Served],
    truth: GroundTruth,
    points: int,
    metrics: Sequence[str],
    distance: str,
    service: Service,
    variations: Sequence[Stages] = (),
    step: int = 1,
    progress: bool = False,
    device: str = "cpu",
) -> list[list[dict[str, Curve]]]:
    """Compute the curves of pairs of systems behind the stages of a service, and of variations of these.

    Right answers that the service does not return count as not found. With ``retrieve`` and ``cut`` at the size of the
    gallery and no further stage, curves are those of ``replay_pairs`` to the last bit.

    If the gallery changes, only queries count that have a right answer at every point (``always_answered``), and
    ``Curve.stale`` is told of pairs of two systems.

    Cost: the search of ``replay_pairs`` without its short cuts, and for each pair, order and variation microseconds a
    query and point (docs/results/pipeline.md). Memory: about 200 MB a thread; for the result, 8 bytes a query, point,
    order, metric and variation.

    Args:
        systems, served, truth, points, metrics, distance, progress, device: See ``replay_pairs``. Cascades are refused.
        service: The stages, the text lists and the re-ranker's scores.
        variations: Other stages, of which ``retrieve`` is the same.
        step: Of variations, only every so many points are kept.

    Returns:
        For the service's stages and for each variation: for each pair the curve of each order.

    Raises:
        InputError: A metric needs more results than there are, a pair is a cascade, or scores of ranks are to be fused.
    """
    every = (service.stages, *variations)
    for stages in every:
        check_metrics(stages, metrics)
    changes, timeline = service.changes, None
    if changes is not None:
        truth, timeline = always_answered(truth, changes, points), changes.at(points)
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    if not len(scored):
        raise InputError("no query has a positive in the gallery, so there is nothing to measure; check the labels")
    place_Q = np.zeros(truth.n_queries, np.int64)
    place_Q[scored] = np.arange(len(scored))
    kept = [np.arange(0, points, step if variation else 1) for variation in range(len(every))]
    measured = [
        [
            {
                order: (np.zeros((len(scored), len(at), len(metrics))), np.zeros((len(scored), len(at)), np.bool_))
                for order in pair.orders
            }
            for pair in served
        ]
        for at in kept
    ]
    stale = [
        {order: np.zeros((len(scored), points)) for order in pair.orders}
        if timeline is not None and pair.backward != pair.forward
        else {}
        for pair in served
    ]
    deepest = max(*(parse_metric(name).k or 1 for name in metrics), STALE_RESULTS if changes else 1)

    def measure(pair: int, order: str, variation: int, listed: Listed) -> None:
        places, at = listed.places[:, :, :deepest], kept[variation]
        at_end = places.shape[1] == 2 < points
        if not at_end:
            places = places[:, at]
        item = np.where(places >= 0, listed.entries.item[places], -1)
        rows = place_Q[listed.queries]
        if timeline is None:
            parts = measure_lists(item, truth, listed.queries, metrics)
        else:
            parts = measure_changing(item, at, truth, listed.queries, metrics, timeline)
            if variation == 0 and stale[pair]:
                stale[pair][order][rows] = _stale_share(listed, timeline)
        for whole, part in zip(measured[variation][pair][order], parts, strict=True):
            whole[rows] = part[:, (at == points - 1).astype(np.int64)] if at_end else part

    _serve(systems, served, truth, points, distance, service, every, deepest, measure, progress, device)
    weights, t = None if truth.weights is None else truth.weights[scored], np.linspace(0.0, 1.0, points)
    return [
        [
            {
                order: Curve(
                    t[at], {name: values[:, :, m] for m, name in enumerate(metrics)}, top1, scored,
                    len(truth.skipped), pair.switch == "at_end", weights,
                    stale=of_stale[order][:, at] if of_stale else None,
                )
                for order, (values, top1) in of_orders.items()
            }
            for pair, of_orders, of_stale in zip(served, of_pairs, stale, strict=True)
        ]
        for at, of_pairs in zip(kept, measured, strict=True)
    ]  # fmt: skip


def _stale_share(listed: Listed, timeline: Timeline) -> NDArray[np.float64]:
    """(b, T) share of the first results that the old partition serves although their content has changed."""
    places, entries = listed.places[:, :, :STALE_RESULTS], listed.entries
    is_old = (places >= 0) & ~entries.is_forward[places] & np.isfinite(entries.distance[places])
    has_changed = timeline.changed[entries.item[places]] <= np.arange(places.shape[1])[:, None]
    share: NDArray[np.float64] = (is_old & has_changed).sum(axis=2) / np.maximum(1, (places >= 0).sum(axis=2))
    return share


def first_results(
    systems: Sequence[RetrievalSystem], pair: Served, truth: GroundTruth, queries: IntArray, points: int, distance: str,
    service: Service, k: int = 1, device: str = "cpu",
) -> dict[str, RankedLists]:  # fmt: skip
    """Order -> (queries, T, k) first results of the service; of those of the text list alone, is_forward is False.

    The arguments: see ``replay_service``.
    """
    place_Q = np.zeros(truth.n_queries, np.int64)
    place_Q[queries] = np.arange(len(queries))
    lists = {order: RankedLists.nothing(len(queries), points, k) for order in pair.orders}

    def take(_: int, order: str, variation: int, listed: Listed) -> None:
        places = listed.places[:, :, :k]
        if places.shape[1] == 2 < points:
            places = places[:, (np.arange(points) == points - 1).astype(np.int64)]
        at = np.s_[place_Q[listed.queries], :, : places.shape[2]]
        lists[order].put(at, ranked_lists(places, listed.entries))

    _serve(systems, [pair], truth, points, distance, service, (service.stages,), k, take, False, device, queries)
    return lists


def pairs_to_rank(
    systems: Sequence[RetrievalSystem], served: Sequence[Served], truth: GroundTruth, points: int, distance: str,
    service: Service, variations: Sequence[Stages] = (), progress: bool = False, device: str = "cpu",
) -> tuple[IntArray, IntArray]:  # fmt: skip
    """(P,) query and (P,) item of all pairs that the re-ranker is shown at any point, by any of the stages.

    The arguments: see ``replay_service``. Cost: as of it, without the metrics.
    """
    shown = [stages for stages in (service.stages, *variations) if stages.top]
    before, lock = tuple(replace(stages, top=0) for stages in shown), Lock()
    pairs = [np.empty(0, np.int64)]

    def take(_: int, order: str, variation: int, listed: Listed) -> None:
        places = listed.places[:, :, : shown[variation].top]
        query = np.broadcast_to(listed.queries[:, None, None], places.shape)[places >= 0]
        key = np.unique(query * truth.n_gallery + listed.entries.item[places[places >= 0]])
        with lock:
            pairs.append(key)
            if len(pairs) > 100:
                pairs[:] = [np.unique(np.concatenate(pairs))]

    depth = max((stages.top for stages in shown), default=0)
    if shown:
        _serve(systems, served, truth, points, distance, service, before, depth, take, progress, device)
    key = np.unique(np.concatenate(pairs))
    return key // truth.n_gallery, key % truth.n_gallery


def _serve(
    systems: Sequence[RetrievalSystem], served: Sequence[Served], truth: GroundTruth, points: int, distance: str,
    service: Service, variations: Sequence[Stages], depth: int, take: Take, progress: bool, device: str,
    queries: IntArray | None = None,
) -> None:  # fmt: skip
    """Make the lists of every pair, order and variation. depth: results that are needed at the end."""
    if any(pair.recalls for pair in served):
        raise InputError("a cascade embeds items for each query and is no partition of a service; leave it out")
    for stages in variations:
        if stages.fuses_scores and any(pair.merge.by_rank for pair in served):
            raise InputError("the merge rrf has ranks and no scores; fuse by rrf, too, or take another merge")
    timeline = None if service.changes is None else service.changes.at(points)
    if timeline is not None:
        served = [with_changes(pair, timeline, points) for pair in served]
    whole = GalleryPart(np.arange(truth.n_queries), np.arange(truth.n_gallery), [*systems], [*served], truth)
    parts = parts_of(truth, systems, served, points) if truth.filter else [whole]
    for of_query, of_item, of_systems, of_pairs, of_truth in parts:
        asked = None
        if queries is not None:
            asked = np.flatnonzero(np.isin(of_query, queries))
            if not len(asked):
                continue
        of_part = None if timeline is None else timeline.of(of_item)
        # What changes at the end only, or never, has two lists, whatever the order.
        at_end = [
            pair.switch == "at_end" or (pair.switch == "progressively" and pair.backward == pair.forward)
            for pair in of_pairs
        ]
        for is_at_end, moments in ((False, points), (True, 2 if of_part is None else points)):
            chosen = [index for index, ends in enumerate(at_end) if ends == is_at_end]
            some = [of_pairs[index] for index in chosen]
            if is_at_end:
                some = [
                    replace(pair, orders={"": next(iter(pair.orders.values()))}, backfilled={}, switch="at_end")
                    for pair in some
                ]
            if some:
                names = [tuple(served[index].orders) if is_at_end else () for index in chosen]
                k, rows = variations[0].retrieve, asked
                if of_part is not None:
                    k = of_part.likely_depth(k, points)
                while rows is None or len(rows):
                    block = _Blocks(service, variations, depth, take, of_query, of_item, chosen, names, of_part)
                    search_partitions(
                        of_systems, some, of_truth, moments, distance, k, block.visit, progress, device, rows
                    )
                    k, rows = 2 * k, np.concatenate([*block.again, np.empty(0, np.int64)])


@dataclass(frozen=True)
class _Blocks:
    """Turns the partitions of a block into lists.

    of_query, of_item: rows of the part in the whole. pairs: index of each pair in the whole. names: of each pair, the
    orders that share its lists; () where each order has its own. timeline: of the part's items. again: queries of the
    part that were left out, because items that are not there took too many places.
    """

    service: Service
    variations: Sequence[Stages]
    depth: int
    take: Take
    of_query: IntArray
    of_item: IntArray
    pairs: Sequence[int]
    names: Sequence[tuple[str, ...]]
    timeline: Timeline | None = None
    again: list[IntArray] = field(default_factory=list)

    def visit(self, prepared: Prepared) -> Visit:
        points, k = prepared.points, min(self.variations[0].retrieve, prepared.nearest or 1)
        # Of one system alone, items that are inserted are in the old partition, too.
        users = {
            (scan, row, pair.backward == pair.forward and not pair.hides_backward)
            for pair in prepared.pairs
            for scan in (pair.backward_scan, pair.forward_scan)
            if scan >= 0
            for row in pair.rows
        }
        size = max(1, _LIST_BYTES // (4 * points * k * (len(users) + 3)))

        def take_block(rows: IntArray, block: Block, partitions: Sequence[Partition]) -> None:
            queries = self.of_query[block.queries]
            table, query, firsts, text = self._entries(queries, partitions)
            scores = self.service.relevance
            relevance = np.empty(0) if scores is None else scores.of(queries[query], table.item)
            for begin in range(0, len(block), size):
                end = min(begin + size, len(block))
                lists, is_exact = {}, np.ones(end - begin, np.bool_)
                for user in users:
                    scan, row, is_alone = user
                    lifetimes = self.timeline and self.timeline.lifetimes(partitions[scan].is_forward or is_alone)
                    lists[user], lacks = partitions[scan].lists(
                        prepared.segments_ON[row], begin, end, points, k, int(firsts[scan]), lifetimes
                    )
                    is_exact &= ~lacks
                exact: NDArray[np.bool_] | slice = np.s_[:]
                if not is_exact.all():
                    self.again.append(block.queries[begin:end][~is_exact])
                    exact = is_exact
                part = TextPart(text.starts[begin : end + 1], text.score[begin:end])
                nothing = np.empty((end - begin, points, 0), np.int32)
                for pair, whole, names in zip(prepared.pairs, self.pairs, self.names, strict=True):
                    score = np.full(len(table.item), np.inf)
                    for scan in {pair.backward_scan, pair.forward_scan} - {-1}:
                        here, side = slice(firsts[scan], firsts[scan + 1]), partitions[scan]
                        score[here] = pair.merge.scores(side.distance, np.full(len(side.item), side.is_forward))
                    entries = table._replace(score=score)
                    for order, row in zip(pair.orders, pair.rows, strict=True):
                        is_alone = pair.backward == pair.forward and not pair.hides_backward
                        old = lists.get((pair.backward_scan, row, is_alone), nothing)
                        new = lists[pair.forward_scan, row, is_alone]
                        for variation, stages in enumerate(self.variations):
                            places = self._places(stages, old, new, entries, part, pair.merge.by_rank, relevance)
                            listed = Listed(queries[begin:end][exact], places[exact], entries)
                            for name in names or (order,):
                                self.take(whole, name, variation, listed)

        return take_block

    def _entries(
        self, queries: IntArray, partitions: Sequence[Partition]
    ) -> tuple[Entries, IntArray, IntArray, TextPart]:
        """All entries of a block, without scores; the index of their query; the first entry of each partition and of
        the text lists; and these.
        """
        lists = self.service.text
        text_item = np.empty((len(queries), 0), np.int64) if lists is None else lists.item[queries]
        text_score = np.empty(text_item.shape) if lists is None else lists.score[queries]
        item = [self.of_item[partition.item] for partition in partitions]
        firsts = np.concatenate([[0], np.cumsum([len(positions) for positions in item])])
        there = text_item >= 0
        starts = firsts[-1] + np.concatenate([[0], np.cumsum(there.sum(axis=1))])
        text_query, text_place = np.nonzero(there)
        query = [np.repeat(0, len(positions)) for positions in item]
        place = [np.full(len(positions), -1, np.int32) for positions in item]
        place_N = np.full(int(self.of_item[-1]) + 1, -1, np.int32)
        for partition, positions, of_query, of_text in zip(partitions, item, query, place, strict=True):
            _join(partition.ranked, partition.starts, positions, text_item, place_N, of_query, of_text)
        table = Entries(
            item=np.concatenate([*item, text_item[there]]),
            score=np.empty(0),
            distance=np.concatenate(
                [*(partition.distance for partition in partitions), np.full(len(text_query), np.inf, np.float32)]
            ),
            text_place=np.concatenate([*place, text_place.astype(np.int32)]),
            is_forward=np.concatenate(
                [*(np.full(len(p.item), p.is_forward) for p in partitions), np.zeros(len(text_query), np.bool_)]
            ),
        )
        return table, np.concatenate([*query, text_query]), firsts, TextPart(starts, text_score)

    def _places(
        self, stages: Stages, old: Places, new: Places, entries: Entries, text: TextPart, by_rank: bool,
        relevance: Scores,
    ) -> Places:  # fmt: skip
        """The lists of some queries behind all stages."""
        shape, fusion = old.shape[:2], stages.fusion
        needed = max(self.depth, stages.top)

        def empty(n: int) -> Places:
            return np.full((*shape, n), -1, np.int32)

        if fusion is None:
            places = empty(min(stages.cut, needed))
            merge_places(old, new, entries, by_rank, places)
        else:
            one, two, similarity = old, new, -entries.distance.astype(np.float64)
            if not fusion.separate:
                one, two, similarity = empty(min(stages.cut, old.shape[2] + new.shape[2])), empty(0), -entries.score
                merge_places(old, new, entries, by_rank, one)
            places = empty(min(fusion.cut, needed))
            k, (of_vectors, of_text) = float(fusion.k), map(float, fusion.weights)
            fuse_places(one, two, similarity, entries, text, fusion.kind, k, of_vectors, of_text, places)
        if not stages.top:
            return places
        ranked = np.empty_like(places)
        rerank_places(places, entries.item, relevance, stages.top, ranked)
        return ranked


@kernel
def _join(
    ranked: Array, starts: Array, item: Array, text_item: Array, place_N: Array, of_query: Array, of_text: Array
) -> None:
    """Find the query of each candidate, and its place in that query's text list. place_N: -1 everywhere."""
    for q in range(len(starts) - 1):
        for place in range(text_item.shape[1]):
            if 0 <= text_item[q, place] < len(place_N):
                place_N[text_item[q, place]] = place
        for c in ranked[starts[q] : starts[q + 1]]:
            of_query[c], of_text[c] = q, place_N[item[c]]
        for place in range(text_item.shape[1]):
            if 0 <= text_item[q, place] < len(place_N):
                place_N[text_item[q, place]] = -1
