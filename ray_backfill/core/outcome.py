"""What a finished command says: its decision, exit code and JSON to a program, and to a user what to type next."""

import math
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any


class Decision(Enum):
    """What results say about going on; with ``--exit-code`` a command ends with ``code``."""

    GO = "go ahead"
    OPEN = "undecided"
    STOP = "do not upgrade"

    @property
    def code(self) -> int:
        """0 to go ahead, 10 if the results leave it open or something was found, 11 to stop."""
        return {Decision.GO: 0, Decision.OPEN: 10, Decision.STOP: 11}[self]


class Remark(str):
    """A sentence about a run's data. matters: it can change the decision; any other is good to know."""

    matters: bool

    def __new__(cls, text: str, matters: bool = True) -> "Remark":
        made = super().__new__(cls, text)
        made.matters = matters
        return made

    @classmethod
    def about(cls, text: str, count: float, total: int) -> "Remark":
        """A remark that matters if it is about more than 1 % of all: fewer move no mean by more than a point."""
        return cls(text, count > HARMLESS * total)


HARMLESS = 0.01


def json_value(value: Any) -> Any:
    """The value as JSON has it: NaN and infinite numbers are null."""
    if isinstance(value, Mapping):
        return {str(key): json_value(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [json_value(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_typed(command: str) -> str:
    """A command of this package, as the user of this process can type it.

    Where ``ray-backfill`` is not on the PATH, by the executable or the module that this process was started by.
    """
    started = Path(sys.argv[0])
    if shutil.which("ray-backfill") or started.name not in ("ray-backfill", "__main__.py"):
        return command
    words = [str(started)] if started.name == "ray-backfill" else [sys.executable, "-m", "ray_backfill"]
    return f"{shlex.join(words)}{command.removeprefix('ray-backfill')}"
