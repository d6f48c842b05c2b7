"""AUC of every method by order, or by merge, as a heat map table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ray_backfill.compare.report.results import Results, Row, Variant
from ray_backfill.compare.report.selection import best_per_method, own_methods
from ray_backfill.compare.tables.results import OLD

DARKEST = 0.5  # opacity at which text stays readable


class Cell(NamedTuple):
    """auc: NaN if the method was not run with this variant. shade: opacity, 0 if no better than old."""

    auc: float
    shade: float
    is_best: bool


@dataclass(frozen=True)
class Grid:
    """what: "order" or "merge". fixed: the value of the other, in words. rows: title and one cell per column."""

    what: str
    fixed: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def grids(results: Results) -> list[Grid]:
    """Method by order at the first merge, and method by merge at the first deployable order."""
    merge = results.merges[0]
    order = next((o for o in results.orders if o not in results.oracles), results.orders[0])
    found = []
    if len(results.orders) > 1:
        fixed = f"{merge} merge" if len(results.merges) > 1 else ""
        found.append(_grid(results, "order", fixed, [Variant(o, merge) for o in results.orders]))
    if len(results.merges) > 1:
        fixed = f"{results.order_name(order)} order" if len(results.orders) > 1 else ""
        found.append(_grid(results, "merge", fixed, [Variant(order, m) for m in results.merges]))
    return [grid for grid in found if grid.rows]


def _grid(results: Results, what: str, fixed: str, variants: Sequence[Variant]) -> Grid:
    own = set(own_methods(results))
    found = {(r.method, r.variant): r for r in results.rows if r.metric == results.primary and r.method in own}
    by_method = {r.method: results.name(r) for r in best_per_method(results, results.primary) if r.method in own}
    rows = {m: [found.get((m, v)) for v in variants] for m in by_method}
    rows = {m: cells for m, cells in rows.items() if any(cells)}
    areas = [r.auc for cells in rows.values() for r in cells if r is not None and math.isfinite(r.auc)]
    low, high = _scale(results, areas)
    columns = tuple(results.order_name(v.order) if what == "order" else v.merge for v in variants)
    return Grid(what, fixed, columns, tuple((by_method[m], _cells(cells, low, high)) for m, cells in rows.items()))


def _scale(results: Results, areas: Sequence[float]) -> tuple[float, float]:
    """Ends of the colour scale: from the old service, or the worst cell if none is above old, to the best cell."""
    old = next((r.auc for r in results.rows if r.method == OLD and r.metric == results.primary), math.inf)
    high = max(areas, default=1.0)
    return (old if old < high else min(areas, default=0.0)), high


def _cells(rows: Sequence[Row | None], low: float, high: float) -> tuple[Cell, ...]:
    real = [r.auc for r in rows if r is not None and not r.is_bound and math.isfinite(r.auc)]
    best = max(real, default=math.inf)
    cells = []
    for row in rows:
        auc = row.auc if row is not None else math.nan
        share = (auc - low) / (high - low) if high > low and math.isfinite(auc) else 0.0
        is_best = row is not None and not row.is_bound and auc == best
        cells.append(Cell(auc, round(DARKEST * min(max(share, 0.0), 1.0), 3), is_best))
    return tuple(cells)
