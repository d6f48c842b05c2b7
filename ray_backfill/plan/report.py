"""A plan for readers: the terminal, the page, Markdown and JSON, all from its tables. Recomputes nothing."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ray_backfill.core.outcome import Decision, json_value
from ray_backfill.core.schema import frame, read_manifest, read_table, rows_of
from ray_backfill.core.stages import write_whole
from ray_backfill.page.charts import REFERENCE_STYLES, Chart, DrawnCurve, Interval, numbered_style, range_of
from ray_backfill.page.numbers import NOTHING, count, html_table, percent
from ray_backfill.page.sections import PageTable, text_table
from ray_backfill.plan.options import ONLINE, SWITCH
from ray_backfill.plan.tables import TABLES, AssumptionRow, DollarRow, FlipRow, HourRow, OptionRow, WhatIfRow
from ray_backfill.plan.words import dollars, hours, spread

_AGAIN = "run plan again"
# Merges that a table shows, the best first.
_SHOWN = 6
_OPTIONS = ("way", "hours", "dollars", "more than a switch", "point-days", "memory", "dominated by")
_FLIPS = ("assumption", "now", "changes at", "to")
_WHAT_IF = ("assumption", "value", "hours of a switch", "dollars", "point-days of a merge", "verdict")
_ASSUMPTIONS = ("assumption", "value", "unit", "origin", "source")


@dataclass(frozen=True, repr=False)
class PlanResults:
    """What ``plan`` returns; shows itself as a table in a notebook.

    Attributes:
        manifest: Verdict, sentences, and what the plan rests on.
        assumptions: Every number that it rests on.
        options: Every way to upgrade.
        dollars: Its cost by part.
        hours: Quality at every moment.
        flips: Values at which the verdict changes.
        what_if: Plans with other values.
    """

    manifest: Mapping[str, Any]
    assumptions: Sequence[AssumptionRow]
    options: Sequence[OptionRow]
    dollars: Sequence[DollarRow]
    hours: Sequence[HourRow]
    flips: Sequence[FlipRow]
    what_if: Sequence[WhatIfRow]

    @property
    def verdict(self) -> str:
        """What to do, in a sentence."""
        return str(self.manifest["sentence"])

    @property
    def decision(self) -> Decision:
        """For ``--exit-code``."""
        return Decision(self.manifest["decision"])

    @property
    def frame(self) -> pd.DataFrame:
        """The ways to upgrade."""
        return frame(OptionRow, self.options)

    @property
    def shown(self) -> list[OptionRow]:
        """The ways that a table shows: all but the weaker merges."""
        merges = sorted(
            (row for row in self.options if row.policy == ONLINE), key=lambda row: -np.nan_to_num(row.point_days)
        )
        merges.sort(key=lambda row: row.name != self.manifest["chosen"])
        return [row for row in self.options if row.policy != ONLINE] + merges[:_SHOWN]

    def show(self) -> None:
        """Print the verdict, the answers and the ways."""
        from rich.table import Table
        from rich.text import Text

        from ray_backfill.page.layout import show

        table = Table(title="Ways to upgrade", title_justify="left")
        for place, name in enumerate(_OPTIONS):
            table.add_column(Text(name), justify="right" if place else "left", overflow="fold")
        for row in self.shown:
            table.add_row(*map(Text, _option_cells(row)))
        before = [Text(self.verdict, "bold"), Text(f"{self.manifest['inequality']}.")]
        notes = [f"{question} {answer}" for question, answer in self.manifest["answers"].items()]
        flips = map(_flip_cells, self.flips[:3])
        notes += [f"Flips: {name} from {now} to {then}: {verdict}." for name, now, then, verdict in flips]
        changes = map(_what_if_cells, self.what_if)
        notes += [f"{name} = {value}: {took}, {cost}: {verdict}." for name, value, took, cost, _, verdict in changes]
        commands = [Text(f"to start: {command}", "bold") for command in self.manifest["next"]]
        show(None, table, [*map(Text, notes), *commands], 2, "report.html", before)

    def _repr_html_(self) -> str:
        table = pd.DataFrame([_option_cells(row) for row in self.shown], columns=list(_OPTIONS))
        return html_table(self.verdict, table, [f"{self.manifest['inequality']}.", *self.manifest["answers"].values()])

    def __repr__(self) -> str:
        return f"{self.verdict}; .show(), .frame, .assumptions, .flips"


def read_plan(folder: Path) -> PlanResults:
    """Read a folder that ``plan`` wrote. Raises InputError if a file is missing or broken."""
    manifest = read_manifest(folder / "manifest.json", ("verdict", "sentence", "answers", "decision"), _AGAIN)
    read = partial(read_table, again=_AGAIN, may_be_empty=True)
    tables: Iterator[list[Any]] = (
        rows_of(kind, read(folder / f"{name}.parquet", kind)) for name, kind in TABLES.items()
    )
    return PlanResults(manifest, *tables)


def write_plan_report(folder: Path) -> None:
    """Write ``curves.png``, ``report.html`` and ``plan.md`` from the tables of a plan."""
    from ray_backfill.page.parts import write_pages

    plan = read_plan(folder)
    write_pages(folder, lambda: charts_of(plan), lambda: render(plan))
    write_whole(folder / "plan.md", lambda temporary: temporary.write_text(markdown(plan), encoding="utf-8"))


def as_json(folder: Path) -> dict[str, Any]:
    """A plan for programs, as docs/schema/plan.json describes it; quality in shares, 1.0 = 100 %."""
    plan = read_plan(folder)
    names = ("decision", "verdict", "sentence", "inequality", "answers", "first_items", "next", "metric", "start")
    document = {"schema": 1} | {name: plan.manifest[name] for name in names} | {"folder": str(folder)}
    return dict(json_value(document | {name: [asdict(row) for row in getattr(plan, name)] for name in TABLES}))


def _of_runs(row: OptionRow | WhatIfRow, name: str, show: Callable[[float], str] = hours) -> str:
    """The middle of the runs with their 10 and 90 %."""
    low, middle, high = (getattr(row, column) for column in (f"{name}_low", name, f"{name}_high"))
    return spread(low, middle, high, show)


def _decimal(number: float) -> str:
    return NOTHING if math.isnan(number) else f"{number:,.1f}"


def _option_cells(row: OptionRow) -> list[str]:
    took = NOTHING if row.hours == 0 else _of_runs(row, "hours")
    paid, more = (_of_runs(row, name, dollars) for name in ("dollars", "extra"))
    memory = NOTHING if math.isnan(row.memory_gb) else f"{row.memory_gb:,.1f} GB"
    return [row.name, took, paid, more, _of_runs(row, "point_days", _decimal), memory, row.dominated_by or NOTHING]


def _flip_cells(row: FlipRow) -> list[str]:
    return [row.name, f"{row.today:,.4g} {row.unit}", f"{row.value:,.3g} {row.unit}", row.verdict]


def _what_if_cells(row: WhatIfRow) -> list[str]:
    took, paid, sums = _of_runs(row, "hours"), dollars(row.dollars), _decimal(row.point_days)
    return [row.name, f"{row.value:g}", took, paid, sums, row.verdict]


def _assumption_cells(row: AssumptionRow) -> list[str]:
    value = count(row.value) if row.value >= 1000 else f"{row.value:.4g}"
    if not math.isfinite(row.value):
        value = NOTHING if math.isnan(row.value) else "no limit"
    if row.spread:
        value += f" ± {percent(row.spread, 0)} %"
    return [row.name, value, row.unit, row.origin, row.source]


def tables_of(plan: PlanResults) -> dict[str, PageTable]:
    """The tables of the page, by name."""
    tables: dict[str, tuple[str, Sequence[str], Iterable[list[str]]]] = {
        "options": ("ways to upgrade", _OPTIONS, map(_option_cells, plan.shown)),
        "flips": ("what changes the verdict", _FLIPS, map(_flip_cells, plan.flips)),
        "what_if": ("with other values", _WHAT_IF, map(_what_if_cells, plan.what_if)),
        "assumptions": ("assumptions", _ASSUMPTIONS, map(_assumption_cells, plan.assumptions)),
    }
    return {name: text_table(label, heads, [*rows], "cards") for name, (label, heads, rows) in tables.items()}


def charts_of(plan: PlanResults) -> list[Chart]:
    """Quality over hours, of a switch and of the best merges; none if hours are unknown."""
    names = dict.fromkeys(row.name for row in plan.shown if row.policy in (SWITCH, ONLINE))
    moments = {name: [row for row in plan.hours if row.name == name] for name in names}
    if plan.manifest["old"] is None or not any(moments.values()):
        return []
    # Per cent, and days where hours are many.
    last = max(row.hour for rows in moments.values() for row in rows)
    unit, size = ("days", 24.0) if last > 96 else ("hours", 1.0)
    curves, old, metric = list[DrawnCurve](), 100 * plan.manifest["old"], plan.manifest["metric"]
    for place, (name, rows) in enumerate(moments.items()):
        x = np.array([row.hour for row in rows]) / size
        low, value, high = (100 * np.array([getattr(row, end) for row in rows]) for end in ("low", "value", "high"))
        style, band = replace(numbered_style(place), marker=""), Interval(x, low, high)
        curves.append(DrawnCurve(name, name, f"{value[-1]:.1f}", style, x, value, band, is_shown=place < 3))
    ends = np.array([0.0, last / size])
    curves.append(DrawnCurve("old", "old service", f"{old:.1f}", REFERENCE_STYLES["old"], ends, np.full(2, old)))
    over_time = Chart(
        f"{metric} over the backfill", f"{metric} (%)", "end", tuple(curves), x_unit=f"{unit} since the start",
        place=unit, x_range=(0.0, last / size), y_range=range_of(curves),
    )  # fmt: skip
    priced = [row for row in plan.shown if math.isfinite(row.dollars) and math.isfinite(row.point_days)]
    most = 1.05 * max((row.dollars for row in priced), default=0.0)
    if not most > 0:
        return [over_time]
    points = list[DrawnCurve]()
    for place, row in enumerate(priced):
        x, y, style = np.array([row.dollars]), np.array([row.point_days]), numbered_style(place)
        points.append(DrawnCurve(row.name, row.name, _decimal(row.point_days), style, x, y))
    heights = [row.point_days for row in priced]
    room = 0.1 * (max(heights) - min(heights)) or 1.0
    front = Chart(
        "What point-days cost", "point-days", "point-days", tuple(points), x_unit="dollars in all", place="$",
        x_range=(-0.05 * most, most), y_range=(min(heights) - room, max(heights) + room),
    )  # fmt: skip
    return [over_time, front]


def render(plan: PlanResults) -> str:
    """The HTML page."""
    from ray_backfill.page.parts import bind, page_charts, page_environment

    facts = plan.manifest
    return page_environment(Path(__file__).parent).get_template("plan.html.jinja").render(
        **{name: facts[name] for name in ("basis", "next", "command")}, **tables_of(plan),
        **{name: bind(facts[name]) for name in ("sentence", "inequality")},
        answers={question: bind(answer) for question, answer in facts["answers"].items()},
        curves=page_charts(charts_of(plan), "curves"),
    )  # fmt: skip


def markdown(plan: PlanResults) -> str:
    """The same as Markdown."""
    facts = plan.manifest
    lines = [f"# {plan.verdict}", "", f"{facts['inequality']}. {facts['basis']}", ""]
    lines += [f"- **{question}** {answer}" for question, answer in facts["answers"].items()]
    for title, table in tables_of(plan).items():
        if table.rows:
            heads = [head.label for head in table.heads]
            rows = [[cell.text.replace("|", "\\|") for cell in row.cells] for row in table.rows]
            drawn = (f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows))
            lines += ["", f"## {title.replace('_', ' ').capitalize()}", "", *drawn]
    return "\n".join([*lines, "", *(f"    {command}" for command in facts["next"]), ""])
