"""Benefit of a throttle: query latency against the rate of the backfill, in live drills of a rendered gallery.

python -m benchmarks.throttle --out runs/throttle    # eight drills of 20,000 items: about ten minutes

Backbones, old embeddings and maps are made once, by the first drill, or taken from --base (a run folder of the same
gallery). Finished drills are kept: the same command resumes, and only prints the results if all are finished.
"""

import argparse
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import is_finished
from ray_backfill.drill.journal import CheckpointMeasured, Journal, of_type
from ray_backfill.drill.results import backfills
from ray_backfill.drill.settings import LiveSettings, ThrottleSettings
from ray_backfill.drill.traffic import read_events
from ray_backfill.page.charts import COLOURS, FAINT, GRID, INK
from ray_backfill.page.drawing import blank_figure, to_png

# Folders that all drills share.
_SHARED = ("backbones", "before", "maps")
# Number of bootstrap resamples for an interval of the p99.
_RESAMPLES = 1000


@dataclass(frozen=True)
class Outcome:
    """Results of one setting. p50, p95, p99: milliseconds during the backfill. interval: 95 % bootstrap interval of the
    p99 over requests. before: p99 in the quiet time before the backfill. items_per_s: rate of applied items.
    """

    throttle: ThrottleSettings
    items_per_s: float
    requests: int
    p50: float
    p95: float
    p99: float
    interval: tuple[float, float]
    before: float
    unanswered: int

    @property
    def name(self) -> str:
        if self.throttle.p99_ms:
            return f"p99 of {self.throttle.p99_ms:g} ms"
        return f"{self.throttle.items_per_s:,.0f} items/s" if self.throttle.items_per_s else "no throttle"


def measure(throttle: ThrottleSettings, folders: list[Path]) -> Outcome:
    """Results from the journals and events of one setting's drills, with latencies pooled.

    Counts requests that were due between the first and the last applied operation of the backfill, except while a
    checkpoint was measured; items are those applied after the first operation.

    Raises:
        InputError: a drill has fewer than two operations, or no traffic.
    """
    during, before = [], []
    items, seconds = 0, 0.0
    for folder in folders:
        entries = Journal(folder).entries()
        applied = backfills(entries)
        if len(applied) < 2:
            raise InputError(f"{folder} has fewer than two backfill operations; lower --part-items")
        start_s, end_s = applied[0].elapsed_s, applied[-1].elapsed_s
        asking = [(entry.began_s, entry.elapsed_s) for entry in of_type(entries, CheckpointMeasured)]
        events = read_events(folder)
        events = events[~events.is_warm_up]
        within = (events.scheduled_s >= start_s) & (events.scheduled_s < end_s)
        seconds += end_s - start_s
        for began_s, ended_s in asking:
            within &= ~((events.scheduled_s >= began_s) & (events.scheduled_s < ended_s))
            seconds -= max(0.0, min(ended_s, end_s) - max(began_s, start_s))
        during.append(events[within])
        items += sum(entry.items for entry in applied[1:])
        # Between the warm-up and the first checkpoint there is traffic only.
        before.append(events[events.scheduled_s < min(began_s for began_s, _ in asking)])
    counted, calm = pd.concat(during), pd.concat(before) if before else pd.DataFrame({"latency_ms": []})
    if not len(counted):
        raise InputError(f"no request was due during the backfill in {folders[0]}; raise --traffic")
    latency = counted.latency_ms.to_numpy(np.float64)
    p50, p95, p99 = np.quantile(latency, [0.5, 0.95, 0.99])
    answered = counted.queries.where(counted.is_answered, 0)
    return Outcome(
        throttle, items / max(seconds, 1e-9), len(counted), float(p50), float(p95), float(p99), _interval(latency),
        float(np.quantile(calm.latency_ms, 0.99)) if len(calm) else float("nan"),
        int(counted.queries.sum() - answered.sum()),
    )  # fmt: skip


def _interval(latency: NDArray[np.float64]) -> tuple[float, float]:
    """Bootstrap over requests as if independent; requests of one stall are not, so the true interval is wider."""
    rng = np.random.default_rng(0)
    found = [np.quantile(rng.choice(latency, len(latency)), 0.99) for _ in range(_RESAMPLES)]
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)


def print_table(found: list[Outcome]) -> None:
    """Print the results as Markdown, in the order of the settings."""
    columns = ("throttle", "items/s achieved", "requests", "p50 ms", "p95 ms", "p99 ms (95 % interval)",
               "p99 ms before it began", "unanswered")  # fmt: skip
    print("\n| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for m in found:
        p99 = f"{m.p99:.1f} ({m.interval[0]:.1f} - {m.interval[1]:.1f})"
        cells = (m.name, f"{m.items_per_s:,.0f}", f"{m.requests:,}", f"{m.p50:.1f}", f"{m.p95:.1f}", p99,
                 f"{m.before:.1f}", f"{m.unanswered:,}")  # fmt: skip
        print("| " + " | ".join(cells) + " |")


def draw(found: list[Outcome], path: Path) -> None:
    """Plot rates as a curve and targets as points, each with its target line."""
    figure = blank_figure(4.4)
    plot = figure.subplots()
    rates = sorted((m for m in found if not m.throttle.p99_ms), key=lambda m: m.items_per_s)
    x, y = [m.items_per_s for m in rates], [m.p99 for m in rates]
    errors = [[m.p99 - m.interval[0] for m in rates], [m.interval[1] - m.p99 for m in rates]]
    plot.errorbar(x, y, yerr=errors, color=COLOURS[0], marker="o", linewidth=1.6, elinewidth=1, label="a fixed rate")
    for m in rates:
        plot.annotate(m.name, (m.items_per_s, m.p99), (5, -11), textcoords="offset points", fontsize=8, color=FAINT)
    for i, m in enumerate(m for m in found if m.throttle.p99_ms):
        colour = COLOURS[1 + i % (len(COLOURS) - 1)]
        plot.axhline(m.throttle.p99_ms, color=colour, linewidth=1, linestyle="--")
        error = [[m.p99 - m.interval[0]], [m.interval[1] - m.p99]]
        plot.errorbar([m.items_per_s], [m.p99], yerr=error, color=colour, marker="D", markersize=7, linestyle="",
                      label=f"target: {m.name} (dashed)")  # fmt: skip
    before = [m.before for m in found if not np.isnan(m.before)]
    if before:
        plot.axhline(float(np.median(before)), color=INK, linewidth=1, linestyle=":", label="before the backfill began")
    plot.set_yscale("log")
    for axis_format in (plot.yaxis.set_major_formatter, plot.yaxis.set_minor_formatter):
        axis_format("{x:g}")
    plot.set_xlim(left=0)
    plot.set_xlabel("items backfilled per second", color=FAINT, fontsize=9)
    plot.set_ylabel("p99 of the queries (ms)", color=FAINT, fontsize=9)
    plot.set_title("Query latency by throttle", loc="left", fontsize=10.5, fontweight="bold", color=INK)
    plot.grid(True, axis="y", color=GRID, linewidth=0.8)
    plot.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_png(figure))


def link_shared(base: Path, out: Path) -> None:
    """Share another run's folders with a drill, by hard links where possible.

    Stages replace whole files, so a run never changes the files of another.
    """
    for name in _SHARED:
        if (base / name).is_dir() and not (out / name).exists():
            shutil.copytree(base / name, out / name, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or no support for links
        shutil.copy2(source, target)


def settings_of(arguments: argparse.Namespace) -> list[ThrottleSettings]:
    """All settings: rates from the fastest (0: no limit), as the first drill makes the shared folders, then targets."""
    rates = sorted(arguments.rates, key=lambda rate: rate or np.inf, reverse=True)
    return [ThrottleSettings(items_per_s=rate) for rate in rates] + [
        ThrottleSettings(p99_ms=target) for target in arguments.targets
    ]


def folder_of(out: Path, throttle: ThrottleSettings, repeat: int) -> Path:
    kind = f"target-{throttle.p99_ms:g}" if throttle.p99_ms else f"rate-{throttle.items_per_s:g}"
    return out / f"{kind}-{repeat}"


def run_drills(arguments: argparse.Namespace) -> None:
    """Run all missing drills, one after the other in one Ray."""
    drills = [
        (throttle, repeat, folder_of(arguments.out, throttle, repeat))
        for repeat in range(arguments.repeats)
        for throttle in settings_of(arguments)
    ]
    missing = [drill for drill in drills if not is_finished(drill[2] / "live")]
    if not missing:
        return
    from ray_backfill.recipes.run.pipeline import drill_recipe
    from ray_backfill.workers.session import session
    from ray_backfill.workers.settings import Context

    recipe = _recipe(arguments)
    base = arguments.base or drills[0][2]
    with session():
        for throttle, repeat, folder in missing:
            if base != folder:
                link_shared(base, folder)
            print(f"drill: {folder.name}", file=sys.stderr)
            live = _live(arguments, throttle, repeat)
            drill_recipe(recipe, live, Context(folder, command=command()))


def _recipe(arguments: argparse.Namespace) -> Any:
    from ray_backfill.recipes import load_recipe

    recipe = load_recipe("landmarks")
    # Two points, so that the driver measures only at the start and the end.
    return replace(
        recipe,
        images=replace(recipe.images, gallery_images=arguments.gallery),
        evaluation=replace(recipe.evaluation, points=2),
    )


def _live(arguments: argparse.Namespace, throttle: ThrottleSettings, repeat: int) -> LiveSettings:
    default = LiveSettings()
    traffic = replace(default.traffic, rate_per_s=arguments.traffic, seed=repeat)
    return replace(
        default, part_items=arguments.part_items, quiet_s=arguments.quiet_s, traffic=traffic, throttle=throttle
    )


def command() -> str:
    return " ".join(["python -m benchmarks.throttle", *sys.argv[1:]])


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/throttle"), help="folder with one subfolder per drill")
    parser.add_argument("--base", type=Path, help="run folder with backbones, before and maps of the same gallery")
    parser.add_argument("--gallery", type=int, default=20_000, help="number of gallery items")
    parser.add_argument(
        "--rates", type=float, nargs="*", default=[250, 500, 1000, 2000, 0], help="rates in items/s; 0: no limit"
    )
    parser.add_argument("--targets", type=float, nargs="*", default=[25, 50, 100], help="p99 targets in milliseconds")
    parser.add_argument("--traffic", type=float, default=50.0, help="requests per second")
    parser.add_argument("--part-items", type=int, default=500, help="items per operation")
    parser.add_argument("--quiet-s", type=float, default=10.0, help="seconds of traffic only, before and after")
    parser.add_argument("--repeats", type=int, default=1, help="drills per setting, whose results are pooled")
    parser.add_argument("--figures", type=Path, help="folder for the figure")
    arguments = parser.parse_args(words)
    arguments.out = arguments.out.absolute()
    return arguments


def main() -> None:
    arguments = parse()
    print(f"    {command()}")
    try:
        run_drills(arguments)
        found = [
            measure(throttle, [folder_of(arguments.out, throttle, i) / "live" for i in range(arguments.repeats)])
            for throttle in settings_of(arguments)
        ]
    except InputError as error:
        sys.exit(f"error: {error}")
    print(f"\n{arguments.gallery:,} items, {arguments.traffic:g} requests a second, {arguments.repeats} drill(s) each")
    print_table(found)
    if arguments.figures:
        draw(found, arguments.figures / "throttle.png")


if __name__ == "__main__":
    main()
