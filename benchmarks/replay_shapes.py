"""The replay at several shapes: its ratio to bare products, and the cost of many threads."""

import heapq
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import ray_backfill as rb
from benchmarks.replay_tools import Case, D, Table, make_case, products, seconds
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.replay.bins import mark_bit, n_bins
from ray_backfill.engine.replay.counting import count, look_up
from ray_backfill.engine.replay.engine import measure_prepared, split_gallery
from ray_backfill.engine.replay.prepare import Prepared, Served, count_parts, prepare_replay, split_queries
from ray_backfill.engine.replay.shard import GalleryShard, LocalShards, make_forms

WHOLE, CUT = ("mAP", "CMC@1"), ("mAP@100", "CMC@1")
# Bare products and replays take turns this often, and the fastest of each counts.
TURNS = 3
# Queries, items, right answers of a query, dimensions, metrics, largest ratio. Of whole rankings, the items are the
# queries, and classes are apart or overlap: noise in each dimension, for 128 dimensions.
SHAPES = (
    (20_000, 20_000, 50, 128, WHOLE, 1.5),
    (10_000, 10_000, 100, 128, WHOLE, 2),
    (10_000, 10_000, 1000, 128, WHOLE, 4),
    (6000, 6000, 50, 1280, WHOLE, 1.5),
    (6000, 6000, 600, 1280, WHOLE, 4),
    (500, 400_000, 50, 128, CUT, 1.3),
)
NOISE = {"apart": 1.5, "overlapping": 4.0}


def shapes(table: Table, scale: float) -> None:
    """Replay / products of both systems, on all cores, at 11 points."""
    for n_queries, n_items, n_right, dims, metrics, limit in SHAPES:
        n_queries, n_items = max(20, int(n_queries * scale)), max(40, int(n_items * scale))
        order = np.random.default_rng(1).permutation(n_items)
        for classes, noise in NOISE.items():
            spread = noise * (dims / D) ** 0.5
            case = make_case(n_queries, n_items, min(n_right, n_items // 2), metrics == WHOLE, dims, spread)
            replay = partial(rb.replay, case.pair, case.truth, order, 11, metrics)
            bare, ours = np.min([(products(case.pair, 1), seconds(replay, 1)) for _ in range(TURNS)], axis=0)
            shape = f"{n_queries:,} x {n_items:,} x {dims:,}, {n_right:,} right answers, {' + '.join(metrics)}"
            table.at_most(f"{shape}, {classes} ({ours:.2f} s): replay / products", ours / bare, limit)
        if metrics == WHOLE:
            least = 2 * n_queries * n_items * counting_alone(n_right) / usable_cpus()
            table.note(f"{shape}: products, look-ups and counts alone / products", f"{(bare + least) / bare:.2f}x")


def counting_alone(n_right: int, points: int = 11) -> float:
    """Seconds of one core for a pair of query and item of a system: its place read from a table, and counted.

    No pair is undecided, positive or farther than all right answers, and everything is in the cache: of counting
    overlapping classes, this is what cannot be left out.
    """
    rng, n, width = np.random.default_rng(0), 4096, 2 * n_right + 1
    table = np.linspace(0, width - 1, n_bins(2 * n_right)).astype(np.uint16)
    bins = rng.integers(len(table), size=n).astype(np.int32)
    segments, groups = rng.integers(points - 1, size=n).astype(np.uint16), np.arange(0, n, 8, dtype=np.uint32)
    places, marked, listed = np.empty(n, np.uint16), np.empty(n // 8 + 1, np.uint32), np.empty(n + 1, np.uint32)
    counts = np.zeros((points - 1) * width, np.uint16)

    def tiles() -> None:
        for _ in range(200):
            look_up(table, bins, mark_bit(table), groups, len(groups), places, marked, listed)
            count(groups, len(groups), places, segments, width, counts)

    return seconds(tiles, 5) / (200 * n)


def many_threads(table: Table, scale: float) -> None:
    """1,129 queries: what the pieces of work for many threads cost, and how they fill 64 cores."""
    case = make_case(max(20, int(1129 * scale)), max(40, int(400_000 * scale)), 30)
    order = np.random.default_rng(1).permutation(case.pair.n_gallery)
    for metrics in (WHOLE, CUT):
        name = f"{case.pair.n_queries:,} x {case.pair.n_gallery:,}, {' + '.join(metrics)}"

        def replay(threads: int, metrics: tuple[str, ...] = metrics) -> None:
            rb.replay(case.pair, case.truth, order, 11, metrics, threads=threads)

        two, sixteen = np.min([[seconds(partial(replay, n), 1) for n in (2, 16)] for _ in range(TURNS)], axis=0)
        table.at_most(f"{name}: 16 threads / 2 threads, on two cores", sixteen / two, 1.15)
        one, makespan = scheduled(case, order, metrics, 64)
        table.note(f"{name}: simulated on 64 cores, speed-up over one core", f"{one / makespan:.0f}x")


class Recorded(LocalShards):
    """Shards one after the other; the seconds of each are kept."""

    def __init__(self, shards: list[GalleryShard]) -> None:
        super().__init__(shards)
        self.map = self._timed  # type: ignore[assignment]
        self.taken: list[list[float]] = []

    def _timed(self, work: Callable[[GalleryShard], Any], shards: list[GalleryShard]) -> list[Any]:
        taken, answers = [], []
        for shard in shards:
            started = time.perf_counter()
            answers.append(work(shard))
            taken.append(time.perf_counter() - started)
        self.taken.append(taken)
        return answers


def scheduled(case: Case, order: Any, metrics: tuple[str, ...], cores: int) -> tuple[float, float]:
    """Return the seconds of a replay on one core, and of its pieces for ``cores`` cores, scheduled on these.

    Every piece is timed alone on this machine, so the simulation knows of no limits shared by cores, such as memory.
    """
    systems = [case.pair.backward, case.pair.forward]
    prepared = prepare_replay(case.truth, [Served(0, 1, {"": order})], 11, metrics)
    forms = make_forms(systems, prepared, "cosine")

    def pieces(threads: int) -> tuple[float, list[tuple[float, list[list[float]]]]]:
        blocks = split_queries(prepared, case.truth, threads)
        shards = Recorded(split_gallery(forms, count_parts(prepared, len(blocks), threads), prepared))
        found = []
        with threadpool_limits(1, user_api="blas"):
            for rows in blocks:
                shards.taken = []
                part = _only(prepared, rows)
                started = time.perf_counter()
                measure_prepared(part, case.truth, shards, 1)
                found.append((time.perf_counter() - started, shards.taken))
        return sum(total for total, _ in found), found

    one = min(pieces(1)[0] for _ in range(2))
    _, found = pieces(cores)
    return one, makespan(found, cores)


def _only(prepared: Prepared, rows: Any) -> Prepared:
    return replace(prepared, scored=np.sort(prepared.scored[rows]))


def makespan(blocks: list[tuple[float, list[list[float]]]], cores: int) -> float:
    """Return when the last block ends. blocks: (seconds in all, [seconds of each shard, in each round]).

    All first rounds are in the queue at the start. A block enters its next round when all shards of the last one have
    answered; what it does by itself between rounds takes place at the end.
    """
    free = [0.0] * cores
    waiting = [(0.0, number, 0) for number in range(len(blocks))]  # (ready at, block, round)
    heapq.heapify(waiting)
    last = 0.0
    while waiting:
        ready, number, turn = heapq.heappop(waiting)
        total, rounds = blocks[number]
        own = total - sum(map(sum, rounds))
        pieces = rounds[turn] if turn < len(rounds) else [own]
        ended = 0.0
        for piece in pieces:
            end = max(heapq.heappop(free), ready) + piece
            heapq.heappush(free, end)
            ended = max(ended, end)
        last = max(last, ended)
        if turn < len(rounds):
            heapq.heappush(waiting, (ended, number, turn + 1))
    return last
