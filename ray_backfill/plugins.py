"""Finds methods, data sets and recipes by module name: to add one, add one file."""

import importlib
import pkgutil
from types import ModuleType

from ray_backfill.errors import InputError


def plugin_names(package: ModuleType) -> list[str]:
    """Names of the public modules of ``package``, sorted. Names that start with an underscore are helpers."""
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.name.startswith("_"))


def load_plugin(package: ModuleType, name: str) -> ModuleType:
    """Import module ``name`` of ``package``.

    Raises:
        InputError: no such module; the message lists the known ones.
    """
    known = plugin_names(package)
    if name not in known:
        kind = package.__name__.rsplit(".", 1)[-1].removesuffix("s")
        raise InputError(f"unknown {kind} {name!r}; known: {', '.join(known)}")
    return importlib.import_module(f"{package.__name__}.{name}")
