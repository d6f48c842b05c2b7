"""Plugin discovery: modules of a package, and modules of other distributions by entry point.

To add a method, data set or recipe to this project, add one file. Another distribution adds plugins by registering a
module under the entry-point group ``ray_backfill``; the module defines the same tables as this project's modules:
``METHODS``, ``BACKBONES``, ``ORDERS``, ``MERGES``, ``ANALYSES``, ``TRUTHS``, ``RECIPES``, and ``SOURCES`` for stores of
vectors.
"""

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from ray_backfill.core.errors import input_error_in

_GROUP = "ray_backfill"


def own_rows(package: ModuleType, table: str, first: str = "") -> list[Any]:
    """Return the rows of ``table`` in all public modules of ``package``, by name of the module. first: goes first.

    A module of several papers has a dictionary instead: rows by name, which are sorted as if each name were a module.
    """
    found: dict[str, Iterable[Any]] = {}
    for name in (module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")):
        rows = getattr(importlib.import_module(f"{package.__name__}.{name}"), table, ())
        found |= rows if isinstance(rows, dict) else {name: rows}
    return [row for name in sorted(found, key=lambda name: (name != first, name)) for row in found[name]]


def rows_from_outside(table: str) -> list[Any]:
    """Return the rows of ``table`` (such as "METHODS") in all registered modules, sorted by entry-point name."""
    return [row for module in _modules_from_outside() for row in getattr(module, table, ())]


@cache
def _modules_from_outside() -> tuple[ModuleType, ...]:
    found = sorted(entry_points(group=_GROUP), key=lambda point: point.name)
    return tuple(importlib.import_module(point.value) for point in found)


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
