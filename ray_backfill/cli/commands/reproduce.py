"""``ray-backfill reproduce``: the pages of results. It is part of a checkout, and not of the wheel."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from ray_backfill.cli.options import Options
from ray_backfill.core.errors import InputError

_CHECKOUT = Path(__file__).parents[3]


def options(arguments: Sequence[str]) -> Options:
    """The experiment and where it runs."""
    return _command().options(arguments)


def run(job: Any) -> None:
    """Run what is missing, write the page and print its path."""
    _command().run(job)


def _command() -> ModuleType:
    if not (_CHECKOUT / "reproduction" / "command.py").is_file():
        raise InputError(
            "reproduce runs the papers' experiments and needs their claims, which an installed package does not hold; "
            "run it from a checkout of the source: python -m pip install --editable '.[cpu]'"
        )
    if str(_CHECKOUT) not in sys.path:
        sys.path.append(str(_CHECKOUT))
    return import_module("reproduction.command")
