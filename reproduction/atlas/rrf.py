"""The tables and the figure of docs/rrf.md, on reciprocal rank fusion, from the table of curves alone.

python -m reproduction.atlas.rrf docs/results/atlas.parquet docs/rrf.md
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from ray_backfill.page.charts import REFERENCE_STYLES, Chart, DrawnCurve, Floats, numbered_style
from reproduction.atlas.comparison import ALL, TRAIN
from reproduction.atlas.embeddings import FOLD
from reproduction.atlas.rules import CHOICE, UPGRADE
from reproduction.markdown import PageTable, table_lines

_OLD, _RAW, _RRF, _BEST = "old, switch at the end", "raw distances", "RRF", "chosen merge"
_CHOICES = {
    _OLD: ("offline", "raw"), _RAW: ("rm_naive", "raw"), _RRF: ("rm_naive", "rrf"), _BEST: ("rm_naive", "best"),
}  # fmt: skip
# What is between these lines of the page is made here.
_BEGIN, _END = "<!-- made by python -m reproduction.atlas.rrf -->", "<!-- written by hand again -->"
_LEAST = 1e-4  # points; values are rounded to float32


def write_rrf(curves: pd.DataFrame, page: Path) -> None:
    """Renew the tables of the page, and its figure; curves: of all upgrades, as ``compare`` returns them."""
    whole = curves[(curves[FOLD] == ALL) & (curves["order"] == "random") & (curves["train"] == TRAIN)].set_index(CHOICE)
    of = {name: whole.loc[[choice]].set_index(UPGRADE).sort_index() for name, choice in _CHOICES.items()}
    points = {name: 100 * np.stack(own["curve"].to_list()) for name, own in of.items()}
    area = {name: 100 * own["auc"] for name, own in of.items()}
    old_U, is_apart = points[_OLD][:, :1], (of[_RAW]["overlap"] == 0).to_numpy()
    moments, sums = [], []
    for name, own in points.items():
        lost = (own - old_U).min(axis=1)
        values = (area[name].mean(), *own.mean(axis=0)[[1, 50, -2]], own.min(axis=1).mean(), -lost.min())
        moments.append(
            (name, *(f"{value:.1f}" for value in values), f"{(lost < -_LEAST).sum()}", f"{(lost < -1).sum()}")
        )
    groups = {"all": is_apart | True, "cosines do not overlap": is_apart, "cosines overlap": ~is_apart}
    for name, own in groups.items():
        means = (f"{area_U[own].mean():.1f}" for area_U in area.values())
        more = (f"{(area[_RRF] > area[other])[own].sum()}" for other in (_RAW, _BEST))
        sums.append((f"{name}: {own.sum()}", *means, *more))
    tables = (
        PageTable(
            ("", "mean", "at 1 %", "at 50 %", "at 99 %", "lowest", "largest loss", "below old", "by over 1 point"),
            (*moments,),
        ),
        PageTable(("upgrades", *_CHOICES, "RRF above raw", "RRF above chosen"), (*sums,)),
    )
    text = page.read_text(encoding="utf-8")
    before, after = text.split(_BEGIN)[0], text.split(_END)[-1]
    page.write_text("\n\n".join((before + _BEGIN, *map(table_lines, tables), _END + after)), encoding="utf-8")
    from ray_backfill.page.drawing import panels_figure

    shown = [
        _chart(name, {choice: (own - old_U)[group] for choice, own in points.items()})
        for name, group in [*groups.items()][1:]
    ]
    panels_figure(shown).savefig(page.parent / "results" / "atlas-rrf.png", dpi=110)


def _chart(title: str, above: dict[str, Floats]) -> Chart:
    """Means over upgrades. above: points above the old service; (upgrades, moments)."""
    lines = []
    for number, (name, own) in enumerate(above.items()):
        style, y = REFERENCE_STYLES["offline"] if name == _OLD else numbered_style(number), own.mean(axis=0)
        lines.append(
            DrawnCurve(name, name, f"{y.min():.1f}", style, np.linspace(0, 100, len(y)), y, is_step=name == _OLD)
        )
    ends = [end(line.y) for end in (min, max) for line in lines]
    title = f"nDCG@10 above the old service, where {title}: mean of {len(own)}"
    return Chart(title, "points", "lowest", tuple(lines), y_range=(min(ends) - 1, max(ends) + 1))


if __name__ == "__main__":
    write_rrf(pd.read_parquet(sys.argv[1]), Path(sys.argv[2]))
