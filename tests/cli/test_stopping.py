"""Ctrl-C and SIGTERM at any moment: one line and the exit code of the signal."""

import os
import signal
import subprocess
import sys

import pytest

from ray_backfill.cli import LINE, interruptible, run_job
from ray_backfill.core.errors import Stopped

BOTH = pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
# The moment when this module is imported is somewhere in the imports of the command.
IMPORTING = """
import os, sys, threading
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "{module}":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
sys.argv = ["ray-backfill", "simulate", "--data", "nowhere"]
from ray_backfill.cli.main import main
main()
"""


@BOTH
@pytest.mark.parametrize("module", ["importlib.resources", "cyclopts", "numpy", "pandas._libs.lib"])
def test_during_imports(module: str, number: int, code: int) -> None:
    program = IMPORTING.format(module=module, number=int(number))
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (code, f"{LINE}\n")


@BOTH
def test_work_is_ended_in_order(number: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    tidied = []

    def main() -> None:
        with interruptible():
            try:
                os.kill(os.getpid(), number)
            finally:
                tidied.append("up")

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(SystemExit) as stopped:
        run_job(main)
    assert (stopped.value.code, tidied) == (code, ["up"])
    assert capsys.readouterr().err == f"{LINE}\n"
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("other", [ImportError("initialization failed"), KeyboardInterrupt()])  # of a module, of Ray
def test_a_library_may_turn_the_signal_into_another_error(other: BaseException) -> None:
    def load() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise other from None

    with pytest.raises(Stopped) as stopped, interruptible():
        load()
    assert stopped.value.signal == signal.SIGTERM
    with pytest.raises(ImportError, match="another"), interruptible():
        raise ImportError("another")


def test_the_second_signal_ends_a_process_that_hangs_while_it_tidies_up() -> None:
    program = """
import os, signal, time
from ray_backfill.cli import interruptible, run_job
def main():
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)
run_job(main)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert (ended.returncode, ended.stderr) == (130, f"{LINE}\n")


def test_a_block_gives_the_handlers_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with interruptible():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
