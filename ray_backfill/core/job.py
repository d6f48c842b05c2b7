"""What this process does, for whoever watches it: Ray's dashboard, lines as JSON, and metrics of epochs."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# The command, its recipe or data, and the folder of its run, as far as they are known.
JOB: dict[str, str] = {}
# Closed when its run ends.
AT_END = ExitStack()
# Called with the folder of a training, an epoch (from 1) and its metrics.
Sink = Callable[[Path, int, Mapping[str, float]], Any]
_sinks: list[Sink] = []


def job_name(*stage: str) -> str:
    """A name that can be part of a path: ``landmarks-train-old`` is a stage of a run of the recipe landmarks."""
    source = JOB.get("recipe") or Path(JOB.get("data", "")).name
    return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, (source, *stage))))


def says_json() -> bool:
    """Whether RAY_BACKFILL_LOG asks for lines as JSON."""
    return os.environ.get("RAY_BACKFILL_LOG") == "json"


def as_line(line: str, level: str = "info", **facts: Any) -> str:
    """The line for standard error: as it is, or an object of time, level (error: of "error: ..."), command and more."""
    if not says_json():
        return line
    message, time = line.removeprefix("error: "), datetime.now(UTC).isoformat(timespec="milliseconds")
    said = {"time": time, "level": "error" if message != line else level, "command": JOB.get("command", "")}
    return json.dumps(said | {"message": message} | facts)


def report(folder: Path, epoch: int, metrics: Mapping[str, float]) -> None:
    """Say the metrics of an epoch of the training whose result is this folder."""
    for sink in _sinks[-1:]:
        sink(folder, epoch, metrics)


@contextmanager
def reported_to(sink: Sink) -> Iterator[None]:
    """Within the block, this process reports epochs to the sink, and to no other."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)
