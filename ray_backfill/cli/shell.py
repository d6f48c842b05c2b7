"""Paths of the command line, the command as typed, and errors as one line with exit code 2."""

import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from ray_backfill.cli.stopping import ending_at_once, exit_stopped
from ray_backfill.core.errors import InputError, input_error_in
from ray_backfill.core.printable import printable
from ray_backfill.core.secrets import hide_in_logs, hide_in_process_list, learn


def run_job(main: Callable[[], None]) -> None:
    """Run a command. An InputError (also of an actor or worker) becomes one line and exit code 2.

    Ctrl-C gives 130, SIGTERM 143. Secrets of the command line are shown nowhere, also not in a traceback. Where nobody
    reads the output any more, as after ``| head``, it ends without a word and with 141, as if SIGPIPE had ended it.
    """
    for word in sys.argv:
        learn(word)
    hide_in_process_list()
    hide_in_logs()
    try:
        try:
            _run(main)
        finally:
            sys.stdout.flush()  # here, where an error can be told
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        _drop_output()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # of the flush: ``_run`` leaves no error that has a remedy
        found = input_error_in(error)
        if found is None:
            raise
        _drop_output()
        print(f"error: the output cannot be written: {found}", file=sys.stderr)
        sys.exit(2)


def _nobody_reads() -> bool:
    """Whether standard output or standard error is a pipe whose reader is gone."""
    poll = select.poll()
    for stream in (1, 2):
        poll.register(stream, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _drop_output() -> None:
    """What is still to be written goes nowhere; otherwise Python would try again at its end, and complain."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr) if _nobody_reads() else (sys.stdout,):
        os.dup2(nowhere, stream.fileno())


def _run(main: Callable[[], None]) -> None:
    with ending_at_once():
        try:
            main()
        except BrokenPipeError:
            raise
        except KeyboardInterrupt as stopped:
            exit_stopped(stopped)
        except Exception as error:
            found = input_error_in(error)
            if found is None:
                raise
            print(f"error: {printable(str(found))}", file=sys.stderr)
            sys.exit(2)


def checked_out(out: Path) -> Path:
    """The run's folder as an absolute path.

    Raises:
        InputError: The path is relative inside a submitted job, whose working directory is a copy that Ray deletes.
    """
    refuse_relative("--out", out)
    _refuse_not_utf8("--out", out)
    return out.absolute()


def given_folder(data: Path) -> Path:
    """The folder of embeddings as an absolute path. Raises InputError for a relative path inside a submitted job."""
    refuse_relative("--data", data)
    _refuse_not_utf8("--data", data)
    return data.absolute()


def refuse_relative(option: str, path: Path) -> None:
    """Raise InputError for a relative path inside a submitted job, whose working directory is a copy."""
    if not path.is_absolute() and "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ:
        raise InputError(
            f"{option} {path} is relative; a submitted job needs an absolute path on storage that all nodes share"
        )


def _refuse_not_utf8(option: str, path: Path) -> None:
    """Raise InputError for a path that Arrow cannot open and that no manifest could hold."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{option} {path} is not UTF-8; rename the folder, or give another") from error


def command_line() -> str:
    """The command as typed, for the manifest, without secrets and the folder of the installed script."""
    is_script = sys.argv[0].endswith(".py") and not sys.argv[0].endswith("__main__.py")  # python -m ray_backfill
    words = ["python", *sys.argv] if is_script else ["ray-backfill", *sys.argv[1:]]
    return " ".join(map(learn, words))


def shown(path: Path) -> Path:
    """The path for the terminal: relative to the working directory, if it is below."""
    relative = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return Path(printable(str(relative)))
