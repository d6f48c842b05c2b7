"""Upgrade methods; one paper a file, found by module name.

A module of methods defines ``METHODS``, a tuple of ``Method``. Each method says which pair of retrieval systems serves
the gallery during the backfill, and what has to be trained for it.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray_backfill.errors import InputError
from ray_backfill.plugins import load_plugin, plugin_names
from ray_backfill.systems import FloatArray, UpgradePair


@dataclass(frozen=True)
class Embeddings:
    """What a method turns into a pair: (Q, d) queries and (N, d) gallery items of both models."""

    old_query: FloatArray
    new_query: FloatArray
    old_gallery: FloatArray
    new_gallery: FloatArray


@dataclass(frozen=True)
class HeadLoss:
    """What trains a method's heads: the name of the loss and whether rho is trained beside psi."""

    loss: str
    learn_new: bool = False
    needs_labels: bool = True


@dataclass(frozen=True)
class Method:
    """One row of the comparison. name: as typed. title: as shown. source: paper and equation.

    pair: embeddings and the trained heads (a ``models.heads.Heads``, None where ``head`` is None) to the two systems.
    """

    name: str
    title: str
    source: str
    pair: Callable[[Embeddings, Any], UpgradePair]
    head: HeadLoss | None = None


def all_methods() -> dict[str, Method]:
    """Every known method by name, in the order of modules and of their tables."""
    package = sys.modules[__name__]
    modules = [load_plugin(package, name) for name in plugin_names(package)]
    return {method.name: method for module in modules for method in module.METHODS}


def find_methods(names: tuple[str, ...]) -> list[Method]:
    """Raises InputError for an unknown name; the message lists the known ones."""
    known = all_methods()
    for name in names:
        if name not in known:
            raise InputError(f"unknown method {name!r}; known: {', '.join(known)}")
    return [known[name] for name in names]
