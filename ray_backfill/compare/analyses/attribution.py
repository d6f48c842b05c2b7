"""What each stage of a service changes, and what the vectors alone would have advised; nothing without a service."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.compare.analyses import Analysis, TableRows
from ray_backfill.compare.results import ResultsData, Row
from ray_backfill.compare.selection import is_retention
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.progress import track
from ray_backfill.core.schema import block
from ray_backfill.page import Difference
from ray_backfill.page.charts import COLOURS, MID, Chart, DrawnCurve, Interval, Style
from ray_backfill.page.numbers import interval, listed, percent, points
from ray_backfill.page.sections import Cell, Charts, Note, Section, TableLine, limits, share, table_of

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves, Replayed
    from ray_backfill.compare.resolve import Comparison

# Words of ``pipeline.attribution``, which readers of results do not import.
LADDER, WITHOUT, UPGRADE = "ladder", "without", "upgrade"
MODEL, MERGE = "model", "merge"
SUMS = ("stages", "service")
_LABELS = {MODEL: "new model", MERGE: "backfill"}
_HEADS = {LADDER: "added in this order", UPGRADE: "to new \u2212 old", WITHOUT: "left out alone"}


@dataclass(frozen=True)
class AttributionRow:
    """What a stage of the service changes; one row for each method, order, merge, metric, kind, stage and moment."""

    method: Annotated[str, "as in `curves.parquet`; of the kind `upgrade`, new"]
    order: str
    merge: str
    metric: str
    kind: Annotated[
        str,
        "`ladder`: the stage is added to all before it; the values of all stages add up to that of `curves.parquet`. "
        "`without`: the whole service minus the service without this stage. `upgrade`: what the stage adds to new "
        "minus old",
    ]
    stage: Annotated[
        str,
        "in this order: `old model` (its whole ranking by the vectors alone), `model` (new in its place; `without`: "
        "the old model alone in this service), `merge` (the method in place of new; `without`: the new model alone in "
        "this service), `cut` (results of partitions and merge; `without` only where nothing follows), `fusion`, "
        "`re-ranker`; of the kind `upgrade` also `stages` (cut, fusion and re-ranker together) and `service` (all)",
    ]
    t: Annotated[float, "share of the gallery that is backfilled, 0 to 1; NaN for the average (auc)"]
    value: Annotated[float, "a share, and its paired 95 % interval"]
    low: float
    high: float


@dataclass(frozen=True)
class PlainAdvice:
    """What the same methods would have advised by the vectors' whole ranking, without the service; one row."""

    advice: Annotated[
        str,
        "`stay`: no upgrade; `switch`: when the new index is complete; `merge`: online, with the method, order and "
        "merge that would have been the best (empty if there is none)",
    ]
    method: str
    order: str
    merge: str
    difference: Annotated[
        float,
        "auc of this row in the service minus that of the best row there, by the primary metric, with 95 % limits that "
        "allow for the choice of the best; NaN without one of them",
    ]
    low: float
    high: float


def compute(comparison: "Comparison", curves: "Curves", so_far: ResultsData) -> Mapping[str, TableRows] | None:
    """Both tables; None without a service. Cost: the bootstrap of each variation at the reported points."""
    if comparison.service is None:
        return None
    from ray_backfill.engine import statistics as stats
    from ray_backfill.engine.merges import RAW
    from ray_backfill.pipeline.attribution import changes, sampled, upgrade_changes

    stages, blocks = comparison.service.stages, []
    for metric in comparison.evaluation.metrics:
        ends = {key: sampled(curves[key].curve, metric) for key in curves if key[0] in (OLD, NEW)}
        for key, replayed in track([*curves.items()], "what stages change", "curves"):
            old, new = (ends[end, key[1], RAW.name] for end in (OLD, NEW))
            changed = [*changes(stages, ends.get(key) or sampled(replayed.curve, metric), old, new)]
            changed += upgrade_changes(stages, old, new) if key[0] == NEW else ()
            samples = np.stack([change.samples for change in changed])
            samples[np.abs(samples) < stats.ROUNDING] = 0.0  # what changes nothing is no difference
            low, high = stats.interval(np.moveaxis(samples[:, 1:], 1, 0), replayed.n_queries)
            t = np.append(replayed.curve.t, np.nan)
            kinds, names = ([getattr(change, name) for change in changed] for name in ("kind", "stage"))
            blocks.append(
                block(
                    AttributionRow, *key, metric, np.repeat(kinds, len(t)), np.repeat(names, len(t)),
                    np.tile(t, len(changed)), samples[:, 0].ravel(), low.ravel(), high.ravel(),
                )
            )  # fmt: skip
    tables: dict[str, TableRows] = {"attribution": pd.concat(blocks, ignore_index=True)}
    advice = plain_advice(curves, so_far, by_vectors_alone(comparison, curves, so_far))
    return tables | ({"plain_advice": [advice]} if advice else {})


def plain_advice(curves: "Curves", so_far: ResultsData, alone: ResultsData) -> PlainAdvice | None:
    """The advice of ``alone``, and what it gives in the service; None if no interval can be estimated."""
    from ray_backfill.compare.report.verdict import advised, queries
    from ray_backfill.engine import statistics as stats

    def areas(row: Row) -> NDArray[np.float64]:
        of_row = curves[row.method, row.order, row.merge]
        return stats.auc_draws(of_row.curve.t, of_row.draws[row.metric], of_row.curve.is_step)

    advice, would, best, lead = advised(alone), alone.best(), so_far.best(), Difference(math.nan, math.nan, math.nan)
    if not advice:
        return None
    if would is None:
        return PlainAdvice(advice, "", "", "", *lead)
    there = so_far.row(would.method, would.variant, would.metric)
    if there is not None and best is not None:
        behind = areas(there) - np.array([areas(row) for row in so_far.candidates(would.metric)])
        width = stats.simultaneous_width(behind, queries(so_far))
        spread = width * float((areas(there) - areas(best)).std())
        value = there.auc - best.auc
        lead = Difference(value, value - spread, value + spread)
    return PlainAdvice(advice, would.method, *would.variant, *lead)


def by_vectors_alone(comparison: "Comparison", curves: "Curves", so_far: ResultsData) -> ResultsData:
    """The results of these methods without the service: its averages, and so its verdict and its best row, exactly.

    Falls, milestones and flips are judged at the reported points only. Which fits have learned: as in ``so_far``.
    """
    from ray_backfill.compare.replay import judge
    from ray_backfill.compare.report import results_of
    from ray_backfill.compare.tabulate import tabulate
    from ray_backfill.pipeline.attribution import PLAIN

    def alone(replayed: "Replayed") -> "Replayed":
        with_merge = {name: alone(of_merge) for name, of_merge in replayed.with_merge.items()}
        return replace(judge([replayed.curve.variations[PLAIN]], 1), merge=replayed.merge, with_merge=with_merge)

    tables = tabulate(comparison.methods, {key: alone(of) for key, of in curves.items()}, comparison.evaluation)
    return results_of(tables | {name: so_far.tables.frame(name) for name in so_far.tables}, so_far.manifest)


def changes_of(results: ResultsData, row: Row) -> dict[tuple[str, str], Difference]:
    """(kind, stage) -> what it changes on average over the backfill, with its interval; {} without a service."""
    if "attribution" not in results.tables:
        return {}
    table = results.tables.frame("attribution")
    table = table[table["t"].isna() & (table["metric"] == row.metric) & (table["order"] == row.order)]
    is_row = (table["method"] == row.method) & (table["merge"] == row.merge)
    table = table[is_row | (table["kind"] == UPGRADE)]
    columns = (table[name] for name in ("kind", "stage", "value", "low", "high"))
    return {(kind, stage): Difference(*of) for kind, stage, *of in zip(*columns, strict=True)}


def sentence(results: ResultsData, row: Row) -> str:
    """What the stages change of the upgrade, and what the backfill costs in this service.

    "" without a service, and if what the new model finds was taken as right: then nothing says what it is worth.
    """
    found, digits, name = changes_of(results, row), results.digits(row.metric), row.title
    if not found or is_retention(results) or math.isnan(found[UPGRADE, MODEL].low):
        return ""
    alone, changed, left = (found[UPGRADE, stage] for stage in (MODEL, *SUMS))
    of_stage = {stage: of for (kind, stage), of in found.items() if kind == UPGRADE and stage not in (MODEL, *SUMS)}
    of_stage = {
        stage: of for stage, of in of_stage.items() if of.low or of.high
    } or of_stage  # a cut often changes nothing
    stages, s = f"The {listed([*of_stage], 'and')}", "s" * (len(of_stage) == 1)
    sides = {of.side for of in of_stage.values()}
    worth, there = f"{points(alone.value, digits)} of {row.metric}", percent(left.value, digits)
    whole = f"these {there}"
    # What an upgrade usually is, better and partly hidden; then what holds whatever the signs are.
    if not any(of.low or of.high for of in of_stage.values()):
        said = f"{stages} change{s} nothing: by {row.metric}, the new model is {_worth(alone, digits)}"
    elif alone.side > 0 and left.side > 0 and {1, -1} <= sides:
        words = {1: "adds", -1: "hides"}
        of_each = {
            stage: f"{words[of.side]} {percent(abs(of.value), digits)}" for stage, of in of_stage.items() if of.side
        }
        told = listed([f"the {stage} {does}" for stage, does in of_each.items()], "and")
        said = f"Of the upgrade\u2019s {worth}, {told}; in this service it is worth {there}"
    elif alone.side > 0 and left.side > 0 and changed.side < 0:
        said = f"{stages} hide{s} {percent(-changed.value, digits)} of the upgrade\u2019s {worth}"
        whole = f"the other {there}"
    elif alone.side > 0 and changed.side > 0:
        said = f"{stages} add{s} {points(changed.value, digits)} to the upgrade\u2019s {worth}"
    elif not changed.side and (alone.side or left.side):
        said, whole = (
            (
                f"No difference is shown between what the upgrade is worth by the vectors alone, {worth}, and in this "
                f"service, {points(left.value, digits)} ({_limited(changed, digits)})"
            ),
            "",
        )
    else:
        better = [_worth(step, digits) for step in (alone, left)]
        said = f"By {row.metric}, the new model is {better[0]} by the vectors alone and {better[1]} in this service"
        whole = ""
    cost = found[WITHOUT, MERGE]
    if row.method == NEW:
        return f"{said}."
    if not cost.side:
        between = f"the new model alone and the backfill with {name}"
        return f"{said}; no difference is shown between {between} ({_limited(cost, digits)})."
    if cost.side > 0:
        return f"{said}; during the backfill {name} serves {points(cost.value, digits)} more than the new model alone."
    is_part = whole and left.side > 0 and -cost.value <= left.value
    costs = f"{percent(-cost.value, digits)} of {whole}" if is_part else points(-cost.value, digits)
    return f"{said}; the backfill with {name} costs {costs}."


def _limited(change: Difference, digits: int) -> str:
    return f"{points(change.value, digits)}, 95 % interval {interval(change.low, change.high, digits)}"


def _worth(step: Difference, digits: int) -> str:
    if not step.side:
        return f"not shown to differ from the old one ({_limited(step, digits)})"
    return f"{points(abs(step.value), digits)} {'better' if step.side > 0 else 'worse'} than the old one"


def section(results: ResultsData) -> Section | None:
    """A waterfall of the best row, or of the new model alone; its figures; and the ladder of every method."""
    row = results.best() or results.reference(NEW)
    if row is None or not (found := changes_of(results, row)):
        return None
    lines: list[TableLine] = []
    for stage in [stage for kind, stage in found if kind == LADDER]:
        line = [("stage", Cell(_LABELS.get(stage, stage)))]
        for kind, head in _HEADS.items():
            value, low, high = found.get((kind, stage), (math.nan, math.nan, math.nan))
            line += [(head, share(value)), ("95 % interval", limits(low, high))]
        lines.append(line)
    which = f"{row.title}{', ' * bool(results.group(row))}{results.label(row.variant) if results.group(row) else ''}"
    words = (
        f"{row.metric} on average over the backfill: from the old model\u2019s whole ranking by the vectors alone to "
        f"what users see with {which}. Backfill: the method in place of the new model alone. Cut: each partition "
        "returns its first results only."
    )
    note = Note(
        "Added in this order: what a stage changes when those above it are there; these figures add up to the service. "
        "To new \u2212 old: what it changes of the upgrade\u2019s worth. Left out alone: the whole service minus the "
        "service without the stage, or with the old or the new model alone; a cut before a fusion or re-ranker cannot "
        "be left out alone. attribution.parquet has every moment."
    )
    said = [told] if (told := sentence(results, row)) else []
    table, chart = table_of("What each stage changes", lines, ""), Charts([waterfall(row, found)], "stages")
    return Section("What each stage changes", [*said, words, chart, table, note], said=said)


def waterfall(row: Row, found: Mapping[tuple[str, str], Difference]) -> Chart:
    """The ladder of a row as bars that start where the one before ended. found: from ``changes_of``."""
    ladder = {stage: Difference(*(100 * np.array(of))) for (kind, stage), of in found.items() if kind == LADDER}
    value, low, high = np.array([*ladder.values()]).T
    end = np.cumsum(value)
    place, last = np.arange(len(end), dtype=float), float(len(end))
    curves = [
        DrawnCurve(
            "ends", "old model, service", f"{end[0]:.1f} \u2192 {end[-1]:.1f}", Style(MID, "", "s", 1.5, 2),
            np.array([0.0, last]), end[[0, -1]], bottom=np.zeros(2),
        )
    ]  # fmt: skip
    for key, colour, is_shown in (("adds", COLOURS[2], value > 0), ("loses", COLOURS[1], value <= 0)):
        is_shown[0] = False
        x, before = place[is_shown], (end - value)[is_shown]
        limited = Interval(x, before + low[is_shown], before + high[is_shown])
        style = Style(colour, "", "s", 1.5, 2)
        total = percent(value[is_shown].sum() / 100)
        curves.append(DrawnCurve(key, key, total, style, x, value[is_shown], limited, bottom=before))
    levels = np.concatenate([end, *(curve.interval[1:] for curve in curves if curve.interval)], axis=None)
    most = np.nanmax(levels)
    lowest = 1.5 * np.nanmin(levels) - 0.5 * most
    lowest = float(lowest) if lowest > 0.2 * most else 0.0
    labels = [_LABELS.get(stage, stage) for stage in ladder]
    return Chart(
        f"What each stage changes: {row.title}", f"{row.metric} (%)", "points", tuple(curves), x_unit="stage", place="",
        notes=("Thin lines: 95 % intervals", *(["The axis does not start at 0"] if lowest else [])),
        x_range=(-0.7, last + 0.7), y_range=(lowest, 1.05 * most - 0.05 * lowest),
        bars=(*labels, "service"),
    )  # fmt: skip


ANALYSES = (
    Analysis("attribution", AttributionRow, compute, section, ("checks",), {"plain_advice": PlainAdvice}, place=5),
)
