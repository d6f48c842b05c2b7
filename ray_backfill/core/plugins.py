"""Plugin discovery: modules of this project by name, modules of other distributions by entry point.

To add a method, data set or recipe to this project, add one file. Another distribution adds plugins by registering a
module under the entry-point group ``ray_backfill``; the module defines the same tables as this project's modules:
``METHODS``, ``BACKBONES``, ``ORDERS``, ``MERGES``, ``ANALYSES``, ``TRUTHS``, ``RECIPES``, and ``SOURCES`` for stores of
vectors.
"""

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from ray_backfill.core.errors import input_error_in, unknown_name

_GROUP = "ray_backfill"


def plugin_names(package: ModuleType) -> list[str]:
    """Return the names of the public modules of ``package``, sorted. A leading underscore marks a helper module."""
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def load_plugin(package: ModuleType, name: str) -> ModuleType:
    """Import module ``name`` of ``package``.

    Raises:
        InputError: There is no such module; the message names similar ones.
    """
    known = plugin_names(package)
    if name not in known:
        kind = package.__name__.rsplit(".", 1)[-1].removesuffix("s")
        raise unknown_name(kind, name, known)
    return importlib.import_module(f"{package.__name__}.{name}")


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
