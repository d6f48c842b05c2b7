"""The one error type a user can cause and mend."""

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
