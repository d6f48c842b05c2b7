"""Hours and quality that a plan predicts beside those of live drills: signed errors, a Markdown table.

    python -m benchmarks.planned --out runs/planned    # six drills: some eight minutes on two cores

The plan knows a replay of the same vectors and the limit of the drill, and nothing of the drill. What it does not model
is in the errors: the start of actors, measurements at checkpoints, and the last part of each shard.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import ray_backfill as rb

# Items, limit in items per second, method, and parts of so many items. Fixed before the drills ran.
SETTINGS = (
    (3000, 100, "rm_naive", 50),
    (3000, 50, "ridge_gallery", 25),
    (6000, 150, "ridge_gallery", 100),
    (6000, 100, "rm_naive", 300),
    (9000, 200, "procrustes_gallery", 50),
    (9000, 300, "ridge_gallery", 150),
)
METRIC = "mAP@10"


def folder(path: Path, items: int) -> Path:
    """Classes in noise; the new model is better and has more dimensions."""
    rng, signal = np.random.default_rng(items), np.random.default_rng(0).normal(size=(100, 64))

    def columns(rows: int) -> dict[str, np.ndarray]:
        label = np.arange(rows) % 100
        old = signal[label, :32] + 2.0 * rng.normal(size=(rows, 32))
        return {"old": old, "new": signal[label] + 1.6 * rng.normal(size=(rows, 64)), "label": label}

    return Path(rb.write_folder(path, columns(items), columns(200), columns(2000)))


def predicted(results: Path, items: int, limit: float, method: str, out: Path) -> tuple[float, pd.DataFrame]:
    """Seconds, and quality over hours, of the method by a plan."""
    fleet = out.with_suffix(".yaml")
    workers = "[{number: 1, items_per_s: 1000000}]"
    fleet.write_text(f"items: {items}\nlimit_items_per_s: {limit}\nworkers: {workers}\nstart: 2026-01-05 08:00\n")
    plan = rb.plan(results, fleet, out=out)
    (row,) = (row for row in plan.options if row.method == method)
    return 3600 * row.hours, pd.DataFrame([vars(point) for point in plan.hours if point.name == row.name])


def main() -> None:
    """Run the drills that are not there yet, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of settings, from 0")
    given = parser.parse_args()
    heads = ("items", "items per s", "method", "predicted", "measured", "error", "largest error of quality")
    rows = []
    for number, (items, limit, method, part_items) in enumerate(SETTINGS):
        if given.only is not None and number not in given.only:
            continue
        root = given.out / str(number)
        data, live = root / "data", root / "drill" / "live"
        if not data.exists():
            folder(data, items)
        rb.simulate(data, methods=[method], metrics=[METRIC], orders=["random"], merges=["raw"], out=root / "replay")
        predicted_s, curve = predicted(root / "replay", items, limit, method, root / "plan")
        if not (live / "checkpoints.parquet").exists():
            words = f"drill --data {data} --out {root / 'drill'} --metrics {METRIC} --orders random --merges raw"
            words += f" --live.method {method} --live.part-items {part_items} --live.throttle.items-per-s {limit}"
            words += " --points 11 --live.traffic.rate-per-s 5 --live.traffic.warm-up-s 0 --live.quiet-s 0"
            words += " --live.shards.number 1 --live.shards.cpus 0.5 --actors.number 1 --actors.cpus 0.5"
            command = [sys.executable, "-m", "ray_backfill", *words.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        checkpoints, quality = (pd.read_parquet(live / f"{name}.parquet") for name in ("checkpoints", "quality"))
        backfill = checkpoints[checkpoints.phase == "backfill"]
        measured_s = (backfill.elapsed_s - backfill.elapsed_s.iloc[0]).to_numpy()
        at_hours = np.interp(measured_s / 3600, curve.hour, curve.value)
        lives = quality[quality.metric == METRIC].set_index("moment").live
        errors = at_hours - lives.loc[backfill.moment].to_numpy()
        largest = errors[np.abs(errors).argmax()]
        rows.append([
            f"{items:,}", f"{limit}", method, f"{predicted_s:.1f} s", f"{measured_s[-1]:.1f} s",
            f"{100 * (predicted_s / measured_s[-1] - 1):+.1f} %", f"{100 * largest:+.2f} points",
        ])  # fmt: skip
    for cells in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(cells)} |")
    (given.out / "planned.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
