"""The runs of recipes: checks, training, embedding, plans, and the whole chain to a report or a drill."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_backfill.core.stages import is_finished, note_facts, read_json


def timed(folder: Path, stage: Callable[[], Path]) -> Path:
    """Run a stage and record its duration, unless it was already finished."""
    before, started = _finished(folder), time.perf_counter()
    stage()
    if before is None or _finished(folder) != before:  # finished earlier, but with other settings
        note_facts(folder, {"seconds": round(time.perf_counter() - started, 2)})
    return folder


def _finished(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished stage."""
    return read_json(folder / "manifest.json") if is_finished(folder) else None
