"""The checkpoints as a table of strings; uninformative columns are left out."""

from collections.abc import Callable

from ray_backfill.drill.report.drill_folder import Drill
from ray_backfill.drill.report.numbers import count, duration, megabytes, milliseconds, points, progress, rate
from ray_backfill.drill.tables import CheckpointRow, QualityRow
from ray_backfill.page.numbers import percent

SPACE = "\u00a0"  # keeps a heading from breaking here
# Heading, whether the column is shown, and the cell of a row.
Column = tuple[str, bool, Callable[[CheckpointRow, QualityRow], str]]


def checkpoint_table(drill: Drill) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row per checkpoint: quality in the primary metric in per cent, differences in points."""
    approximate, traffic = not drill.facts.is_exact, drill.has_traffic
    columns: list[Column] = [
        ("t", True, lambda c, q: where(c)),
        ("elapsed", True, lambda c, q: duration(c.elapsed_s)),
        ("live", True, lambda c, q: percent(q.live)),
        ("exact", True, lambda c, q: percent(q.exact)),
        (f"−{SPACE}exact", True, lambda c, q: points(q.live - q.exact)),
        (f"−{SPACE}replay", True, lambda c, q: points(q.live - drill.promised(c, drill.primary))),
        ("recall old", approximate, lambda c, q: percent(c.old_recall)),
        ("recall new", approximate, lambda c, q: percent(c.new_recall)),
        ("p50 ms", traffic, lambda c, q: milliseconds(c.p50_ms)),
        ("p95 ms", traffic, lambda c, q: milliseconds(c.p95_ms)),
        ("p99 ms", traffic, lambda c, q: milliseconds(c.p99_ms)),
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
        numbers = [percent(q.live, 2), percent(q.exact, 2), points(q.live - q.exact), percent(promised, 2)]
        rows.append([where(checkpoint), *numbers, points(q.live - promised)])
    return names, rows


def where(checkpoint: CheckpointRow) -> str:
    """The label of a row: its progress, marked if it follows a rollback."""
    return f"{progress(checkpoint)}, rolled back" if checkpoint.is_rollback else progress(checkpoint)
