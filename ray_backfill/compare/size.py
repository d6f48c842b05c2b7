"""How much memory the curves of a comparison need, before anything is computed."""

import os
from pathlib import Path

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say
from ray_backfill.engine.statistics import DRAWS

# Shares of flipped queries: against the method's own start and against the old service, negative and positive.
_FLIPS = 4
# What is kept of the queries whose first result changes, if each does so once.
_FLIP_BYTES = 28
# What is first for a query at a moment, while its changes are looked for.
_FIRST_BYTES = 6
# Above one of these a run says what it is going to need: memory, and multiply-adds of the bootstrap, which takes most
# of the time if there are many points.
_MUCH_BYTES, _MUCH_WORK = 2 << 30, 3e11


def check_memory(evaluation: Evaluation, methods: int, queries: int) -> None:
    """Raise InputError if the curves would take more than half of the memory; say it if they take much.

    methods: number of methods. queries: number of queries, an upper bound of those with an answer.
    """
    needed, memory = curve_bytes(evaluation, methods, queries), memory_bytes()
    size = f"{evaluation.points:,} --points of {methods} methods and {queries:,} queries"
    if needed > memory / 2:
        fit = max(2, int(evaluation.points * memory / 2 / needed))
        raise InputError(
            f"{size} need about {_gb(needed)} of memory, more than half of this machine's {_gb(memory)}; give at most "
            f"--points {fit}, or fewer --methods, --orders, --merges or --metrics"
        )
    curves = methods * len(evaluation.orders) * len(evaluation.merges)
    drawn = len(evaluation.metrics) * evaluation.moments + _FLIPS * evaluation.points
    if needed > _MUCH_BYTES or curves * DRAWS * queries * drawn > _MUCH_WORK:
        say(f"{size} need about {_gb(needed)} of memory and minutes for their intervals; fewer --points need less")


def curve_bytes(evaluation: Evaluation, methods: int, queries: int) -> int:
    """Estimate of the memory for curves, their bootstrap draws and their tables."""
    metrics, points, moments = len(evaluation.metrics), evaluation.points, evaluation.moments
    # Whether the first result is right; of several permutations, the share of them, and whether it is in the first.
    right = 9 if evaluation.permutations > 1 else 1
    values = queries * (8 * metrics * points + right * moments + _FLIP_BYTES)
    draws = 8 * DRAWS * metrics * points
    table_rows = 2 * 64 * ((metrics + _FLIPS) * points + metrics * moments)
    # While a method is replayed in all orders, and its draws at all moments are judged.
    of_one_method = evaluation.replayed_orders * queries * moments * (8 * metrics + 1) + 8 * DRAWS * moments
    of_one_method += len(evaluation.orders) * queries * moments * _FIRST_BYTES
    return methods * len(evaluation.orders) * len(evaluation.merges) * (values + draws + table_rows) + of_one_method


def memory_bytes() -> int:
    """Memory of this machine, or of the container if that is less."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    given = limit.read_text().strip() if limit.exists() else "max"
    return min(memory, int(given)) if given.isdigit() else memory


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
