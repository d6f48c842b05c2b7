"""The error type for mistakes that a user can correct, and checks of settings."""

import difflib
import errno
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from ray_backfill.core.copies import with_addresses
from ray_backfill.core.secrets import without_secrets

# What the machine refuses and a user can mend -> the remedy.
REMEDIES = {
    errno.EACCES: "give this user access to it",
    errno.EPERM: "give this user access to it",
    errno.EROFS: "choose a place that can be written",
    errno.ENOSPC: "free some space and run the same command again to continue",
    errno.EDQUOT: "free some space and run the same command again to continue",
    errno.ELOOP: "mend this link",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another disk",
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the limit on open files (ulimit -n)",
    errno.EIO: "its disk or the connection to it fails; choose another place",
    errno.ESTALE: "mount its disk again",
    errno.ENOTDIR: "move the file that stands where a folder should be",
    errno.EISDIR: "move the folder that stands where a file should be",
    errno.ENOTEMPTY: "move what others have put there",
}


class InputError(ValueError):
    """Invalid input from the user; the message says what is wrong and how to correct it.

    The command line prints the message as one line and exits with code 2. Any other exception is a bug and keeps its
    traceback. Secrets are taken out of the message.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(with_addresses(without_secrets(message)))


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that none of the known ones equals. It shows the similar ones, or all if none is similar."""
    known = list(known)
    similar = difflib.get_close_matches(name, known, 3) or [k for k in known if len(name) > 2 and name in k]
    hint = f"did you mean {' or '.join(similar)}?" if similar else f"known: {', '.join(known)}"
    return InputError(f"unknown {kind} {name!r}; {hint}")


# What the extra "cpu" or "gpu" installs, because results, forecasts and formulas do without.
EXTRA_OF = dict.fromkeys(("torch", "transformers", "ray", "faiss"), "cpu") | {
    "matplotlib": "pictures",
    "onnx": "export",
    "obstore": "cloud",
    "boto3": "cloud",
}


class TakenOverError(InputError):
    """Another process has taken over the folder of this run, so that this one has to end."""


class Stopped(KeyboardInterrupt):
    """A signal asked this process to stop. signal: its number."""

    def __init__(self, signal: int) -> None:
        super().__init__()
        self.signal = signal


def require_positive(settings: Any, group: str, *names: str) -> None:
    """Raise InputError unless each of these fields of a settings dataclass is greater than 0, or None.

    group: where the command line has these settings, for the message: "workers" for --workers.number.
    """
    for name in names:
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise InputError(f"{_option(group, name)} must be greater than 0, got {value}")


def require_not_negative(settings: Any, group: str, *names: str) -> None:
    """Raise InputError unless each of these fields of a settings dataclass is finite and at least 0."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) < math.inf:
            raise InputError(f"{_option(group, name)} must be finite and not negative, got {value}")


def _option(group: str, name: str) -> str:
    return f"--{group}.{name.replace('_', '-')}"


def input_error_in(error: BaseException) -> InputError | None:
    """Return the InputError that ``error`` is, or that Ray wrapped in an actor or a training worker; None otherwise.

    Files that cannot be read or written and libraries that are not installed are errors of input, too.
    """
    # Ray keeps the original error of a task or an actor in ``cause``, the errors of a training run in
    # ``worker_failures`` (by rank), and there the user's own error in ``_base_exc``. Look inside first: Ray's error of
    # a task is an InputError as well, but its message is the whole traceback.
    inner = [getattr(error, "cause", None), getattr(error, "_base_exc", None)]
    for cause in (*inner, *getattr(error, "worker_failures", {}).values()):
        if isinstance(cause, BaseException) and (input_error := input_error_in(cause)) is not None:
            return input_error
    if isinstance(error, InputError):
        return error
    if isinstance(error, ModuleNotFoundError) and (name := (error.name or "").split(".")[0]) in EXTRA_OF:
        return InputError(f"this needs {_to_install(name)}")
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return InputError(f"{error.object[:200]!r} is not UTF-8; rename it")
    if isinstance(error, MemoryError):
        return InputError(f"not enough memory ({str(error) or 'an allocation failed'}); give this process more")
    if isinstance(error, OSError) and error.errno in REMEDIES:
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error).splitlines()[0]
        return InputError(f"{what}; {REMEDIES[error.errno]}")
    return None


def why_not_installed(*libraries: str) -> str:
    """What a use of these libraries of extras lacks, and how to install it; "" if all are there."""
    for name in libraries:
        with suppress(ModuleNotFoundError):  # of a finder that hides it
            if find_spec(name) is not None:
                continue
        return f"needs {_to_install(name)}"
    return ""


def _to_install(library: str) -> str:
    packages = " ".join(f"'{requirement}'" for requirement in _requirements(EXTRA_OF[library]))
    return f"{library}, which is not installed; type: python -m pip install {packages}"


def _requirements(extra: str) -> Iterator[str]:
    """What an extra of this package needs, package by package: no registry may have this one."""
    from importlib.metadata import requires  # loads more than a command needs before it can be stopped

    for line in requires("ray_backfill") or ():
        requirement, _, marker = line.partition("; ")
        if f'extra == "{extra}"' in marker:
            nested = re.match(r"ray.backfill\[(.+)\]", requirement)
            yield from _requirements(nested[1]) if nested else (requirement,)


def check_device_name(device: str) -> None:
    """Raise InputError for an unknown device."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"unknown device {device!r}; known: cpu, cuda, cuda:0, cuda:1 and so on")
