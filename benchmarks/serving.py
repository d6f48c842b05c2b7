"""Cost of serving two partitions, and the effect of approximate indexes on quality: Markdown tables and figures.

python -m benchmarks.serving --figures docs/results    # everything: 200,000 items, 3 GB of memory
python -m benchmarks.serving --scale 0.02              # the same at 2 % of the sizes, as a smoke test
python -m benchmarks.serving --only honesty --data runs/landmarks/embeddings   # on real embeddings
"""

import argparse
import platform
import sys
import time
from pathlib import Path

import faiss
import numpy as np

from benchmarks.galleries import Case, from_folder, synthetic
from benchmarks.honesty import honesty
from benchmarks.prices import flat, price
from ray_backfill.core.errors import InputError
from ray_backfill.engine.replay import usable_cpus

PARTS = ("price", "flat", "honesty")


def run(arguments: argparse.Namespace) -> list[str]:
    """Run the chosen parts; returns the limits that do not hold."""
    failed: list[str] = []
    scale = arguments.scale
    wanted = PARTS if arguments.only is None else (arguments.only,)
    case: Case | None = None
    if "price" in wanted or "flat" in wanted:
        case = synthetic(_at_least(200_000 * scale), 512, _at_least(50_000 * scale))
        print(f"\n{case.name}; indexes are built by all threads and searched by as many as the column says")
    if "price" in wanted and case is not None:
        print("\n## The price of two partitions")
        prices, failed = price(case, arguments.threads, scale)
        if arguments.figures:
            from benchmarks.serving_figures import price_figure

            price_figure(prices, arguments.figures / "serving-price.png")
    if "flat" in wanted and case is not None:
        print("\n## Our exact engine and faiss's")
        flat(case, arguments.threads, scale)
    if "honesty" in wanted:
        if arguments.data is not None:
            case = from_folder(arguments.data, arguments.method, arguments.maps, arguments.distance)
        else:
            case = synthetic(_at_least(50_000 * scale), max(20, int(500 * scale)), _at_least(20_000 * scale))
        print(
            f"\n## What approximate indexes do\n\n{case.name}, method {case.method.name}, {case.distance}, random order"
        )
        found = honesty(case)
        if arguments.figures:
            from benchmarks.serving_figures import honesty_figure

            honesty_figure(found, arguments.figures / f"serving-quality{arguments.suffix}.png")
    return failed


def _at_least(items: float) -> int:
    """Number of train items: enough to train 256 lists and codes."""
    return max(1000, int(items))


def machine() -> str:
    cpus = [x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in x]
    versions = f"Python {platform.python_version()}, numpy {np.__version__}, faiss {faiss.__version__}"
    return f"{usable_cpus()} cores of {cpus[0] if cpus else '?'}, {versions}"


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, help="run only this part")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on all sizes; limits apply to 1 only")
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="numbers of search threads to measure")
    parser.add_argument("--figures", type=Path, help="folder for figures")
    parser.add_argument("--suffix", default="", help="suffix of the quality figure's file name")
    parser.add_argument("--data", type=Path, help="folder of embeddings for honesty; default: synthetic ones")
    parser.add_argument("--method", default="rm_naive", help="upgrade method, with --data")
    parser.add_argument("--maps", type=Path, help="RUN/maps, for a method with a fitted network")
    parser.add_argument("--distance", default="cosine", help="distance, with --data")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse()
    print(f"{machine()}\n\n    python -m benchmarks.serving {' '.join(sys.argv[1:])}".rstrip())
    started = time.perf_counter()
    if arguments.figures:
        arguments.figures.mkdir(parents=True, exist_ok=True)
    try:
        failed = run(arguments)
    except InputError as error:
        sys.exit(f"error: {error}")
    print(f"\n{(time.perf_counter() - started) / 60:.1f} minutes")
    if failed:
        sys.exit("does not hold:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
