"""Cost of two partitions: a half-backfilled shard against one partition of the same size, measured alternately."""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from benchmarks.galleries import Case, backfill, header, new_shard, random_plan, row, threads, waste
from ray_backfill.drill.plan import DrillPlan
from ray_backfill.drill.results import exact_answers
from ray_backfill.drill.shard import Shard, View
from ray_backfill.engine.index import IndexSettings, Partition, make_partition
from ray_backfill.engine.index.exact import ExactPartition
from ray_backfill.engine.lists import merge_sides
from ray_backfill.engine.systems import FloatArray, IntArray, UpgradePair
from ray_backfill.pipeline.live import Answering

LIMIT = 0.9
K, BATCHES = (100, 10), (1, 64)
# Factory string and search efforts; the second effort of a graph is more than twice any k.
KINDS = (("exact", (0,)), ("Flat", (0,)), ("IVF256,Flat", (16,)), ("IVF256,PQ16", (16,)), ("IVF256,PQ32", (16,)),
         ("HNSW32", (64, 256)))  # fmt: skip
# Number of operations of the backfill, as with 1000 items each in a gallery of 200,000.
_PARTS = 200
# Minimum share to be backfilled, so that both partitions are large enough.
_FROM = 0.25
# Seconds per turn, and number of turns.
_TURN_S, _TURNS = 0.1, 21

Search = Callable[[FloatArray, FloatArray, int], IntArray]


def _answered(shard: Shard, backward: FloatArray, forward: FloatArray, k: int) -> IntArray:
    found = shard.search(backward, forward, k)
    return merge_sides(found.old, found.new, shard.sides.merge, k).item


@dataclass(frozen=True)
class Served:
    """Three services of the same gallery. waste: (dead, fresh) rows of each partition just before a compaction."""

    label: str
    one: Partition
    half: Shard
    before: Shard
    waste: tuple[tuple[int, int], tuple[int, int]]

    @property
    def searches(self) -> tuple[Search, Search, Search]:
        return (
            lambda backward, forward, k: self.one.search(forward, k).item,
            lambda backward, forward, k: _answered(self.half, backward, forward, k),
            lambda backward, forward, k: _answered(self.before, backward, forward, k),
        )


@dataclass(frozen=True)
class Price:
    """Queries per second, and ratios to one partition: (lower quartile, median, upper quartile)."""

    label: str
    k: int
    batch: int
    threads: int
    one: float
    half: float
    ratio: tuple[float, float, float]
    before: tuple[float, float, float]

    @property
    def name(self) -> str:
        return f"{self.label}, k = {self.k}, batch {self.batch}, {_threads(self.threads)}"


def price(case: Case, n_threads: list[int], scale: float) -> tuple[list[Price], list[str]]:
    """Print three tables. Returns all prices, and those below the limit with an explanation."""
    plan = random_plan(case.truth.n_gallery, 3, _PARTS)
    prices: list[Price] = []
    served: list[Served] = []
    columns = ("one partition, q/s", "half backfilled, q/s", "ratio (quartiles)", "", "just before a compaction")
    header("index", "k", "batch", "threads", *columns)
    whys: list[tuple[str, ...]] = []
    failed = []
    for kind, efforts in KINDS:
        for of_kind in _services(case, plan, kind, efforts):
            served.append(of_kind)
            for number in n_threads:
                with threads(number):
                    for k in K:
                        for batch in BATCHES:
                            found = _price(case, of_kind, k, batch, number, scale)
                            prices.append(found)
                            _print(found)
                            why = _why(case, of_kind, k, batch)
                            whys.append((of_kind.label, str(k), str(batch), str(number), *why))
                            if found.ratio[1] < LIMIT:
                                failed.append(f"{found.name}: {found.ratio[1]:.2f} ({explained(why)})")
    print(
        "\nWhat explains it: distances that an index computes for a query (as faiss counts them for lists and graphs),"
    )
    print("the share of its time that goes into choosing lists, and microseconds a query, in all and in indexes alone.")
    header("index", "k", "batch", "threads", "distances: one", "half", "coarse: one", "half", "one, us", "in its index",
           "half, us", "in its indexes")  # fmt: skip
    for cells in whys:
        row(*cells)
    _quality(case, plan, served)
    return prices, failed


def explained(why: tuple[str, ...]) -> str:
    """A short explanation from the cells of ``_why``."""
    one, half, *_, of_one, in_one, of_half, in_half = why
    n = {
        name: float(cell.replace(",", ""))
        for name, cell in zip("dDoihH", (one, half, of_one, in_one, of_half, in_half), strict=True)
    }
    outside = (n["h"] - n["H"]) - (n["o"] - n["i"])
    alone = f"{n['D'] / n['d']:.2f}x the distances; the indexes alone {n['i'] / n['H']:.2f}"
    return f"{alone}; outside them {outside:+,.0f} us a query"


def _services(case: Case, plan: DrillPlan, kind: str, efforts: tuple[int, ...]) -> Iterator[Served]:
    """Build the services once and yield them with each search effort. Building uses all threads."""
    settings = IndexSettings(kind, efforts[0])
    forward = case.pair.forward.gallery
    one = make_partition(settings, case.distance, forward.shape[1], case.train_pair.forward.gallery)
    one = one.with_rows(forward, np.arange(plan.n_items)).compacted()
    shard = new_shard(case, plan, settings, settings)
    before, most = shard.view, -1
    until = plan.checkpoints[1].applied
    for view in backfill(case, shard, until):
        wasted = sum(waste(view.old) + waste(view.new))
        if wasted >= most and view.applied >= 2 * _FROM * until:
            before, most = view, wasted
    half = View(shard.view.old.compacted(), shard.view.new.compacted(), until)
    for effort in efforts:
        label = kind if not effort else f"{kind}, effort {effort}"
        at_half, at_before = (
            _at(shard, replace(view, old=_harder(view.old, effort), new=_harder(view.new, effort)))
            for view in (half, before)
        )
        yield Served(label, _harder(one, effort), at_half, at_before, (waste(before.old), waste(before.new)))


def _harder(partition: Partition, effort: int) -> Partition:
    if isinstance(partition, ExactPartition):
        return partition
    inside: Any = partition
    found: Partition = replace(inside, kind=replace(inside.kind, effort=effort))
    return found


def _at(shard: Shard, view: View) -> Shard:
    other = copy.copy(shard)
    other.view = view
    return other


def _price(case: Case, served: Served, k: int, batch: int, number: int, scale: float) -> Price:
    times = in_turn(case.pair, served.searches, k, batch, scale)
    one, half, before = times
    return Price(
        served.label, k, batch, number, 1 / float(np.median(one)), 1 / float(np.median(half)),
        quartiles(one / half), quartiles(one / before),
    )  # fmt: skip


def in_turn(
    pair: UpgradePair, searches: tuple[Search, ...], k: int, batch: int, scale: float
) -> list[NDArray[np.float64]]:
    """(turns,) seconds per query of each service; in every turn all answer the same queries, in rotating order."""
    queries, n = (pair.backward.query, pair.forward.query), pair.n_queries
    batch = min(batch, n)

    def seconds(search: Search, first: int, calls: int) -> float:
        started = time.perf_counter()
        for call in range(calls):
            at = (first + call) * batch % (n - batch + 1)
            search(queries[0][at : at + batch], queries[1][at : at + batch], k)
        return (time.perf_counter() - started) / (calls * batch)

    slowest = max(seconds(search, 0, 1) for search in searches for _ in range(2))
    calls = max(1, int(_TURN_S * min(1, 2 * scale) / (slowest * batch)))
    turns = max(5, int(_TURNS * min(1, 2 * scale)))
    times = np.empty((len(searches), turns))
    for turn in range(turns):
        for i in np.roll(np.arange(len(searches)), turn):
            times[i, turn] = seconds(searches[i], turn * calls, calls)
    return list(times)


def quartiles(ratio: NDArray[np.float64]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(ratio, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def shown(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[1]:.2f} ({ratio[0]:.2f} - {ratio[2]:.2f})"


def _print(price: Price) -> None:
    verdict = "holds" if price.ratio[1] >= LIMIT else "**does not hold**"
    row(price.label, str(price.k), str(price.batch), str(price.threads), f"{price.one:,.0f}", f"{price.half:,.0f}",
        shown(price.ratio), f"at least {LIMIT}: {verdict}", shown(price.before))  # fmt: skip


def _why(case: Case, served: Served, k: int, batch: int) -> tuple[str, ...]:
    """For one partition and the half-backfilled shard: distances, microseconds and index microseconds per query."""
    pair, parts = case.pair, (served.half.view.old, served.half.view.new)
    counts, coarse = [], []
    for search in served.searches[:2]:
        faiss.cvar.indexIVF_stats.reset()
        faiss.cvar.hnsw_stats.reset()
        for first in range(0, pair.n_queries, batch):
            some = slice(first, first + batch)
            search(pair.backward.query[some], pair.forward.query[some], k)
        lists, graphs = faiss.cvar.indexIVF_stats, faiss.cvar.hnsw_stats
        counts.append(f"{max(lists.ndis, graphs.ndis) / pair.n_queries or served.one.n:,.0f}")
        coarse.append(f"{100 * lists.quantization_time / lists.search_time:.0f} %" if lists.search_time else "")
    old = parts[0].n / (parts[0].n + parts[1].n)

    def one_index(backward: FloatArray, forward: FloatArray, k: int) -> IntArray:
        return _bare(served.one, forward, k, 1.0)

    def both_indexes(backward: FloatArray, forward: FloatArray, k: int) -> IntArray:
        _bare(parts[0], backward, k, old)
        return _bare(parts[1], forward, k, 1 - old)

    searches = (served.searches[0], one_index, served.searches[1], both_indexes)
    times = in_turn(case.pair, searches, k, batch, 0.2)
    return *counts, *coarse, *(f"{1e6 * np.median(of_search):,.0f}" for of_search in times)


def _bare(partition: Partition, query: FloatArray, k: int, share: float) -> IntArray:
    """Search only the index of a compacted partition, without our work before and after."""
    if isinstance(partition, ExactPartition):
        return partition.search(query, k).item
    inside: Any = partition
    # faiss.contrib.torch_utils, where it is imported, replaces ``search``.
    search: Any = getattr(inside._main.index, "search_numpy", inside._main.index.search)
    found: IntArray = search(query, k, params=inside.kind.parameters(None, k, share))[1]
    return found


def _quality(case: Case, plan: DrillPlan, served: list[Served]) -> None:
    """Print recall of each service against exact search of the same items, and bytes per vector."""
    print("\nA faster answer that is worse is no win; recall is against exact search of the same gallery.")
    services = "one, half, before"
    header("index", f"recall@10: {services}", f"recall@100: {services}", f"bytes a vector: {services}",
           "before: dead + fresh rows, old", "new")  # fmt: skip
    pair, none = case.pair, dict[int, IntArray]()
    every = make_partition(IndexSettings(), case.distance, pair.forward.gallery.shape[1], None)
    every = every.with_rows(pair.forward.gallery, np.arange(pair.n_gallery))
    most = max(K)
    truth_of_one = every.search(pair.forward.query, most).item
    truths = {
        applied: exact_answers(case.sides, pair, plan.state(applied, none), Answering.plain(case.sides.merge, most))
        for applied in {shard.view.applied for s in served for shard in (s.half, s.before)}
    }
    for s in served:
        truth = (truth_of_one, truths[s.half.view.applied], truths[s.before.view.applied])
        recalls = {k: [share_found(search(pair.backward.query, pair.forward.query, k), best[:, :k])
                       for search, best in zip(s.searches, truth, strict=True)] for k in sorted(K)}  # fmt: skip
        sizes = [s.one.size_bytes] + [sum(p.size_bytes for p in (x.view.old, x.view.new)) for x in (s.half, s.before)]
        row(s.label, *(", ".join(f"{value:.3f}" for value in of_k) for of_k in recalls.values()),
            ", ".join(f"{size / pair.n_gallery:,.0f}" for size in sizes),
            *(f"{dead:,} + {fresh:,}" for dead, fresh in s.waste))  # fmt: skip


def share_found(found_Qk: IntArray, best_Qk: IntArray) -> float:
    """Recall: the share of the best items that was found, over all queries."""
    hits = sum(int(np.isin(best, found).sum()) for found, best in zip(found_Qk, best_Qk, strict=True))
    return hits / best_Qk.size


def flat(case: Case, n_threads: list[int], scale: float) -> None:
    """Compare our exact engine with faiss's, each as one partition."""
    forward = case.pair.forward.gallery
    searches: list[Search] = []
    for kind in ("exact", "Flat"):
        empty = make_partition(IndexSettings(kind), case.distance, forward.shape[1], None)
        partition = empty.with_rows(forward, np.arange(len(forward)))
        searches.append(lambda backward, forward, k, p=partition: p.search(forward, k).item)  # type: ignore[misc]
    header("k", "batch", "threads", "Flat, q/s", "exact, q/s", "exact / Flat (quartiles)")
    for number in n_threads:
        with threads(number):
            for k in K:
                for batch in BATCHES:
                    own, theirs = in_turn(case.pair, tuple(searches), k, batch, scale)
                    speed = f"{1 / np.median(theirs):,.0f}", f"{1 / np.median(own):,.0f}"
                    row(str(k), str(batch), str(number), *speed, shown(quartiles(theirs / own)))


def _threads(number: int) -> str:
    return f"{number} thread{'s' if number > 1 else ''}"
