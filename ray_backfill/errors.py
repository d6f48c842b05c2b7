"""The one error type a user can cause and mend."""

import math
import re
from typing import Any


class InputError(ValueError):
    """Something the user gave is wrong; the message says what, and what to do.

    Jobs print it as one line and exit with code 2. Everything else is a bug and keeps its traceback.
    """


def require_positive(settings: Any, *names: str) -> None:
    """Raises InputError unless each of these fields of a settings dataclass is greater than 0."""
    for name in names:
        if not getattr(settings, name) > 0:
            raise InputError(f"{type(settings).__name__}.{name} must be greater than 0, got {getattr(settings, name)}")


def require_not_negative(settings: Any, *names: str) -> None:
    """Raises InputError unless each of these fields of a settings dataclass is finite and at least 0."""
    for name in names:
        if not 0 <= (value := getattr(settings, name)) < math.inf:
            raise InputError(f"{type(settings).__name__}.{name} must be finite and not negative, got {value}")


def input_error_in(error: BaseException) -> InputError | None:
    """The InputError that an error is, or that Ray has wrapped on its way from an actor or a training worker."""
    # Of a task's or an actor's error; of a training's (rank -> error), and of what stands there for a user's error.
    # These first: Ray's error of a task is an InputError, too, whose message is the whole traceback.
    inner = [getattr(error, "cause", None), getattr(error, "_base_exc", None)]
    inner += getattr(error, "worker_failures", {}).values()
    found = (input_error_in(each) for each in inner if isinstance(each, BaseException))
    first = next((each for each in found if each is not None), None)
    return error if first is None and isinstance(error, InputError) else first


def check_device_name(device: str) -> None:
    """Raises InputError for an unknown device."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise InputError(f"unknown device {device!r}; known: cpu, cuda, cuda:0, cuda:1 and so on")
