"""What this process does, for whoever watches it: Ray's dashboard, lines as JSON, and metrics of epochs."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """What this process does; "" where it is not known. data: its folder, or address. out: the folder of the run."""

    command: str = ""
    command_line: str = ""
    recipe: str = ""
    data: str = ""
    out: str = ""

    @property
    def known(self) -> dict[str, str]:
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class TrainedEpoch:
    """An epoch of a training. folder: of what is trained. number: from 1. metrics: at least loss and items_per_s."""

    folder: Path
    number: int
    metrics: Mapping[str, float]


# Closed when the run ends.
AT_END = ExitStack()
Sink = Callable[[TrainedEpoch], Any]
_job = Job()
_sinks: list[Sink] = []


def current_job() -> Job:
    """What is known of the job of this process."""
    return _job


def say_job(**known: str) -> None:
    """Fields of ``Job`` that have become known."""
    global _job
    _job = replace(_job, **known)


def job_name(*stage: str) -> str:
    """A name that can be part of a path: ``landmarks-train-old`` is a stage of a run of the recipe landmarks."""
    source = _job.recipe or Path(_job.data).name
    return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, (source, *stage))))


def says_json() -> bool:
    """Whether RAY_BACKFILL_LOG asks for lines as JSON."""
    return os.environ.get("RAY_BACKFILL_LOG") == "json"


def as_line(line: str, level: str = "info", **facts: Any) -> str:
    """The line for standard error: as it is, or an object of time, level (error: of "error: ..."), command and more."""
    if not says_json():
        return line
    message, time = line.removeprefix("error: "), datetime.now(UTC).isoformat(timespec="milliseconds")
    said = {"time": time, "level": "error" if message != line else level, "command": _job.command}
    return json.dumps(said | {"message": message} | facts)


def report(epoch: TrainedEpoch) -> None:
    """Say that an epoch is done, to whoever asked last."""
    for sink in _sinks[-1:]:
        sink(epoch)


@contextmanager
def reported_to(sink: Sink) -> Iterator[None]:
    """Within the block, this process reports epochs to the sink, and to no other."""
    _sinks.append(sink)
    try:
        yield
    finally:
        _sinks.remove(sink)
