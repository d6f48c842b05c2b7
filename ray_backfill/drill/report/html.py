"""The page of a live drill as one self-contained HTML file."""

import math
from collections.abc import Callable
from pathlib import Path

from ray_backfill.drill.report import charts, sentences
from ray_backfill.drill.report.drill_folder import Drill
from ray_backfill.drill.tables import CheckpointRow, QualityRow
from ray_backfill.page.heading import date_of, name_of, recipe_of, top_notes, without_folders
from ray_backfill.page.numbers import count, duration, megabytes, milliseconds, percent, rate, signed_points
from ray_backfill.page.parts import bind, data_facts, flatten, page_charts, page_environment
from ray_backfill.page.sections import Cell, table_of, text_table, word

PHASE_HEADS = ["phase", "seconds", "p50 (ms)", "p99 (ms)", "answered", "queries/s", "unanswered", "items", "items/s"]
SPACE = "\u00a0"  # keeps a heading from breaking here
FEW = "few"  # requests, too few for a quantile
MANY_INCIDENTS = 20  # only this many incidents are shown without unfolding


def render(drill: Drill) -> str:
    """The HTML page."""
    invented, notes = top_notes(drill.facts.data.get("notes", []))
    alarms = [(c, f"{count(c.violations)} answers violated an invariant") for c in drill.checkpoints if c.violations]
    alarms += [(c, f"the partitions serve {sentences.wrong_number(items)}") for c, items in drill.missing]
    incidents = [(Cell(duration(i.elapsed_s)), word(i.kind), word(without_folders(i.detail))) for i in drill.incidents]
    lines = [[*zip(("time", "incident", "details"), row, strict=True)] for row in incidents]
    data, template = drill.facts.data, page_environment(Path(__file__).parent).get_template("live.html.jinja")
    return template.render(
        drill=drill,
        verdict=_bound(sentences.verdict(drill)),
        details=_bound(" ".join(sentences.details(drill))),
        source=sentences.source(drill),
        facts=_facts(drill),
        alarms=[_bound(f"At {sentences.moment(checkpoint)}: {what}.") for checkpoint, what in alarms],
        alarming=sentences.is_alarming(drill),
        invented=invented,
        name=name_of(data),
        curves=page_charts(charts.quality_charts(drill), "quality"),
        timeline=page_charts(charts.timeline_charts(drill), "time"),
        partitions=page_charts(charts.partition_charts(drill), "partitions"),
        recall=page_charts(charts.recall_charts(drill), "recall"),
        phases=text_table("Latency in each phase", PHASE_HEADS, _phases(drill)),
        checkpoints=text_table("All checkpoints", *checkpoint_table(drill), css="dense"),
        metrics=[
            (metric, text_table(f"{metric} at every checkpoint", *metric_table(drill, metric)))
            for metric in drill.metrics
        ],
        incidents=[table_of("Incidents", some, css="") for some in (lines[:MANY_INCIDENTS], lines) if some],
        command=without_folders(drill.facts.command),
        data=data_facts(data),
        notes=notes,
        known=[without_folders(remark) for remark in data.get("remarks", ())],
        timings=[(stage, f"{seconds:.1f}") for stage, seconds in drill.facts.timings_s.items()],
        settings=list(flatten(drill.settings)),
        glossary=sentences.glossary(drill),
    )


def _bound(sentence: str) -> str:
    """Keep numbers and their unit on one line."""
    for unit in ("ms", "min", "s", "h", "points"):
        for end in (" ", ".", ",", ";", ")"):
            sentence = sentence.replace(f" {unit}{end}", f"\u00a0{unit}{end}")
    return bind(sentence).replace("t = ", "t\u00a0=\u00a0")


def _facts(drill: Drill) -> dict[str, str]:
    """The key figures at the top of the page."""
    last, forward = drill.checkpoints[-1], drill.forward
    head = {
        "data set": name_of(drill.facts.data),
        "recipe": recipe_of(drill.facts.data),
        "date": date_of(drill.facts.created),
    }
    facts = {name: value for name, value in head.items() if value} | {"items at the end": count(last.items)}
    if forward:
        facts["backfilled"] = count(forward[-1].backfilled)
        facts["time"] = duration(last.elapsed_s)
    facts["memory at the end"] = f"{megabytes(last.old_bytes + last.new_bytes)} MB"
    if drill.has_traffic:
        facts["queries answered"] = count(drill.total(lambda c: c.queries))
        facts["unanswered"] = count(drill.total(lambda c: c.unanswered))
    facts["violations"] = count(drill.total(lambda c: c.violations))
    facts["incidents"] = count(len(drill.incidents))
    return facts | {"primary metric": drill.primary}


def _phases(drill: Drill) -> list[list[str]]:
    """One row per phase; [] without traffic. Counts add up to those of the whole drill."""
    if not drill.has_traffic:
        return []
    return [
        [
            *(p.phase, f"{p.seconds:,.1f}", wait(p.p50_ms, p.requests), wait(p.p99_ms, p.requests), count(p.queries)),
            *(rate(p.queries_per_s), count(p.unanswered), count(p.items), rate(p.items_per_s)),
        ]
        for p in drill.phases.values()
    ]


def wait(latency_ms: float, requests: int) -> str:
    """A latency, or that the requests were too few for it."""
    return FEW if math.isnan(latency_ms) and requests else milliseconds(latency_ms)


def checkpoint_table(drill: Drill) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row per checkpoint: quality in the primary metric in per cent, differences in points."""
    approximate, traffic = not drill.facts.is_exact, drill.has_traffic
    # Heading, whether the column is shown, and the cell of a row.
    columns: list[tuple[str, bool, Callable[[CheckpointRow, QualityRow], str]]] = [
        ("t", True, lambda c, q: where(c)),
        ("elapsed", True, lambda c, q: duration(c.elapsed_s)),
        ("live", True, lambda c, q: percent(q.live)),
        ("exact", True, lambda c, q: percent(q.exact)),
        (f"−{SPACE}exact", True, lambda c, q: signed_points(q.live - q.exact)),
        (f"−{SPACE}replay", True, lambda c, q: signed_points(q.live - drill.promised(c, drill.primary))),
        ("recall old", approximate, lambda c, q: percent(c.old_recall)),
        ("recall new", approximate, lambda c, q: percent(c.new_recall)),
        ("p50 ms", traffic, lambda c, q: wait(c.p50_ms, c.queries + c.unanswered)),
        ("p95 ms", traffic, lambda c, q: wait(c.p95_ms, c.queries + c.unanswered)),
        ("p99 ms", traffic, lambda c, q: wait(c.p99_ms, c.queries + c.unanswered)),
        ("queries/s", traffic, lambda c, q: rate(c.queries_per_s)),
        ("items/s", True, lambda c, q: rate(c.items_per_s)),
        ("old items", True, lambda c, q: count(c.old_items)),
        ("new items", True, lambda c, q: count(c.new_items)),
        ("MB", True, lambda c, q: megabytes(c.old_bytes + c.new_bytes)),
        ("unanswered", True, lambda c, q: count(c.unanswered)),
        ("retried", True, lambda c, q: count(c.retried)),
        ("violations", drill.total(lambda c: c.violations) > 0, lambda c, q: count(c.violations)),
        ("kept old", drill.total(lambda c: c.kept_old) > 0, lambda c, q: count(c.kept_old)),
        ("inserted", drill.total(lambda c: c.inserted) > 0, lambda c, q: count(c.inserted)),
        ("deleted", drill.total(lambda c: c.deleted) > 0, lambda c, q: count(c.deleted)),
    ]
    shown = [(name, cell) for name, is_shown, cell in columns if is_shown]
    both = list(zip(drill.checkpoints, drill.quality[drill.primary], strict=True))
    return [name for name, _ in shown], [[cell(c, q) for _, cell in shown] for c, q in both]


def metric_table(drill: Drill, metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row per checkpoint: quality only, with more digits."""
    names, rows = ["t", "live", "exact", f"live −{SPACE}exact", "replayed", f"live −{SPACE}replayed"], []
    for checkpoint, q in zip(drill.checkpoints, drill.quality[metric], strict=True):
        promised = drill.promised(checkpoint, metric)
        numbers = [percent(q.live, 2), percent(q.exact, 2), signed_points(q.live - q.exact), percent(promised, 2)]
        rows.append([where(checkpoint), *numbers, signed_points(q.live - promised)])
    return names, rows


def where(checkpoint: CheckpointRow) -> str:
    """The label of a row: its progress, marked if it follows a rollback."""
    return sentences.progress(checkpoint) + (", rolled back" if checkpoint.is_rollback else "")
