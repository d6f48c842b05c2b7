"""The page of a live drill as one self-contained HTML file."""

from pathlib import Path

from ray_backfill.drill.report import charts, sentences, situations, timeline
from ray_backfill.drill.report.checkpoint_table import checkpoint_table, metric_table
from ray_backfill.drill.report.drill_folder import Drill
from ray_backfill.drill.report.numbers import count, duration, megabytes, milliseconds, rate
from ray_backfill.page.heading import date_of, name_of, recipe_of, top_notes, without_folders
from ray_backfill.page.parts import bind, data_facts, flatten, page_charts, page_environment
from ray_backfill.page.sections import Cell, Head, PageTable, TableRow, text_table

SITUATION_HEADS = ["phase", "seconds", "p50 (ms)", "p99 (ms)", "queries per second", "items per second", "unanswered"]
MANY_INCIDENTS = 20  # only this many incidents are shown without unfolding


def render(drill: Drill) -> str:
    """The HTML page."""
    invented, notes = top_notes(drill.facts.data, drill.facts.data.get("notes", []))
    data, template = drill.facts.data, page_environment(Path(__file__).parent).get_template("live.html.jinja")
    return template.render(
        drill=drill,
        verdict=_bound(sentences.verdict(drill)),
        details=_bound(" ".join(sentences.details(drill))),
        source=sentences.source(drill),
        facts=_facts(drill),
        alarms=_alarms(drill),
        alarming=sentences.is_alarming(drill),
        invented=invented,
        name=name_of(data),
        curves=page_charts(charts.quality_charts(drill), "quality"),
        timeline=page_charts(timeline.timeline_charts(drill), "time"),
        partitions=page_charts(charts.partition_charts(drill), "partitions"),
        recall=page_charts(charts.recall_charts(drill), "recall"),
        situations=text_table("Latency in each phase", SITUATION_HEADS, _situations(drill)),
        checkpoints=text_table("All checkpoints", *checkpoint_table(drill), css="dense"),
        metrics=[
            (metric, text_table(f"{metric} at every checkpoint", *metric_table(drill, metric)))
            for metric in drill.metrics
        ],
        incidents=_incidents(drill, MANY_INCIDENTS),
        all_incidents=_incidents(drill, len(drill.incidents)) if len(drill.incidents) > MANY_INCIDENTS else None,
        command=without_folders(drill.facts.command),
        data=data_facts(data),
        notes=notes,
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


def _alarms(drill: Drill) -> list[str]:
    """Alarms, one line per checkpoint."""
    broken = [(c, f"{count(c.violations)} answers violated an invariant") for c in drill.checkpoints if c.violations]
    missing = [(c, f"the partitions serve {sentences.wrong_number(items)}") for c, items in drill.missing]
    return [_bound(f"At {sentences.moment(checkpoint)}: {what}.") for checkpoint, what in broken + missing]


def _incidents(drill: Drill, most: int) -> PageTable:
    """The first incidents."""
    heads = [Head(name, "name") for name in ("time", "incident", "details")]
    rows = [
        TableRow(
            "", [Cell(duration(i.elapsed_s)), Cell(i.kind, css="name"), Cell(without_folders(i.detail), css="name")]
        )
        for i in drill.incidents[:most]
    ]
    return PageTable("Incidents", heads, rows)


def _situations(drill: Drill) -> list[list[str]]:
    """Rows for a typical second before, during and after the backfill; [] without traffic."""
    if not drill.has_traffic:
        return []
    lines = []
    for s in situations.situations(drill).values():
        latency = [milliseconds(s.p50_ms), milliseconds(s.p99_ms)]
        lines.append(
            [s.name, count(s.seconds), *latency, rate(s.queries_per_s), rate(s.items_per_s), count(s.unanswered)]
        )
    return lines
