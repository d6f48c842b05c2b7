"""The page of a live drill as one self-contained HTML file."""

from ray_backfill.report.live import figures, panels, sentences, situations
from ray_backfill.report.live.checkpoint_table import checkpoint_table, metric_table
from ray_backfill.report.live.drill_folder import Drill
from ray_backfill.report.live.numbers import count, duration, megabytes, milliseconds, rate
from ray_backfill.report.parts import bind, data_facts, data_uri, flatten, page_environment, picture

MANY_INCIDENTS = 20  # only this many incidents are shown without unfolding


def render(drill: Drill, curves_png: bytes) -> str:
    """The HTML page. ``curves_png``: content of curves.png, so that the page and the file never differ."""
    data, template = drill.facts.data, page_environment().get_template("live/live.html.jinja")
    return template.render(
        drill=drill,
        verdict=_bound(sentences.verdict(drill)),
        details=_bound(" ".join(sentences.details(drill))),
        source=sentences.source(drill),
        facts=_facts(drill),
        alarms=_alarms(drill),
        alarming=sentences.is_alarming(drill),
        curves=data_uri(curves_png),
        timeline=picture(panels.timeline_figure(drill)),
        partitions=picture(figures.partitions_figure(drill)),
        recall=picture(figures.recall_figure(drill)),
        situations=_situations(drill),
        checkpoints=checkpoint_table(drill),
        metrics=[(metric, *metric_table(drill, metric)) for metric in drill.metrics],
        incidents=[(duration(i.elapsed_s), i.kind, i.detail) for i in drill.incidents],
        many=MANY_INCIDENTS,
        data=data_facts(data),
        notes=data.get("notes", []),
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
    facts = {"items at the end": count(last.items)}
    if forward:
        facts["backfilled"] = count(forward[-1].backfilled)
        facts["time"] = duration(last.elapsed_s)
    facts["memory at the end"] = f"{megabytes(last.old_bytes + last.new_bytes)} MB"
    if drill.has_traffic:
        facts["queries answered"] = count(drill.total(lambda c: c.queries))
        facts["unanswered"] = count(drill.total(lambda c: c.unanswered))
    facts["violations"] = count(drill.total(lambda c: c.violations))
    facts["incidents"] = count(len(drill.incidents))
    facts["primary metric"] = drill.primary
    if drill.facts.created:
        facts["run"] = drill.facts.created.replace("T", " ")[:19]
    return facts


def _alarms(drill: Drill) -> list[str]:
    """Alarms, one line per checkpoint."""
    broken = [(c, f"{count(c.violations)} answers violated an invariant") for c in drill.checkpoints if c.violations]
    missing = [(c, f"the partitions serve {sentences.wrong_number(items)}") for c, items in drill.missing]
    return [_bound(f"At {sentences.moment(checkpoint)}: {what}.") for checkpoint, what in broken + missing]


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
