"""What to type next: whether or not the executable is on the PATH."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ray_backfill.core.outcome import as_typed

COMMAND = "ray-backfill drill --data 'my data'"


@pytest.mark.parametrize("started", [".venv/bin/ray-backfill", "a b/ray-backfill", "/x/ray_backfill/__main__.py"])
def test_a_command_is_typed_as_this_one_was(started: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", [started, "simulate"])
    monkeypatch.setenv("PATH", str(tmp_path))
    words = shlex.split(as_typed(COMMAND))
    by = [sys.executable, "-m", "ray_backfill"] if started.endswith(".py") else [started]
    assert words == [*by, "drill", "--data", "my data"]
    executable = tmp_path / "ray-backfill"
    executable.write_text("")
    executable.chmod(0o755)
    assert as_typed(COMMAND) == COMMAND


def test_what_is_typed_runs_where_no_executable_is_on_the_path() -> None:
    """As after ``make demo``."""
    code = "from ray_backfill.core.outcome import as_typed; print(as_typed('ray-backfill --version'))"
    executable = Path(sys.executable).parent / "ray-backfill"
    code = f"import sys; sys.argv[0] = {str(executable)!r}; {code}"
    environment = {"PATH": "/usr/bin:/bin"}
    typed = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    ended = subprocess.run(typed.stdout, shell=True, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.strip()
