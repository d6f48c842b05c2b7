"""The error type for mistakes that a user can correct, and checks of settings."""

import math
import re
from typing import Any


class InputError(ValueError):
    """Invalid input from the user; the message says what is wrong and how to correct it.

    The command line prints the message as one line and exits with code 2. Any other exception is a bug and keeps its
    traceback.
    """


def require_positive(settings: Any, group: str, *names: str) -> None:
    """Raise InputError unless each of these fields of a settings dataclass is greater than 0.

    group: where the command line has these settings, for the message: "workers" for --workers.number.
    """
    for name in names:
        if not (value := getattr(settings, name)) > 0:
            raise InputError(f"{_option(group, name)} must be greater than 0, got {value}")


def require_not_negative(settings: Any, group: str, *names: str) -> None:
    """Raise InputError unless each of these fields of a settings dataclass is finite and at least 0."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) < math.inf:
            raise InputError(f"{_option(group, name)} must be finite and not negative, got {value}")


def _option(group: str, name: str) -> str:
    return f"--{group}.{name.replace('_', '-')}"


def input_error_in(error: BaseException) -> InputError | None:
    """Return the InputError that ``error`` is, or that Ray wrapped in an actor or a training worker; None otherwise."""
    # Ray keeps the original error of a task or an actor in ``cause``, the errors of a training run in
    # ``worker_failures`` (by rank), and there the user's own error in ``_base_exc``. Look inside first: Ray's error of
    # a task is an InputError as well, but its message is the whole traceback.
    inner = [getattr(error, "cause", None), getattr(error, "_base_exc", None)]
    inner += getattr(error, "worker_failures", {}).values()
    found = (input_error_in(each) for each in inner if isinstance(each, BaseException))
    first = next((each for each in found if each is not None), None)
    return error if first is None and isinstance(error, InputError) else first


def check_device_name(device: str) -> None:
    """Raise InputError for an unknown device."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"unknown device {device!r}; known: cpu, cuda, cuda:0, cuda:1 and so on")
