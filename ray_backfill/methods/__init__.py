"""Upgrade methods; one paper a file, found by module name.

A module defines ``METHODS``, a tuple of ``Method``: each says which pair of retrieval systems serves the gallery during
the backfill, and what has to be fitted or trained for it. It may also define ``BACKBONES``, a tuple of
``BackboneKind``: networks that are trained and embed beside the old and the new one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from ray_backfill.errors import InputError
from ray_backfill.plugins import load_plugin, plugin_names, rows_from_outside
from ray_backfill.systems import FloatArray, UpgradePair
from ray_backfill.training.fit import Fit

if TYPE_CHECKING:
    from ray_backfill.training.objective import MakeObjective

# What methods belong to, in the order in which pages show them.
FAMILIES = ("References", "A new backbone", "Maps old to new", "Rank merge", "Adapters")


@dataclass(frozen=True)
class Embeddings:
    """What a method turns into a pair: by the model's name, (Q, d) queries and (N, d) gallery items."""

    query: Mapping[str, FloatArray]
    gallery: Mapping[str, FloatArray]


@dataclass(frozen=True)
class Method:
    """One row of the comparison. name: as typed. title: as shown. source: paper and equation. family: of ``FAMILIES``.

    pair: embeddings and the fitted network (None where ``fit`` is None) to the two systems.
    fit: what it learns from the stored embeddings of the train split.
    models: whose embeddings the pair needs; others than old and new name a backbone that is trained for it.
    backward, forward: the model x whose plain system {x, x} is this system of the pair; "" for any other system.
    aligned: the backward gallery is a copy of the forward one, as well as the map can make it.
    is_reference: it serves one system at a time, which no merge concerns.
    is_recommended: it takes part by default where nobody names methods.
    glossary: word -> meaning, of words that a page about this method should explain.
    """

    name: str
    title: str
    source: str
    pair: Callable[[Embeddings, Any], UpgradePair]
    family: str
    fit: Fit | None = None
    models: tuple[str, ...] = ("old", "new")
    backward: str = ""
    forward: str = ""
    aligned: bool = False
    is_reference: bool = False
    is_recommended: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_trained(self) -> bool:
        """Whether something is trained for it on stored embeddings; a formula is not."""
        return self.fit is not None and self.fit.is_trained

    @property
    def has_sigma(self) -> bool:
        """Whether its network tells how uncertain it is about an item."""
        return self.fit is not None and self.fit.has_sigma


@dataclass(frozen=True)
class BackboneKind:
    """A backbone that some methods need beside old and new. name: as typed. title: as shown. source: paper.

    like: whose architecture, training settings and classes it takes. needs_old: whether the frozen old backbone takes
    part in its training; if not, its objective gets None.
    """

    name: str
    title: str
    source: str
    like: Literal["old", "new"]
    objective: MakeObjective
    needs_old: bool


def all_backbones() -> dict[str, BackboneKind]:
    """Every kind of backbone beside old and new by name, in the order of modules and of their tables."""
    return {kind.name: kind for kind in _rows("BACKBONES")}


def all_methods() -> dict[str, Method]:
    """Every known method by name: the baselines, then in the order of modules and of their tables."""
    return {method.name: method for method in _rows("METHODS")}


def _rows(table: str) -> list[Any]:
    """Of that table in all of our modules, then of those that other distributions register."""
    package = sys.modules[__name__]
    names = sorted(plugin_names(package), key=lambda name: (name != "baselines", name))
    ours = [row for name in names for row in getattr(load_plugin(package, name), table, ())]
    return [*ours, *rows_from_outside(table)]


def find_methods(names: tuple[str, ...]) -> list[Method]:
    """Raises InputError for an unknown name; the message lists the known ones."""
    known = all_methods()
    for name in names:
        if name not in known:
            raise InputError(f"unknown method {name!r}; known: {', '.join(known)}")
    return [known[name] for name in names]


def models_of(methods: Sequence[Method]) -> tuple[str, ...]:
    """The backbones that these methods need: old, new, then further kinds in the order of ``all_backbones``."""
    needed = {model for method in methods for model in method.models}
    return ("old", "new", *(name for name in all_backbones() if name in needed))
