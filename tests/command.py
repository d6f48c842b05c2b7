"""How a command ended; the fixture ``command`` runs a command line in this process."""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    """The exit code, and what was printed."""

    code: int
    out: str
    err: str

    @property
    def shown(self) -> str:
        return self.out + self.err

    @property
    def error(self) -> str:
        """The line of an error of input, which is all that is printed; but for steps, which a busy machine shows."""
        assert (self.code, self.out) == (2, ""), self
        *steps, line = self.err.splitlines()
        assert all(re.search(r": (done in|running for) | after ", step) for step in steps)
        assert line.startswith("error: ")
        return line.removeprefix("error: ")


# Takes the words after ``ray-backfill``.
Command = Callable[..., Ended]


def ended_by(error: BaseException, capsys: pytest.CaptureFixture[str]) -> Ended:
    """How a command ends whose work raises this error."""
    from ray_backfill.cli import run_job

    def work() -> None:
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_job(work)
    return Ended(int(str(stopped.value.code)), *capsys.readouterr())
