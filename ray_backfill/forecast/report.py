"""A forecast for readers: sentences, the table of the terminal, the figure, the page. Recomputes nothing.

print_forecast(Path("runs/mine/forecast"))

Reading results needs neither matplotlib nor jinja2 nor rich: the functions that write and print import them.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ray_backfill.compare.report.verdict import plan_command
from ray_backfill.compare.selection import of_metrics
from ray_backfill.compare.tables import NEW, OLD
from ray_backfill.core.outcome import Decision, as_typed, json_value
from ray_backfill.core.schema import frame, read_manifest, read_table, rows_of
from ray_backfill.forecast.settings import few_in_words
from ray_backfill.forecast.tables import TABLES, CalibrationRow, ForecastDifference, ForecastPoint, ForecastRow
from ray_backfill.page import Difference
from ray_backfill.page.charts import FAINT, INK, REFERENCE_STYLES, Chart, DrawnCurve, Interval, numbered_style, range_of
from ray_backfill.page.numbers import NOTHING, count, html_table, interval, percent, percent_sign
from ray_backfill.page.sections import PageTable, text_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_AGAIN = "run forecast again"
COLUMNS = (
    "± half of the 95 % interval: of other samples of items, with the same queries; that of simulate is of other "
    "queries. gain: the share of the upgrade's improvement that users get on average (– = new is not clearly better "
    "than old), with CSLS that of both with it. start: exact. largest fall: the largest drop to a later moment, "
    "or its limits. to halve: further items that would halve the interval of the average; – if half of the gallery is "
    "not enough."
)
NAMES = ("method", "order", "average", "gain", "start", "end", "largest fall", "to halve")
# If the chosen queries have as many different lists of right answers or fewer, intervals may be too narrow.
FEW_LISTS = 50
# Above this recall, intervals of 95 % held 86 to 97 % (docs/results/forecast.md).
HIGH_RECALL = 0.9


@dataclass(frozen=True, repr=False)
class ForecastResults:
    """What ``forecast`` returns; shows itself as a table in a notebook.

    Attributes:
        manifest: Settings, sizes, and what was left out and why.
        points: The curves.
        rows: The lines of the summary.
        differences: Differences of AUCs with their paired intervals.
        calibration: How well the model of unsampled items predicts the sample.
    """

    manifest: Mapping[str, Any]
    points: Sequence[ForecastPoint]
    rows: Sequence[ForecastRow]
    differences: Sequence[ForecastDifference]
    calibration: Sequence[CalibrationRow]
    is_kept: bool = field(default=True, kw_only=True)

    @property
    def summary(self) -> pd.DataFrame:
        """One row for each method, order and metric: AUC, gain, start, end and more with their limits, as shares."""
        return frame(ForecastRow, self.rows)

    @property
    def frame(self) -> pd.DataFrame:
        """The curves as a tidy table: method, order, metric, t, value, low, high; shares."""
        return frame(ForecastPoint, self.points)

    def show(self, folder: Path | None = None) -> None:
        """Print the table that the command prints: one row for each method and order, and what limits the forecast.

        folder: of the forecast, to name the command that plans the upgrade.
        """
        from rich.table import Table
        from rich.text import Text

        from ray_backfill.page.layout import show

        table = Table(title=title(self), title_justify="left")
        for index, name in enumerate(NAMES):
            table.add_column(Text(name), justify="left" if index < 2 else "right", no_wrap=index >= 2, overflow="fold")
        for order in self.orders:
            for row in self.of(self.metrics[0], order):
                table.add_row(*map(Text, cells(row)))
            table.add_section()
        before = [Text(sentence, "bold") for sentence in findings(self)]
        before += [Text(sentence, "yellow") for sentence in warnings(self)]
        report = "report.html" if self.is_kept else "report.html of a run with out=..."
        notes = [Text(width(self.of(self.metrics[0], self.orders[0])))]
        if others := self.metrics[1:]:
            notes.append(Text(f"Other metrics, in {report}: {', '.join(others)}."))
        if left_out := self.manifest.get("left_out"):
            notes.append(Text(f"Left out: {', '.join(left_out)} ({report} says why)."))
        if command := next_command(self):
            notes.append(Text(f"to halve the interval of the first row: {command}", "bold"))
        if folder is not None and decide(self) is not Decision.STOP:
            notes.append(Text(f"to plan it: {as_typed(plan_command(folder))}", "bold"))
        notes.append(Text(COLUMNS, "dim"))
        show(None, table, notes, 2, f"{report} or {'summary.parquet' if self.is_kept else '.summary'}", before)

    def plot(self) -> "Figure":
        """Draw the curves with their 95 % intervals. Needs matplotlib."""
        from ray_backfill.page.drawing import panels_figure

        return panels_figure(charts_of(self))

    def _repr_html_(self) -> str:
        table = pd.DataFrame(rows_in(self, self.metrics[0]), columns=list(NAMES))
        return html_table(title(self), table, [*warnings(self), *findings(self)])

    def __repr__(self) -> str:
        return f"{heading(self)}; {len({row.method for row in self.rows})} methods; .show(), .plot(), .summary, .frame"

    @property
    def is_exact(self) -> bool:
        """Whether the new embedding of every item is known."""
        return bool(self.manifest["known"] == self.manifest["items"])

    @property
    def metrics(self) -> list[str]:
        """The metrics, the primary one first."""
        return list(self.manifest["evaluation"]["metrics"])

    @property
    def orders(self) -> list[str]:
        """The orders."""
        return list(dict.fromkeys(row.order for row in self.rows))

    def of(self, metric: str, order: str) -> list[ForecastRow]:
        """The rows of a metric in an order, the highest AUC first."""
        rows = [row for row in self.rows if (row.metric, row.order) == (metric, order)]
        return sorted(rows, key=lambda row: -row.auc)

    def pairs(self, metric: str, order: str) -> list[ForecastDifference]:
        """The differences of all pairs of methods in a metric and an order, the better method of each pair first."""
        rank = {row.method: place for place, row in enumerate(self.of(metric, order))}
        pairs = [
            pair if rank[pair.method] < rank[pair.other_method] else replace(
                pair, method=pair.other_method, other_method=pair.method, difference=-pair.difference,
                low=-pair.high, high=-pair.low,
            )
            for pair in self.differences if (pair.metric, pair.order) == (metric, order)
        ]  # fmt: skip
        return sorted(pairs, key=lambda pair: (rank[pair.method], rank[pair.other_method]))


def read_forecast(folder: Path) -> ForecastResults:
    """Read a folder that ``forecast`` wrote. Raises InputError if a file is missing or broken."""
    manifest = read_manifest(folder / "manifest.json", ("evaluation", "items", "known", "old", "new"), _AGAIN)
    read = partial(read_table, again=_AGAIN, may_be_empty=True)
    tables: Iterator[list[Any]] = (
        rows_of(kind, read(folder / f"{name}.parquet", kind)) for name, kind in TABLES.items()
    )
    return ForecastResults(manifest, *tables)


def write_forecast_report(folder: Path) -> None:
    """Write ``curves.png`` and ``report.html`` from the tables of a forecast. Raises InputError if one is missing."""
    from ray_backfill.page.parts import write_pages

    forecast = read_forecast(folder)
    write_pages(folder, lambda: charts_of(forecast), lambda: render(forecast))


def print_forecast(folder: Path) -> None:
    """Print one row per method and order, and what decides the width of the intervals."""
    read_forecast(folder).show(folder)


def cells(row: ForecastRow) -> list[str]:
    """The texts of a row, in the order of ``NAMES``."""
    low, high = percent(row.largest_fall_low), percent(row.largest_fall_high)
    fall = low if low == high else f"{low} to {high}" if row.largest_fall_low else f"at most {high}"
    return [
        row.title, row.order, _with(row, "auc"), _with(row, "gain", sign=True), percent(row.start), _with(row, "end"),
        fall, count(row.to_halve),
    ]  # fmt: skip


def _with(row: ForecastRow, name: str, sign: bool = False) -> str:
    """A figure of a row with half of its interval; the wider half, where it ends at 0 or 1."""
    value, low, high = (getattr(row, column) for column in (name, f"{name}_low", f"{name}_high"))
    shown = percent_sign if sign else percent
    return f"{shown(value)} ± {percent(max(high - value, value - low))}" if math.isfinite(value) else NOTHING


def heading(forecast: ForecastResults) -> str:
    """What the forecast was made of."""
    facts = forecast.manifest
    known, items, queries = facts["known"], facts["items"], facts["queries"]
    if forecast.is_exact:
        return f"Exact, from all {items:,} new embeddings, judged by {queries:,} queries"
    judged = f"judged by {facts['chosen']:,} of {queries:,} queries"
    return f"Forecast from {known:,} of {items:,} new embeddings ({percent(known / items)} %), {judged}"


def findings(forecast: ForecastResults) -> list[str]:
    """The decision, what the sample shows of the first results, the best method of each order, and old and new."""
    metric, several, first = forecast.metrics[0], len(forecast.orders) > 1, forecast.manifest.get("first_results")
    of_side = {1: "is better", -1: "is worse", 0: "is not distinguishable from the old one"}
    said = [f"{decide(forecast).value.capitalize()}: by {metric} the new model {of_side[_side(forecast, metric)]}"]
    said += [f"by {name} it {of_side[side]}" for name, side in _against(forecast).items()]
    sentences = [f"{', but '.join(said)}."]
    for order in forecast.orders:
        if lead := _lead(forecast, metric, order):
            sentences.append(f"In the order {order}, {lead}" if several else lead)
    sentences.append(ends(forecast, metric))
    if first and not forecast.is_exact:  # what the metric does not see, and what the sample shows of it
        more, low, high = first["more"]
        sentences.append(
            f"{metric} counts every right answer in its range alike, and does not see who comes first. Among the "
            f"{first['items']:,} items drawn at random, {first['metric']} of {first['queries']:,} queries is "
            f"{percent(first['old'])} % by the old model and {percent(first['new'])} % by the new one: a difference of "
            f"{percent(more)} points (from {percent(low)} to {percent(high)}), no estimate of that in the gallery."
        )
    return sentences


def _lead(forecast: ForecastResults, metric: str, order: str) -> str:
    """A sentence: the method with the highest AUC, and over what its lead may be chance. "" if there is no other."""
    best, *rest = forecast.of(metric, order)
    first = f"{best.title} has the highest {metric} on average"
    # The old service, and with CSLS if a method has it, with what old and new have.
    services = {"the old service": forecast.manifest}
    if with_csls := forecast.manifest.get("with_csls"):
        services["the old service with CSLS"] = with_csls
    name, ends = max(services.items(), key=lambda item: item[1]["old"][metric])
    old, new = ends["old"][metric], ends["new"][metric]
    if best.auc_high < old:
        is_better = _side(forecast, metric) > 0 and new[1] > old
        then = ": switch all at once at the end" if is_better else ""
        return f"{first} among the methods ({percent(best.auc)} %), but {name} has more ({percent(old)} %){then}."
    apart = {pair.other_method for pair in forecast.pairs(metric, order) if pair.method == best.method and pair.low > 0}
    close = [row.title for row in rest if row.method not in apart]
    close += [f"{name} ({percent(old)} %)"] if best.auc_low <= old else []
    if not rest and (forecast.is_exact or not close):
        return ""
    if forecast.is_exact:
        return f"{first}."
    if not close:
        return f"{first}; the sample shows that it is better than every other method."
    return f"{first}; the sample does not show that it is better than {'; '.join(close)}."


def _against(forecast: ForecastResults) -> dict[str, int]:
    """The sides of metrics, and of the sample's first results, that contradict the first metric about the new model."""
    first_metric, *others = forecast.metrics
    sides = {metric: _side(forecast, metric) for metric in others}
    if first := forecast.manifest.get("first_results"):
        sides[f"the sample's {first['metric']}"] = Difference(*first["more"]).side
    return {name: side for name, side in sides.items() if side not in (0, _side(forecast, first_metric))}


def _side(forecast: ForecastResults, metric: str) -> int:
    """1 if the new model is better, -1 if it is worse, 0 if the interval leaves that open."""
    old, (value, low, high) = forecast.manifest["old"][metric], forecast.manifest["new"][metric]
    return Difference(value - old, low - old, high - old).side


def decide(forecast: ForecastResults) -> Decision:
    """Whether to go ahead, by the primary metric; undecided if another one or the first results contradict it."""
    if _against(forecast):
        return Decision.OPEN
    return {1: Decision.GO, 0: Decision.OPEN, -1: Decision.STOP}[_side(forecast, forecast.metrics[0])]


def as_json(folder: Path) -> dict[str, Any]:
    """A forecast for programs, as docs/schema/forecast.json describes it; shares, 1.0 = 100 %."""
    forecast = read_forecast(folder)
    document = {
        "schema": 1,
        "decision": decide(forecast),
        "basis": heading(forecast),
        "findings": findings(forecast),
        "warnings": warnings(forecast),
        "primary_metric": forecast.metrics[0],
        "known": forecast.manifest["known"],
        "gallery_items": forecast.manifest["items"],
        "old": forecast.manifest["old"],
        "new": forecast.manifest["new"],
        "with_csls": forecast.manifest.get("with_csls"),
        "results": [asdict(row) for row in forecast.rows],
        "left_out": forecast.manifest.get("left_out", {}),
        "first_results": forecast.manifest.get("first_results"),
        "next_command": next_command(forecast),
        "folder": str(folder),
    }
    return {name: json_value(value) for name, value in document.items()}


def ends(forecast: ForecastResults, metric: str) -> str:
    """The old service and the new model in this metric."""
    value, low, high = forecast.manifest["new"][metric]
    old = forecast.manifest["old"][metric]
    limits = f" (from {percent(low)} to {percent(high)})" if high > low else ""
    said = f"{metric}: the old service has {percent(old)} %, the new model alone {percent(value)} %{limits}"
    if with_csls := forecast.manifest.get("with_csls"):
        said += f"; with CSLS, {percent(with_csls['old'][metric])} % and {percent(with_csls['new'][metric][0])} %"
    return f"{said}."


def width(rows: Sequence[ForecastRow]) -> str:
    """What the width of the intervals comes from, as the mean over rows."""
    shares = [sum(getattr(row, part) for row in rows) / len(rows) for part in ("of_queries", "of_answers", "of_model")]
    if not all(map(math.isfinite, shares)):
        return "Everything is known: the curves are exact."
    of_queries, of_answers, of_model = (percent(share, 0) for share in shares)
    return (
        f"Over all methods, the variance of the average comes from the choice of queries ({of_queries} %), the "
        f"choice of right answers ({of_answers} %), the model of items that were not sampled ({of_model} %)."
    )


def warnings(forecast: ForecastResults) -> list[str]:
    """What makes the forecast doubtful."""
    from ray_backfill.engine.metrics import parse_metric

    sentences = []
    for method, ratio in dict.fromkeys((row.method, row.ratio) for row in forecast.calibration if row.is_off):
        sentences.append(
            f"{method}: among the items sampled at random, {ratio:.2f} times as many are closer than right answers "
            "as expected. Numbers are corrected as far as the sample is certain of that, and intervals are wider."
        )
    recalls = [row for row in forecast.rows if parse_metric(row.metric).kind == "recall"]
    high = dict.fromkeys(row.metric for row in recalls if row.end > HIGH_RECALL)
    sentences += [
        f"{metric} is above {percent(HIGH_RECALL, 0)} %: few misses are sampled, and its intervals are too narrow."
        for metric in high
    ]
    sentences += [
        f"{metric} counts all right answers. On short texts with 100 of them, 48 % of its intervals held the end, and "
        "94 % of those of mAP@100 (docs/results/forecast.md)."
        for metric in forecast.metrics if parse_metric(metric).k is None and not forecast.is_exact
    ]  # fmt: skip
    # Methods that start below the old service, or end below the new model alone, in the primary metric.
    metric, margin = forecast.metrics[0], forecast.manifest["evaluation"]["margin"]
    old = forecast.manifest["old"][metric]
    rows = {row.method: row for row in forecast.of(metric, forecast.orders[0])}.values()
    if starts := [f"{row.title} ({percent(row.start)} %)" for row in rows if row.start < old - margin]:
        sentences.append(f"Start below the old service ({percent(old)} %): {', '.join(starts)}.")
    if worse := [
        f"{row.title} (by {percent(-row.end_vs_new)} ± {percent(row.end_vs_new_high - row.end_vs_new)} points)"
        for row in rows if row.end_vs_new_high < -margin
    ]:  # fmt: skip
        sentences.append(f"End below the new model alone, with the same merge: {', '.join(worse)}.")
    if forecast.manifest["lists"] <= FEW_LISTS and not forecast.is_exact:
        sentences.append(
            f"The chosen queries have only {forecast.manifest['lists']} different lists of right answers: intervals "
            "are wide, and may be too narrow. Extend the sample: a larger --budget, or sample --add."
        )
    if (few := forecast.manifest.get("parts_with_few")) and not forecast.is_exact:
        sentences.append(f"{few_in_words(few, forecast.manifest['evaluation']['filter'])}.")
    return sentences


def title(forecast: ForecastResults) -> str:
    """The title of the table."""
    return f"{heading(forecast)}; {forecast.metrics[0]} in per cent"


def rows_in(forecast: ForecastResults, metric: str) -> list[list[str]]:
    """The texts of each method and order in a metric."""
    return [cells(row) for order in forecast.orders for row in forecast.of(metric, order)]


def next_command(forecast: ForecastResults) -> str:
    """The command that halves the interval of the best method, or "" if no sample does."""
    best, command = forecast.of(forecast.metrics[0], forecast.orders[0])[0], forecast.manifest["command"]
    if not math.isfinite(best.to_halve) or "forecast" not in command:
        return ""
    if command.startswith("rb.forecast("):
        return command.replace("rb.forecast", "rb.sample").replace("...", f"add={best.to_halve:.0f}")
    words = shlex.split(command)
    if "--old" in words:  # of two models: a larger budget extends the sample
        at = words.index("--budget") if "--budget" in words else len(words)
        return shlex.join(
            [*words[:at], *words[at + 2 :], "--budget", f"{forecast.manifest['known'] + best.to_halve:.0f}"]
        )
    data = words[words.index("--data") + 1] if "--data" in words else words[2]
    elsewhere = ["--out", words[words.index("--sample") + 1]] if "--sample" in words else []
    return shlex.join(["ray-backfill", "sample", data, "--add", f"{best.to_halve:.0f}", *elsewhere])


def charts_of(forecast: ForecastResults) -> list[Chart]:
    """A chart for each metric and order."""
    methods, charts = list(dict.fromkeys(row.method for row in forecast.rows)), []
    for metric, order in product(forecast.metrics, forecast.orders):
        curves = [_flat(metric, name, forecast.manifest) for name in (NEW, OLD)]
        if with_csls := forecast.manifest.get("with_csls"):
            curves += [_flat(metric, name, with_csls, " + csls", INK) for name in (NEW, OLD)]
        for row in forecast.of(metric, order):
            points = [p for p in forecast.points if (p.method, p.order, p.metric) == (row.method, order, metric)]
            t, value, low, high = (
                100 * np.array([getattr(point, name) for point in points]) for name in ("t", "value", "low", "high")
            )
            style, band = numbered_style(methods.index(row.method)), Interval(t, low, high)
            curves.append(DrawnCurve(row.method, row.title, _with(row, "auc"), style, t, value, band))
        several = f", {order} order" if len(forecast.orders) > 1 else ""
        choices = [name for name, names in ((metric, forecast.metrics), (order, forecast.orders)) if len(names) > 1]
        charts.append(
            Chart(
                f"Forecast of {metric} during the backfill{several}", f"{metric} (%)", "average", tuple(curves),
                tuple(choices), y_range=range_of(curves),
            )
        )  # fmt: skip
    return charts


def _flat(metric: str, name: str, own: Mapping[str, Any], suffix: str = "", colour: str = FAINT) -> DrawnCurve:
    """The line of old or new alone. own: what both have."""
    title, limits = (
        ("new model alone", own["new"][metric]) if name == NEW else ("old service", [own["old"][metric]] * 3)
    )
    ends, style = np.array([0.0, 100.0]), replace(REFERENCE_STYLES[name], colour=colour)
    value, low, high = (np.full(2, 100 * share) for share in limits)
    band = Interval(ends, low, high) if name == NEW else None
    return DrawnCurve(name + suffix, title + suffix, percent(limits[0]), style, ends, value, band)


def render(forecast: ForecastResults) -> str:
    """The HTML page."""
    from ray_backfill.page.parts import bind, flatten, page_charts, page_environment

    facts, titles = forecast.manifest, {row.method: row.title for row in forecast.rows}
    differences = []
    for metric, order in product(forecast.metrics, forecast.orders):
        rows = [
            [
                titles[d.method], titles[d.other_method], percent(d.difference), interval(d.low, d.high),
                "yes" if d.low > 0 or d.high < 0 else "no",
            ]
            for d in forecast.pairs(metric, order)
        ]  # fmt: skip
        if rows:
            heads = ("method", "other", "points", "95 % interval", "excludes 0")
            table = text_table(f"differences of methods in {metric}, order {order}", heads, rows)
            differences.append((metric + f", order {order}" * (len(forecast.orders) > 1), table))
    return page_environment(Path(__file__).parent).get_template("forecast.html.jinja").render(
        heading=bind(heading(forecast)),
        warnings=[bind(sentence) for sentence in warnings(forecast)],
        answers=[bind(sentence) for sentence in findings(forecast)],
        ends=[bind(ends(forecast, metric)) for metric in forecast.metrics[1:]],
        curves=page_charts(charts_of(forecast), "curves"),
        columns=bind(COLUMNS),
        numbers=[
            (metric, text_table(f"forecast of {metric}", NAMES, rows_in(forecast, metric), "cards"))
            for metric in forecast.metrics
        ],
        widths=[bind(f"{metric}: {width(forecast.of(metric, forecast.orders[0]))}") for metric in forecast.metrics],
        differences=differences,
        calibration=_calibration(forecast),
        left_out=list(facts.get("left_out", {}).items()),
        notes=[bind(note) for note in facts.get("notes", [])],
        glossary=of_metrics(forecast.metrics),
        command=facts["command"],
        settings=[*flatten(facts["evaluation"]), *flatten(facts.get("data", {}))],
    )  # fmt: skip


def _calibration(forecast: ForecastResults) -> PageTable:
    """One line for each range; methods whose backfilled items are served alike share their lines."""
    titles = {row.method: row.title for row in forecast.rows}
    methods: dict[tuple[str, ...], list[str]] = {}
    for row in forecast.calibration:
        ends = f"{row.expected_from:g} to {row.expected_to:g}".replace(" to inf", " or more")
        line = (ends, f"{row.answers:,}", f"{row.expected:.2f}", f"{row.observed:.2f}")
        methods.setdefault(line, []).append(titles[row.method])
    rows = [["; ".join(names), *line] for line, names in methods.items()]
    heads = ("methods", "expected", "right answers", "mean expected", "mean observed")
    return text_table("calibration of the model of other items", heads, rows)
