"""Plugin discovery: modules of a package, modules of other distributions by entry point, and those of a variable.

To add a method, data set or recipe to this project, add one file. Another distribution adds plugins by registering a
module under the entry-point group ``ray_backfill``; the module defines the same tables as this project's modules:
``METHODS``, ``MAPS`` (classes of fitted maps, by their ``kind``), ``BACKBONES``, ``ORDERS``, ``MERGES``, ``ANALYSES``,
``TRUTHS``, ``RECIPES``, ``MODELS`` that embed, ``RERANKERS``, and ``SOURCES`` for stores of vectors. The environment
variable ``RAY_BACKFILL_PLUGINS`` names modules that no distribution registers, separated by commas, to try them.
"""

import importlib
import os
import pkgutil
import re
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from ray_backfill.core.errors import InputError, input_error_in

_GROUP, _VARIABLE = "ray_backfill", "RAY_BACKFILL_PLUGINS"


def own_rows(package: ModuleType, table: str, first: str = "") -> list[Any]:
    """Return the rows of ``table`` in all public modules of ``package``, by name of the module. first: goes first.

    A module of several papers has a dictionary instead: rows by name, which are sorted as if each name were a module.
    """
    rows_of: dict[str, Iterable[Any]] = {}
    for name in _public_modules(package):
        rows = getattr(importlib.import_module(f"{package.__name__}.{name}"), table, ())
        rows_of |= rows if isinstance(rows, dict) else {name: rows}
    return [row for name in sorted(rows_of, key=lambda name: (name != first, name)) for row in rows_of[name]]


@cache
def _public_modules(package: ModuleType) -> tuple[str, ...]:
    names = (module.name for module in pkgutil.iter_modules(package.__path__))
    return tuple(name for name in names if not name.startswith("_"))


def rows_from_outside(table: str) -> list[Any]:
    """Return the rows of ``table`` (such as "METHODS") in all registered modules, sorted by entry-point name.

    Raises:
        InputError: A registered module imports what this version of ray_backfill does not have.
    """
    return [row for module in _modules_from_outside() for row in getattr(module, table, ())]


@cache
def _modules_from_outside() -> tuple[ModuleType, ...]:
    found = sorted(entry_points(group=_GROUP), key=lambda point: point.name)
    named = filter(None, (name.strip() for name in os.environ.get(_VARIABLE, "").split(",")))
    return tuple(_imported(point) for point in (*found, *(EntryPoint(name, name, _VARIABLE) for name in named)))


def _imported(point: EntryPoint) -> ModuleType:
    try:
        return importlib.import_module(point.value)
    except ImportError as error:
        # "from a import b" names b in the message alone.
        part = re.match(r"cannot import name '(\w+)'", error.msg)
        missing = f"{error.name}.{part[1]}" if part else str(error.name)
        if point.group == _VARIABLE and f"{point.value}.".startswith(f"{missing}."):
            raise InputError(f"{_VARIABLE} names {point.value}, which is not on PYTHONPATH") from error
        if missing.split(".")[0] != _GROUP or "partially initialized" in error.msg:
            raise
        raise InputError(
            f"the plugin {point.name} (module {point.value}) was written for another version of ray_backfill: it "
            f"imports {missing}, which is not there any more; see CHANGELOG.md"
        ) from error


class Deferred:
    """A function or class of another module, which is imported at the first call.

    Tables of methods name their losses this way: a loss loads torch, and listing the methods must not.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.__name__ = module, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.load()(*args, **kwargs)

    def load(self) -> Any:
        """Return the function or class itself. Raises InputError if it needs a library that is not installed."""
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            if (missing := input_error_in(error)) is None:
                raise
            raise missing from error
        return getattr(module, self.__name__)
