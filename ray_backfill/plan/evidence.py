"""What finished results know about an upgrade: curves of quality over the backfilled share, and who measured them."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_backfill.compare.reopen import method_called, reopened
from ray_backfill.compare.report import AGAIN, read_data
from ray_backfill.compare.report.verdict import Lost, basis, decide, lost, queries, upgrade
from ray_backfill.compare.results import ResultsData, Row, Variant
from ray_backfill.compare.selection import is_retention
from ray_backfill.compare.tables import NEW, NEW_EMBEDDINGS, OLD
from ray_backfill.core.errors import InputError
from ray_backfill.core.outcome import Decision
from ray_backfill.forecast.report import ForecastResults, heading, read_forecast
from ray_backfill.forecast.report import decide as decide_forecast
from ray_backfill.learn.expressions import Stored
from ray_backfill.learn.methods import find_methods
from ray_backfill.page import Difference
from ray_backfill.recipes import NO_ROOT, all_recipes, load_recipe

Floats = NDArray[np.float64]
_FIRST = 10


@dataclass(frozen=True, eq=False)
class Curve:
    """How good the service is with a method while the share t of the gallery is backfilled.

    t, value: (P,) shares. lead: the average minus the old service, paired, with its 95 % interval.
    needs_old: whether queries need the old model until the end. maps_items: whether stored vectors are mapped first.
    per_query: (P,) items that the new model embeds for a query, of a cascade.
    from_share: from which share on the service is not worse than the old one, with its limits.
    """

    method: str
    title: str
    order: str
    merge: str
    t: Floats
    value: Floats
    lead: Difference
    from_share: tuple[float, float, float]
    needs_old: bool
    maps_items: bool
    per_query: Floats
    lost: Lost | None = None

    @property
    def name(self) -> str:
        """Method, merge and order."""
        return f"{self.title}, {self.order} order"

    @property
    def is_cascade(self) -> bool:
        """Whether it embeds items for every query."""
        return bool(self.per_query.any())


@dataclass(frozen=True, eq=False)
class Evidence:
    """Finished results, as a plan needs them.

    old, new: quality of both services, shares. step: new minus old with its 95 % interval. items: of the gallery that
    was measured. more: what to do for narrower intervals, and in what unit: queries, or sampled items. enough: how
    many of them there are. dims: of the new model; 0 if unknown. model: what names the new model, "" if nothing does.
    """

    metric: str
    old: float
    new: float
    step: Difference
    decision: Decision
    curves: tuple[Curve, ...]
    items: int
    basis: str
    more: str
    enough: int
    folder: Path
    dims: int = 0
    model: str = ""


def read_evidence(folder: Path) -> Evidence:
    """The results of ``simulate`` or ``forecast`` in a folder, or in that of the run.

    The name of a recipe instead of a folder stands for its gallery, of which no quality is known.

    Raises:
        InputError: There are none, or they are judged by the new model itself, which says nothing about its worth.
    """
    if not folder.exists() and folder.name in all_recipes():
        return _of_recipe(folder)
    for path in (folder, folder / "forecast"):
        if (path / "calibration.parquet").exists() and not (folder / "results").is_dir():
            return _of_forecast(read_forecast(path), path)
    if not any((path / "curves.parquet").exists() for path in (folder, folder / "results")):
        raise InputError(f"{folder} holds no results: give the folder that simulate or forecast wrote with --out")
    return _of_results(read_data(folder), folder)


def first_items(evidence: Evidence, curve: Curve) -> list[str]:
    """The ids of the first ten items of a merge's order, which is made again from the embeddings of ``simulate``.

    None where these are gone, and of a forecast. Cost: the embeddings are read, for some orders mapped.
    """
    results = evidence.folder if evidence.folder.name == "results" else evidence.folder / "results"
    if not (results / "manifest.json").exists():
        return []
    try:
        comparison = reopened(read_data(results), results, Variant(curve.order, curve.merge))
        (order_N,) = comparison.orders_of(method_called(comparison, curve.method)).values()
    except (InputError, ImportError):
        return []
    return comparison.folder.gallery.id[order_N[:_FIRST]].astype(str).tolist()


def _of_recipe(folder: Path) -> Evidence:
    from ray_backfill.recipes.run.plan import count_images

    counts = count_images(load_recipe(folder.name, NO_ROOT))
    nothing = Difference(math.nan, math.nan, math.nan)
    said = f"The gallery of the recipe {folder.name}: {counts.gallery:,} images, {counts.origin}."
    return Evidence(
        "", math.nan, math.nan, nothing, Decision.OPEN, (), counts.gallery, said, "", 0, Path("runs") / folder.name
    )


def _of_results(results: ResultsData, folder: Path) -> Evidence:
    old, new, step = results.reference(OLD), results.reference(NEW), upgrade(results)
    if is_retention(results):
        raise InputError(
            f"{folder} is judged by the new model, which says nothing about what an upgrade is worth: give the "
            f"queries right answers, and {AGAIN}"
        )
    if old is None or new is None or step is None:
        raise InputError(f"{folder} has no interval of the upgrade: compare on more queries, and {AGAIN}")
    data = results.manifest.data
    rows = [row for row in results.candidates(results.primary) if not (row.is_reference or row.is_oracle)]
    rows += [row for row in results.rows if row.method in results.recalling and row.metric == results.primary]
    best: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: -row.auc):
        if not (row.is_bound or row.is_reference or math.isnan(row.auc)):
            best.setdefault((row.method, row.order), row)
    return Evidence(
        results.primary, old.auc, new.auc, step, decide(results),
        tuple(_of_row(results, row, old) for row in best.values()), int(data["gallery_items"]), basis(results),
        "queries", queries(results), folder, int(data.get("new_dim", 0)), str(data.get("models", {}).get("new", "")),
    )  # fmt: skip


def _of_row(results: ResultsData, row: Row, old: Row) -> Curve:
    line, trace = results.line(row), results.moments.get((row.method, row.variant, NEW_EMBEDDINGS))
    assert line is not None
    per_query = np.zeros(len(line.t)) if trace is None else np.interp(line.t, trace.t, trace.value)
    lead = results.difference(row, old, at_once=True) or Difference(row.auc - old.auc, math.nan, math.nan)
    return Curve(
        row.method, row.title, row.order, row.merge, line.t, line.value, lead,
        (row.passes_old_at, row.passes_old_at_low, row.passes_old_at_high),
        *_needs(row.method, row.merge), per_query, lost(results, row),
    )  # fmt: skip


def _needs(name: str, merge: str) -> tuple[bool, bool]:
    """Whether queries need the old model until the end, and whether stored vectors are mapped first."""
    (method,) = find_methods((name,))
    is_mapped = method.sides[0].gallery != Stored("old") or merge.startswith("csls")
    return "old" in method.query_models, is_mapped


def _of_forecast(forecast: ForecastResults, folder: Path) -> Evidence:
    metric, facts = forecast.metrics[0], forecast.manifest
    old, (value, low, high) = facts["old"][metric], facts["new"][metric]
    curves = []
    for order in forecast.orders:
        for row in forecast.of(metric, order):
            line = [point for point in forecast.points if (point.method, point.order) == (row.method, order)]
            line = [point for point in line if point.metric == metric]
            t, of_value = np.array([(point.t, point.value) for point in line]).T
            below = np.flatnonzero(of_value < old - facts["evaluation"]["margin"])
            first = below[-1] + 1 if len(below) else 0
            since = float(t[first]) if first < len(t) else math.nan
            curves.append(
                Curve(
                    row.method, row.title, order, row.merge, t, of_value,
                    Difference(row.auc - old, row.auc_low - old, row.auc_high - old),
                    (since, math.nan, math.nan), *_needs(row.method, row.merge), np.zeros(len(t)),
                )
            )  # fmt: skip
    best_first = tuple(sorted(curves, key=lambda curve: -curve.lead.value))
    return Evidence(
        metric, old, value, Difference(value - old, low - old, high - old), decide_forecast(forecast), best_first,
        int(facts["items"]), f"{heading(forecast)}.", "sampled items", int(facts["known"]), folder,
        model=str(facts.get("data", {}).get("models", {}).get("new", "")),
    )  # fmt: skip
