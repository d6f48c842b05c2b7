"""Benchmark of the replay: prints a Markdown table of ratios, each measured in one run, with its limit.

python -m benchmarks.replay                 # everything: some ten minutes on two cores, 8 GB of memory
python -m benchmarks.replay --scale 0.02    # the same at 2 % of the sizes, as a smoke test
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import ray_backfill as rb
from benchmarks.replay_shapes import many_threads, shapes
from benchmarks.replay_tools import Case, D, Table, make_case, peak_memory_mb, products, seconds
from ray_backfill.data.write import vector_column
from ray_backfill.engine.distances import exact_distances
from ray_backfill.engine.replay import usable_cpus
from ray_backfill.engine.replay.keys import sort_keys

METRICS = ("mAP", "CMC@1", "CMC@5")
CUT_METRICS = ("mAP@100", "CMC@1")


def first_call(table: Table, scale: float) -> None:
    """Time a fresh process without compiled code on disk, and a second one that finds it."""
    code = (
        "import time, numpy as np, ray_backfill as rb\n"
        "s = rb.RetrievalSystem(np.eye(400, 8, dtype=np.float32) + 1, np.eye(400, 8, dtype=np.float32) + 1)\n"
        "p = rb.UpgradePair(s, rb.RetrievalSystem(s.query, s.gallery))\n"
        "t = rb.GroundTruth.from_labels(np.arange(400) % 9, np.arange(400) % 9)\n"
        "started = time.perf_counter()\n"
        "for m in (('mAP',), ('CMC@1',)): rb.replay(p, t, np.arange(400), 11, m)\n"
        "print(time.perf_counter() - started)\n"
    )
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"NUMBA_CACHE_DIR": cache}
        for what in ("first call, compiling", "first call of a later process"):
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            table.note(f"{what} (both families of metrics)", f"{float(done.stdout):.2f} s")


def cut_metrics(table: Table, scale: float) -> None:
    """Metrics cut at k at the size of GLDv2: 1,129 queries, 761,757 items."""
    case = make_case(max(20, int(1129 * scale)), int(761_757 * scale), 30)
    name = f"{case.pair.n_queries:,} x {case.pair.n_gallery:,} x {D}, mAP@100 + CMC@1"
    rng = np.random.default_rng(1)
    orders = {str(i): rng.permutation(case.pair.n_gallery) for i in range(6)}
    order = orders["0"]
    bare = products(case.pair)
    eleven = seconds(lambda: rb.replay(case.pair, case.truth, order, 11, CUT_METRICS))
    table.note(f"{name}: bare products of both systems", f"{bare:.2f} s")
    table.note(f"{name}, 11 points: replay", f"{eleven:.2f} s")
    table.at_most("replay / products", eleven / bare, 1.3)
    many = seconds(lambda: rb.replay(case.pair, case.truth, order, 101, CUT_METRICS))
    table.at_most("101 points / 11 points", many / eleven, 1.3)
    six = seconds(lambda: rb.replay(case.pair, case.truth, orders, 11, CUT_METRICS))
    table.at_most("six orders / one order", six / eleven, 2)
    search = faiss_at_each_point(case, order, 11)
    table.note(
        f"faiss.IndexFlatIP on both partitions at 11 points ({search:.1f} s) / replay", f"{search / eleven:.2f}x"
    )


def faiss_at_each_point(case: Case, order: NDArray[np.int64], points: int) -> float:
    """Return the seconds of searching for the 100 nearest, without building the indexes and merging."""
    total = 0.0
    systems = [
        (s.query / np.linalg.norm(s.query, axis=1, keepdims=True), s.gallery)
        for s in (case.pair.forward, case.pair.backward)
    ]
    for i in range(points):
        done = i * len(order) // (points - 1)
        for (query, gallery), rows in zip(systems, (order[:done], order[done:]), strict=True):
            if len(rows):
                index = faiss.IndexFlatIP(D)
                index.add(gallery[rows] / np.linalg.norm(gallery[rows], axis=1, keepdims=True))
                total += seconds(partial(index.search, query, 100), 1)
    return total


def whole_rankings(table: Table, scale: float) -> None:
    """Whole rankings of 50,000 items, 50 per class, that are also the queries."""
    case = make_case(0, int(50_000 * scale), 50, itself=True)
    n = case.pair.n_gallery
    name = f"{n:,} x {n:,} x {D}, mAP + CMC@1 + CMC@5 + flips"
    rng = np.random.default_rng(1)
    orders = {str(i): rng.permutation(n) for i in range(6)}
    order = orders["0"]

    def run() -> None:
        curve = rb.replay(case.pair, case.truth, order, 11, METRICS)
        curve.negative_flips(), curve.positive_flips()

    memory = peak_memory_mb(run)
    bare, eleven = products(case.pair), seconds(run)
    table.note(f"{name}: bare products of both systems", f"{bare:.2f} s")
    table.note(f"{name}, 11 points: replay", f"{eleven:.2f} s")
    table.at_most("replay / products", eleven / bare, 1.5)
    table.at_most("memory above the inputs", memory, 2048, " MB")
    many = seconds(lambda: rb.replay(case.pair, case.truth, order, 101, METRICS), 2)
    table.at_most("101 points / 11 points", many / eleven, 1.3)
    six = seconds(lambda: rb.replay(case.pair, case.truth, orders, 11, METRICS), 2)
    table.at_most("six orders / one order", six / eleven, 2)


def against_sorting(table: Table, scale: float) -> None:
    """Compare with a plain evaluation, which sorts a distance matrix at each point."""
    n = int(5000 * scale)
    case = make_case(0, n, 50, itself=True)
    order = np.random.default_rng(1).permutation(n)
    ours = seconds(lambda: rb.replay(case.pair, case.truth, order, 11, METRICS))
    theirs = seconds(lambda: plain_evaluation(case, order, 11), 1)
    what = f"{n:,} x {n:,}, 11 points: plain sorting ({theirs:.1f} s) / replay ({ours:.2f} s)"
    table.at_least(what, theirs / ours, 50)


def plain_evaluation(case: Case, order: NDArray[np.int64], points: int) -> list[float]:
    """Compute the mean average precision at each point by sorting."""
    unit = [
        s.gallery / np.linalg.norm(s.gallery, axis=1, keepdims=True) for s in (case.pair.forward, case.pair.backward)
    ]
    values, n = [], len(order)
    for i in range(points):
        backfilled = np.zeros(n, np.bool_)
        backfilled[order[: i * n // (points - 1)]] = True
        dist = np.where(backfilled, 1 - unit[0] @ unit[0].T, 1 - unit[1] @ unit[1].T)
        np.fill_diagonal(dist, np.inf)
        ranking = np.argsort(dist, axis=1, kind="stable")[:, :-1]
        right = case.labels[ranking] == case.labels[:, None]
        precision = np.cumsum(right, axis=1) / np.arange(1, n)
        values.append(float(((precision * right).sum(axis=1) / right.sum(axis=1)).mean()))
    return values


def growth(table: Table, scale: float) -> None:
    """Fit the exponents of the time in the number of items and of queries, over a factor of eight."""
    for metrics, n_gallery, n_queries in ((CUT_METRICS, 400_000, 1000), (METRICS, 80_000, 8000)):
        name = " + ".join(metrics)
        case = make_case(int(n_queries * scale) + 16, int(n_gallery * scale) + 16, 50)
        for what in ("items", "queries"):
            shares = np.array([1 / 8, 1 / 4, 1 / 2, 1])
            times = [seconds(part_of(case, metrics, what, share)) for share in shares]
            exponent = np.polyfit(np.log(shares), np.log(times), 1)[0]
            shown = ", ".join(f"{t:.2f}" for t in times)
            table.note(
                f"{name}: growth with {what} up to {len(case.labels):,} x {len(case.query_labels):,} ({shown} s)",
                f"exponent {exponent:.2f}",
            )


def part_of(case: Case, metrics: tuple[str, ...], what: str, share: float) -> Callable[[], object]:
    n_items = int(len(case.labels) * share) if what == "items" else len(case.labels)
    n_queries = int(len(case.query_labels) * share) if what == "queries" else len(case.query_labels)
    backward, forward = (
        rb.RetrievalSystem(s.query[:n_queries], s.gallery[:n_items]) for s in (case.pair.backward, case.pair.forward)
    )
    truth = rb.GroundTruth.from_labels(case.query_labels[:n_queries], case.labels[:n_items])
    order = np.random.default_rng(1).permutation(n_items)
    return lambda: rb.replay(rb.UpgradePair(backward, forward), truth, order, 11, metrics)


def exactness(table: Table, scale: float) -> None:
    """Compare every query's average precision and top-1 at 5 points with a full sort of exact keys, with ties."""
    n, points = int(6000 * scale), 5
    case = make_case(0, n, 50, itself=True)
    for system in (case.pair.backward, case.pair.forward):
        system.gallery[1::10] = system.gallery[0::10]  # a tenth of the gallery are duplicates
    order = np.random.default_rng(1).permutation(n)
    curve = rb.replay(case.pair, case.truth, order, points, ("mAP", "CMC@1"))
    slices = np.empty(n, np.int64)
    slices[order] = np.searchsorted(np.arange(1, points) * n // (points - 1), np.arange(n), side="right")

    def reference(q: int) -> NDArray[np.float64]:
        forward, backward = (
            sort_keys(exact_distances(s.query[q : q + 1], s.gallery, "cosine")[0], np.arange(n))
            for s in (case.pair.forward, case.pair.backward)
        )
        out = np.empty((2, points))
        for i in range(points):
            ranking = np.argsort(np.where(slices < i, forward, backward))
            right = (case.labels == case.labels[q])[ranking[ranking != q]]
            ranks = np.flatnonzero(right) + 1
            out[:, i] = (np.arange(1, len(ranks) + 1) / ranks).mean(), ranks[0] == 1
        return out

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        expected = np.array(list(pool.map(reference, curve.scored)))
    difference = max(
        float(np.abs(curve.per_query[metric] - expected[:, m]).max()) for m, metric in enumerate(("mAP", "CMC@1"))
    )
    what = f"{n:,} x {n:,}, {points} points, a tenth twins: largest difference of any query to sorting"
    table.at_most(what, difference, 1e-12, "")


def from_parquet(table: Table, scale: float) -> None:
    """Measure the memory of reading and replaying float16 embeddings in Parquet, mapped from a temporary file."""
    case = make_case(max(20, int(1129 * scale)), int(761_757 * scale), 30)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for split, side, labels in (("gallery", "gallery", case.labels), ("queries", "query", case.query_labels)):
            old, new = (
                vector_column(getattr(s, side).astype(np.float16)) for s in (case.pair.backward, case.pair.forward)
            )
            columns = {"id": np.arange(len(labels)), "old": old, "new": new, "label": labels}
            pq.write_table(pa.table(columns), folder / f"{split}.parquet", row_group_size=65_536)
        del case, columns, old, new
        code = (
            "import sys; sys.path.insert(0, sys.argv[2])\n"
            "import numpy as np, ray_backfill as rb\n"
            "from pathlib import Path\n"
            "from ray_backfill.core import memory\n"
            "from benchmarks.replay_tools import peak_memory_mb\n"
            "memory.MAPPED_BYTES = 0\n"
            "def run():\n"
            "    f = rb.read_folder(Path(sys.argv[1]))\n"
            "    q, g = f.queries, f.gallery\n"
            "    pair = rb.UpgradePair(rb.RetrievalSystem(q.old, g.old), rb.RetrievalSystem(q.new, g.new))\n"
            "    truth = rb.GroundTruth.from_labels(f.queries.label, f.gallery.label)\n"
            "    rb.replay(pair, truth, np.arange(len(f.gallery)), 11, ('mAP@100', 'CMC@1'))\n"
            "    print(2 * f.gallery.old.size * 4 / 2**20)\n"
            "print(peak_memory_mb(run))\n"
        )  # fmt: skip
        root = str(Path(__file__).parents[1])
        done = subprocess.run([sys.executable, "-c", code, name, root], capture_output=True, text=True, check=True)
    as_float32, peak = (float(line) for line in done.stdout.split())
    table.note(
        f"the same from float16 in Parquet, mapped ({as_float32:,.0f} MB as float32): most memory", f"{peak:,.0f} MB"
    )


def machine() -> str:
    cpu = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x), "?"
    )
    return f"{usable_cpus()} cores of {cpu}, numpy {np.__version__}, faiss {faiss.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="scale of the sizes; the limits apply to 1")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="run only this part")
    arguments = parser.parse_args()
    print(f"{machine()}\n")
    table = Table()
    for part in PARTS:
        if arguments.only in (None, part.__name__):
            part(table, arguments.scale)
    if table.failed:
        sys.exit("does not hold: " + "; ".join(table.failed))


PARTS = (
    *(first_call, shapes, whole_rankings, cut_metrics, many_threads, against_sorting, growth, exactness, from_parquet),
)

if __name__ == "__main__":
    main()
