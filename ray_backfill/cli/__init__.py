"""The command: options, help, errors as one line, exit codes. Here is what lies between the shell and a subcommand."""

import os
import resource
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ray_backfill.core.errors import REMEDIES, InputError, Stopped, TakenOverError, input_error_in
from ray_backfill.core.job import as_line
from ray_backfill.core.printable import printable
from ray_backfill.core.secrets import hide_in_logs, hide_in_process_list, learn
from ray_backfill.core.store_path import path_of
from ray_backfill.core.streams import all_is_said, make_lasting, problem_of

# Address space that the libraries take with small data, on a few cores.
_LEAST_SPACE = 3 << 30
LINE = "stopped; the same command continues where it was"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_job(main: Callable[[], None]) -> None:
    """Run a command. An InputError (also of an actor or worker) becomes one line and exit code 2.

    Ctrl-C gives 130, SIGTERM 143. Secrets of the command line are shown nowhere, also not in a traceback. Output that
    cannot be written stops no work: what is to be written to files is written, and then the command ends with 2. Where
    nobody reads the output any more, as after ``| head``, it ends without a word and with 141, as if by SIGPIPE.
    """
    make_lasting()
    for word in sys.argv:
        learn(word)
    hide_in_process_list()
    hide_in_logs()
    try:
        with _handled_by(_end_at_once):
            try:
                main()
            except KeyboardInterrupt as stopped:
                print("\n" * sys.stderr.isatty() + as_line(LINE, "warning"), file=sys.stderr)  # below a terminal's ^C
                sys.exit(128 + getattr(stopped, "signal", signal.SIGINT))
            except Exception as error:
                if (of_user := input_error_in(error)) is None:
                    raise
                print(as_line(f"error: {printable(str(of_user))}"), file=sys.stderr)
                sys.exit(2)
    finally:
        lost, unsaid = problem_of(sys.stdout), problem_of(sys.stderr)
        if isinstance(lost, BrokenPipeError) or isinstance(unsaid, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        if lost is not None:
            remedy = REMEDIES.get(lost.errno or 0, "give the command an output that can be written")
            print(as_line(f"error: the output cannot be written: {lost.strerror}; {remedy}"), file=sys.stderr)
            sys.exit(2)


def check_process() -> None:
    """Raises InputError where the libraries would end without a word, or for a form of lines that is unknown."""
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= space < _LEAST_SPACE:
        raise InputError(
            f"this process may use {space / 1e9:.1f} GB of address space, and its libraries need "
            f"{_LEAST_SPACE / 1e9:.1f} GB; raise the limit (ulimit -v)"
        )
    if (log := os.environ.get("RAY_BACKFILL_LOG", "")) not in ("", "json"):
        raise InputError(f"RAY_BACKFILL_LOG is {log!r}; set it to json, or unset it")
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise InputError("the working directory was deleted; change to another one (cd)") from error


def absolute(option: str, path: Path) -> Path:
    """The path of an option, absolute.

    Raises:
        InputError: It is relative inside a submitted job, whose working directory is a copy that Ray deletes; or it is
            not UTF-8, so that Arrow could not open it and no manifest could hold it.
    """
    if not path.is_absolute() and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise InputError(
            f"{option} {path} is relative; a submitted job needs an absolute path on a disk that all nodes share, or "
            "s3://bucket/folder"
        )
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{option} {path} is not UTF-8; rename the folder, or give another") from error
    return path.absolute()


def command_line() -> str:
    """The command as typed, for the manifest, without secrets and the folder of the installed script."""
    is_script = sys.argv[0].endswith(".py") and not sys.argv[0].endswith("__main__.py")  # python -m ray_backfill
    words = ["python", *sys.argv] if is_script else ["ray-backfill", *sys.argv[1:]]
    return shlex.join(map(learn, words))


def shown(path: Path) -> Path:
    """The path for the terminal: relative to the working directory, if it is below."""
    relative = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return path_of(printable(str(relative)), or_source=True)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, a signal raises ``Stopped``, and the second one ends the process at once.

    Raises:
        Stopped: Also in place of an error that the signal caused, for example in a library that was being imported, or
            of the plain KeyboardInterrupt that Ray makes of it.
    """
    came: list[int] = []

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if came:
            _end_at_once(number, frame)
        came.append(number)
        raise Stopped(number)

    with _handled_by(stop):
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if came and not isinstance(error, Stopped | TakenOverError):
                raise Stopped(came[0]) from error
            raise


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Handle the signals within the block. Only the main thread can; elsewhere nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, signal.SIG_DFL if handled is None else handled)


def _end_at_once(number: int, frame: FrameType | None) -> NoReturn:
    """End the process, where nothing is to be tidied up: an import would make a long traceback of an exception."""
    # A live display hides the cursor. No print here: the signal may have interrupted another print.
    start = "\n\x1b[?25h" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{start}{as_line(LINE, 'warning')}\n".encode())
    all_is_said()
    os._exit(128 + number)
