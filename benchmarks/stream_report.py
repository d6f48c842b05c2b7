"""Table and figure of ``benchmarks.stream``."""

import argparse
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import Sample
from benchmarks.stream_rates import LIMIT, Bare, Streamed, data_of, steady
from ray_backfill.images.datasets import open_images
from ray_backfill.page.charts import COLOURS, FAINT, GRID, INK
from ray_backfill.page.drawing import blank_figure, to_png

_KINDS = ("actors", "Ray", "driver")


def print_report(
    arguments: argparse.Namespace, before: Bare, after: Bare, streamed: Streamed, feeding: dict[str, Any]
) -> list[str]:
    """Print the report as Markdown; returns the limits that do not hold."""
    samples, whole = streamed.samples, feeding["images_per_s"]
    settled = steady(streamed.parts, arguments.actors)
    forward = (before.forward + after.forward) / 2
    numbers = (float(np.mean(pair)) for pair in zip(_numbers(before), _numbers(after), strict=True))
    mean = Bare(before.configuration, *numbers)
    print(f"\n{arguments.images:,} images, {arguments.actors} actors of {arguments.cpus:g} CPUs, untrained weights")
    print("\n| | img/s before | after | mean | the stream's share of it | CPU us an image |\n|---|---|---|---|---|---|")
    for name, b, a, m, us in (
        (
            f"both models alone, {mean.configuration} threads",
            before.forward,
            after.forward,
            mean.forward,
            mean.forward_us,
        ),
        ("render and both models in a plain loop", before.loop, after.loop, mean.loop, mean.loop_us),
    ):
        print(f"| {name} | {b:,.0f} | {a:,.0f} | {m:,.0f} | {settled / m:.3f} | {us:,.0f} |")
    actors_us = 1e6 * samples[-1].cpu_s.get("actors", 0.0) / arguments.images
    print(f"| the stream, from its first part to its last | | | {settled:,.0f} | | {actors_us:,.0f} |")
    print(f"| the same with the start of the actors | | | {whole:,.0f} | | |")
    print(f"\n{feeding['bottleneck']}; no pixels {100 * feeding['waited_for_pixels']:.1f} % of the time")
    _print_cpu(arguments.images, samples[-1], feeding)
    first, last = _tenths(samples)
    peak = max(sum(sample.pss_mb.values()) for sample in samples)
    print(
        f"\nMemory (PSS of all processes): peak {peak:,.0f} MB; between the first part and the last, "
        f"median of the first tenth {first:,.0f} MB, of the last {last:,.0f} MB"
    )
    since = time.perf_counter()
    source = open_images(data_of(arguments.images + 1))  # a new source, so that listing is not cached
    listed = len(source.items("gallery"))
    print(f"Listing {listed - 1:,} items took {time.perf_counter() - since:.2f} s")
    failed = []
    if settled / forward < LIMIT:
        failed.append(f"the stream has {settled / forward:.3f} of the rate of the models alone, not {LIMIT}")
    if last > 1.1 * first:
        failed.append(f"memory grew from {first:.0f} to {last:.0f} MB")
    return failed


def _print_cpu(images: int, last: Sample, feeding: dict[str, Any]) -> None:
    """Print CPU time per image by process; actors are split by their own measurements."""
    actors = 1e6 * last.cpu_s.get("actors", 0.0) / images
    print("\n| CPU time, microseconds an image | |\n|---|---|")
    for name, label in (("decode", "render"), ("model", "both models, and the rest of the actors"), ("write", "write")):
        print(f"| {label} | {actors * feeding['cpu_shares'][name]:,.1f} |")
    for kind, label in (("Ray", "Ray beside the actors, its start included"), ("driver", "the driver, likewise")):
        print(f"| {label} | {1e6 * last.cpu_s.get(kind, 0.0) / images:,.1f} |")


def _numbers(bare: Bare) -> tuple[float, float, float, float]:
    return bare.forward, bare.forward_us, bare.loop, bare.loop_us


def _tenths(samples: Sequence[Sample]) -> tuple[float, float]:
    """Median memory in the first and in the last tenth of the time between the first and the last part."""
    last_done = samples[-1].done
    memory = np.array([sum(sample.pss_mb.values()) for sample in samples if 0 < sample.done < last_done] or [np.nan])
    tenth = max(1, len(memory) // 10)
    return float(np.median(memory[:tenth])), float(np.median(memory[-tenth:]))


def draw(arguments: argparse.Namespace, streamed: Streamed, bare: Bare, path: Path) -> None:
    """Memory by kind of process, and the rate, over time."""
    samples, figure = streamed.samples, blank_figure(5.2)
    upper, lower = figure.subplots(2, 1, sharex=True)
    minutes = np.array([sample.elapsed_s for sample in samples]) / 60
    stacks = [[sample.pss_mb.get(kind, 0.0) for sample in samples] for kind in _KINDS]
    labels = (f"{arguments.actors} embedding actors", "Ray beside them", "driver")
    upper.stackplot(minutes, stacks, colors=COLOURS[: len(_KINDS)], labels=labels, alpha=0.8)
    upper.set_ylabel("memory (MB, PSS)", color=FAINT, fontsize=9)
    upper.set_title(f"{arguments.images:,} images streamed through both models into Parquet", loc="left", fontsize=10.5,
                    fontweight="bold", color=INK)  # fmt: skip
    upper.legend(fontsize=8, facecolor="white", framealpha=0.9, loc="lower right", ncols=3)
    middle, rate = _rates(streamed.parts)
    lower.plot(middle, rate, color=COLOURS[0], linewidth=1.4, label="the stream")
    lower.axhline(bare.forward, color=INK, linewidth=1, linestyle="--", label="both models alone")
    lower.axhline(LIMIT * bare.forward, color=INK, linewidth=1, linestyle=":", label=f"{100 * LIMIT:.0f} % of it")
    lower.set_ylim(bottom=0)
    lower.set_ylabel("images a second", color=FAINT, fontsize=9)
    lower.set_xlabel("minutes", color=FAINT, fontsize=9)
    lower.legend(fontsize=8, frameon=False, loc="lower right", ncols=3)
    for plot in (upper, lower):
        plot.grid(True, axis="y", color=GRID, linewidth=0.8)
        plot.set_xlim(left=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_png(figure))


def _rates(parts: Sequence[tuple[float, int]]) -> tuple[list[float], list[float]]:
    """Minutes and images per second over periods of a few parts each, as parts finish in bursts."""
    middle, rate = [], []
    ends = np.linspace(0, len(parts) - 1, min(25, max(2, len(parts) // 4)) + 1).astype(int)
    for first, last in pairwise(ends):
        begun, ended = parts[first][0], parts[last][0]
        if ended > begun:
            middle.append((begun + ended) / 120)
            rate.append(sum(images for _, images in parts[first + 1 : last + 1]) / (ended - begun))
    return middle, rate
