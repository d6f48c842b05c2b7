"""The checkpoints as a table of texts; a column stands only where it says something."""

from collections.abc import Callable

from ray_backfill.report.live.reading import Checkpoint, Drill
from ray_backfill.report.live.sentences import count, duration, megabytes, milliseconds, points, progress, rate
from ray_backfill.report.wording import percent

SPACE = "\u00a0"  # a heading breaks elsewhere
Column = tuple[str, Callable[[int, Checkpoint], str]]


def checkpoint_table(drill: Drill) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row a checkpoint: quality by the primary metric in per cent, differences in points."""
    columns = _columns(drill)
    rows = [[cell(index, c) for _, cell in columns] for index, c in enumerate(drill.checkpoints)]
    return [name for name, _ in columns], rows


def metric_table(drill: Drill, metric: str) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row a checkpoint: the quality alone, with every digit that decides."""
    names, rows = ["t", "live", "exact", f"live −{SPACE}exact", "replayed", f"live −{SPACE}replayed"], []
    for index, (c, live, exact) in enumerate(zip(drill.checkpoints, *drill.quality[metric], strict=True)):
        promised = drill.promised(c, metric)
        numbers = [percent(live, 2), percent(exact, 2), points(live - exact), percent(promised, 2)]
        rows.append([where(drill.checkpoints, index), *numbers, points(live - promised)])
    return names, rows


def where(checkpoints: tuple[Checkpoint, ...], index: int) -> str:
    """How a row is called: its progress; a rollback's by what it is."""
    checkpoint = checkpoints[index]
    return f"{progress(checkpoint)}, rolled back" if checkpoint.is_rollback else progress(checkpoint)


def _columns(drill: Drill) -> list[Column]:
    primary = drill.quality[drill.primary]
    columns: list[Column] = [
        ("t", lambda i, c: where(drill.checkpoints, i)),
        ("elapsed", lambda i, c: duration(c.elapsed_s)),
        ("live", lambda i, c: percent(primary.live[i])),
        ("exact", lambda i, c: percent(primary.exact[i])),
        (f"−{SPACE}exact", lambda i, c: points(primary.live[i] - primary.exact[i])),
        (f"−{SPACE}replay", lambda i, c: points(primary.live[i] - drill.promised(c, drill.primary))),
    ]
    if not drill.is_exact:
        columns += [
            ("recall old", lambda i, c: percent(c.old_recall)),
            ("recall new", lambda i, c: percent(c.new_recall)),
        ]
    if drill.has_traffic:
        columns += [
            ("p50 ms", lambda i, c: milliseconds(c.p50_ms)),
            ("p95 ms", lambda i, c: milliseconds(c.p95_ms)),
            ("p99 ms", lambda i, c: milliseconds(c.p99_ms)),
            ("queries/s", lambda i, c: rate(c.queries_per_s)),
        ]
    columns += [
        ("items/s", lambda i, c: rate(c.items_per_s)),
        ("old items", lambda i, c: count(c.old_items)),
        ("new items", lambda i, c: count(c.new_items)),
        ("MB", lambda i, c: megabytes(c.old_bytes + c.new_bytes)),
        ("unanswered", lambda i, c: count(c.unanswered)),
        ("retried", lambda i, c: count(c.retried)),
    ]
    if drill.total("violations"):
        columns.append(("violations", lambda i, c: count(c.violations)))
    for name, heading in (("kept_old", "kept old"), ("inserted", "inserted"), ("deleted", "deleted")):
        if any(getattr(c, name) for c in drill.checkpoints):
            columns.append((heading, _counted(name)))
    return columns


def _counted(name: str) -> Callable[[int, Checkpoint], str]:
    return lambda index, checkpoint: count(getattr(checkpoint, name))
