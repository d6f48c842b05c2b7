"""Upgrade methods; one paper a file, found by module name.

A module of methods defines ``METHODS``, a tuple of ``Method``. Each method says which pair of retrieval systems serves
the gallery during the backfill, and what has to be fitted or trained for it. A module may also define ``BACKBONES``, a
tuple of ``BackboneKind``: networks that are trained and embedded beside the old and the new one.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.plugins import load_plugin, plugin_names
from ray_backfill.store import Classifier
from ray_backfill.systems import FloatArray, UpgradePair

if TYPE_CHECKING:
    from ray_backfill.methods._objective import Objective, ObjectiveSettings, OldModel
    from ray_backfill.models.backbones import Backbone
    from ray_backfill.models.checkpoints import BackboneInfo


@dataclass(frozen=True)
class Embeddings:
    """What a method turns into a pair: by the model's name, (Q, d) queries and (N, d) gallery items."""

    query: Mapping[str, FloatArray]
    gallery: Mapping[str, FloatArray]


@dataclass(frozen=True)
class TrainSet:
    """Stored embeddings to fit on; N items.

    vectors: (N, d) float by the model's name. label: (N,) integers or strings, None where nobody labelled them.
    classifier: of the new model, None where it is not known.
    """

    vectors: Mapping[str, NDArray[np.floating]]
    label: NDArray[Any] | None
    classifier: Classifier | None = None


@dataclass(frozen=True)
class HeadLoss:
    """Trains psi, and rho where learn_new: the name of a loss of ``rank_merge``."""

    loss: str
    learn_new: bool = False
    needs_labels: bool = True


@dataclass(frozen=True)
class TransformLoss:
    """Trains FCT's h from the embeddings of some models to those of another; see ``fct.transform_loss``."""

    inputs: tuple[str, ...] = ("old",)
    target: str = "new"
    l2: bool = True
    disc: bool = False
    uncertainty: bool = False

    @property
    def needs_labels(self) -> bool:
        return self.disc


@dataclass(frozen=True)
class Adapter:
    """A map between the embeddings of two models that needs no labels: see ``adapters.KINDS``."""

    kind: str
    source: str
    target: str

    needs_labels = False


@dataclass(frozen=True)
class Method:
    """One row of the comparison. name: as typed. title: as shown. source: paper and equation.

    pair: embeddings and the fitted network (None where ``fit`` is None) to the two systems.
    fit: what is fitted on the stored embeddings of the train split.
    models: whose embeddings the pair needs; others than old and new name a backbone that is trained for it.
    aligned: the backward gallery is a copy of the forward one as well as the map can make it.
    """

    name: str
    title: str
    source: str
    pair: Callable[[Embeddings, Any], UpgradePair]
    fit: HeadLoss | TransformLoss | Adapter | None = None
    models: tuple[str, ...] = ("old", "new")
    aligned: bool = False

    @property
    def kind(self) -> Literal["heads", "transforms", "adapters", ""]:
        """Which settings fit it; "" where there is nothing to fit."""
        if self.fit is None:
            return ""
        return {HeadLoss: "heads", TransformLoss: "transforms", Adapter: "adapters"}[type(self.fit)]  # type: ignore[return-value]

    @property
    def is_reference(self) -> bool:
        """Whether it serves one system at a time: old, new and offline, which no merge concerns."""
        return self.name in ("old", "new", "offline")

    @property
    def has_sigma(self) -> bool:
        """Whether its network tells how uncertain it is about an item."""
        return isinstance(self.fit, TransformLoss) and self.fit.uncertainty


@dataclass(frozen=True)
class BackboneKind:
    """A backbone that some methods need beside old and new. name: as typed. title: as shown. source: paper.

    like: whose architecture, training settings and classes it takes. needs_old: whether the frozen old backbone takes
    part in its training. objective: an untrained backbone with its loss; the old model is None unless needs_old.
    """

    name: str
    title: str
    source: str
    like: Literal["old", "new"]
    objective: "Callable[[Backbone, BackboneInfo, ObjectiveSettings, OldModel | None], Objective]"
    needs_old: bool


def all_backbones() -> dict[str, BackboneKind]:
    """Every kind of backbone beside old and new by name, in the order of modules and of their tables."""
    return {kind.name: kind for module in _modules() for kind in getattr(module, "BACKBONES", ())}


def all_methods() -> dict[str, Method]:
    """Every known method by name: the baselines, then in the order of modules and of their tables."""
    return {method.name: method for module in _modules() for method in module.METHODS}


def _modules() -> list[ModuleType]:
    package = sys.modules[__name__]
    names = sorted(plugin_names(package), key=lambda name: (name != "baselines", name))
    return [load_plugin(package, name) for name in names]


def find_methods(names: tuple[str, ...]) -> list[Method]:
    """Raises InputError for an unknown name; the message lists the known ones."""
    known = all_methods()
    for name in names:
        if name not in known:
            raise InputError(f"unknown method {name!r}; known: {', '.join(known)}")
    return [known[name] for name in names]
