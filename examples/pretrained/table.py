"""A table of runs in Markdown: one line a method, one column a folder; gains in per cent.

python examples/pretrained/table.py runs/wide/img_AB runs/wide/img_CD ...  # folders of `simulate --out`
"""

import math
import sys
from pathlib import Path

import ray_backfill as rb


def cells(run: Path) -> dict[str, str]:
    """What stands in a run's column: the models' quality, then the gain of each method with each merge."""
    found = rb.read_results(run)
    rows = [row for row in found.rows if row.metric == found.primary]
    quality = {row.method: f"{100 * row.auc:.1f}" for row in rows if row.is_end}
    column = {"metric": found.primary} | {f"{name} model": quality[name] for name in ("old", "new")}
    for row in (row for row in rows if not row.is_reference):
        gain = "\u2013" if math.isnan(row.gain) else f"{100 * row.gain:.0f}".replace("-", "\u2212")
        column[f"`{row.method}`" + f", {row.merge}" * (row.merge != "raw")] = gain
    return column


if __name__ == "__main__":
    if not (runs := [Path(given) for given in sys.argv[1:]]):
        sys.exit("error: name the folders of runs")
    columns = {run.name: cells(run) for run in runs}
    print(f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}", sep="\n")
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        print(f"| {name} | {' | '.join(column.get(name, '') for column in columns.values())} |")
