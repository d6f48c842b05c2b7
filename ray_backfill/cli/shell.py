"""Paths of the command line, the command as typed, and errors as one line with exit code 2."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from ray_backfill.cli.stopping import ending_at_once, exit_stopped
from ray_backfill.errors import InputError, input_error_in
from ray_backfill.printable import printable
from ray_backfill.secrets import hide_in_logs, hide_in_process_list, learn


def run_job(main: Callable[[], None]) -> None:
    """Run a command. An InputError (also of an actor or worker) becomes one line and exit code 2.

    Ctrl-C gives 130, SIGTERM 143. Secrets of the command line are shown nowhere, also not in a traceback.
    """
    for word in sys.argv:
        learn(word)
    hide_in_process_list()
    hide_in_logs()
    with ending_at_once():
        try:
            main()
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
