"""What this process does, for whoever watches it: in Ray's dashboard, and in its lines as JSON."""

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# The subcommand, the command line, recipe or data, and the folder of the run, as far as they are known; no secrets.
JOB: dict[str, str] = {}


def job_name(*stage: str) -> str:
    """A name that can be part of a path: ``landmarks-train-old`` is a stage of a run of the recipe landmarks."""
    source = JOB.get("recipe") or Path(JOB.get("data", "")).name
    return re.sub(r"[^\w.-]+", "-", "-".join(filter(None, (source, *stage))))


def says_json() -> bool:
    """Whether RAY_BACKFILL_LOG asks for lines as JSON."""
    return os.environ.get("RAY_BACKFILL_LOG") == "json"


def as_line(line: str, level: str = "info", **facts: Any) -> str:
    """The line as standard error gets it: as it is, or an object of time, level, command, message and facts.

    A line "error: ..." has the level error.
    """
    if not says_json():
        return line
    message = line.removeprefix("error: ")
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    said = {"time": time, "level": "error" if message != line else level, "command": JOB.get("command", "")}
    return json.dumps(said | {"message": message} | facts)
