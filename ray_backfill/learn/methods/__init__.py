"""The table of upgrade methods. Its modules are found by their names and import no torch.

A module defines ``METHODS``, a tuple of ``Method``, or a dictionary of such tuples by paper. Each method states as data
which pair of retrieval systems serves the gallery during the backfill, and what has to be fitted for it. Formulas are
here; networks, losses and trainings, which need torch, are in ``learn.papers``, one file per paper; ``Deferred`` names
them. A module may also define ``BACKBONES``, a tuple of ``BackboneKind``: networks that are trained in addition to the
old and the new one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ray_backfill.core.errors import unknown_name
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.engine.systems import FloatArray, RetrievalSystem, Switch, UpgradePair
from ray_backfill.learn.expressions import Evaluator, Mapped, Side, stored_models
from ray_backfill.learn.training.fit import Fit
from ray_backfill.learn.training.settings import BackboneSettings

if TYPE_CHECKING:
    from ray_backfill.learn.training.objective import MakeObjective

# Families of methods, in the order in which pages show them.
POLICIES = "Policies"
# Methods that explain the results of others. They are never recommended.
CONTROLS = "Controls"
# The number of candidates in the names of cascades; any other is understood, too.
RECALLS = 100
FAMILIES = ("References", POLICIES, "A new backbone", "Maps old to new", "Rank merge", "Adapters", CONTROLS)


@dataclass(frozen=True)
class Embeddings:
    """Input of a method: model name -> (Q, d) queries, and model name -> (N, d) gallery items."""

    query: Mapping[str, FloatArray]
    gallery: Mapping[str, FloatArray]

    def systems(self, sides: Sequence[Side], network: Any) -> list[RetrievalSystem]:
        """The systems of these expressions; what they share is computed once. network: the fitted maps."""
        dims = {model: vectors.shape[1] for of in (self.query, self.gallery) for model, vectors in of.items()}
        query, gallery = (Evaluator(of, network, dims) for of in (self.query, self.gallery))
        return [RetrievalSystem(query(side.query), gallery(side.gallery)) for side in sides]


@dataclass(frozen=True)
class ItemByItem:
    """Each item moves to the forward system as soon as it is backfilled.

    is_merged: distances in two systems are merged, so that a merge may make them comparable, and shards can serve it.
    """

    is_merged: bool = True


@dataclass(frozen=True)
class OnlyBackfilled:
    """As ``ItemByItem``, but items that are not backfilled cannot be found."""


@dataclass(frozen=True)
class Cascade:
    """The backward system recalls K items, which the forward system re-ranks, until t = 1. recalls: K."""

    recalls: int


@dataclass(frozen=True)
class Reference:
    """One system serves at a time, so neither order nor merge matters. at: t at which the forward system takes over."""

    at: Literal[0, 1] = 0


Policy = ItemByItem | OnlyBackfilled | Cascade | Reference


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    name: for the command line. title: for tables. source: paper and equation.
    backward, forward: what queries and items are compared by, before and after an item is backfilled.
    family: one of ``FAMILIES``; controls explain the results of other methods, and "all" leaves them out.
    fit: what is fitted on the stored embeddings of the train split: the maps that the expressions name.
    policy: when the forward system takes over. Names of cascades that end in @100 stand for any other K, too.
    is_recommended: takes part by default if no methods are named.
    glossary: word -> meaning, for words that a page about this method should explain.
    version: part of the key of a run; increase it when a change alters the method's results or its map.
    """

    name: str
    title: str
    source: str
    backward: Side
    forward: Side
    family: str
    fit: Fit | None = None
    policy: Policy = ItemByItem()
    is_recommended: bool = False
    glossary: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: int = 1

    def __str__(self) -> str:
        """Both systems, such as {psi(rho(new)), old}, {rho(new), rho(new)}."""
        return str(self.forward) if self.backward == self.forward else f"{self.backward}, {self.forward}"

    @property
    def sides(self) -> tuple[Side, Side]:
        """Backward and forward."""
        return self.backward, self.forward

    @property
    def models(self) -> tuple[str, ...]:
        """Old and new, and further backbones whose embeddings it needs."""
        served = stored_models(*(side.gallery for side in self.sides), *(side.query for side in self.sides))
        return tuple(dict.fromkeys(("old", "new", *served, *(self.fit.models if self.fit else ()))))

    @property
    def query_models(self) -> tuple[str, ...]:
        """The models that embed a query during the backfill."""
        return stored_models(*(side.query for side in self.sides))

    @property
    def old_models(self) -> tuple[str, ...]:
        """The models whose gallery embeddings exist before the backfill starts."""
        return tuple(dict.fromkeys(("old", *stored_models(self.backward.gallery))))

    @property
    def new_models(self) -> tuple[str, ...]:
        """The models that embed the gallery during the backfill."""
        return tuple(model for model in stored_models(self.forward.gallery) if model not in self.old_models)

    @property
    def aligned(self) -> bool:
        """Whether the backward gallery approximates the forward one by a map, for the same queries."""
        is_mapped = isinstance(self.backward.gallery, Mapped) and self.backward.query == self.forward.query
        return is_mapped and self.is_merged

    @property
    def switch(self) -> Switch:
        """When the forward system takes over, as the replay has it."""
        if isinstance(self.policy, OnlyBackfilled):
            return "only_backfilled"
        at_end = isinstance(self.policy, Cascade) or self.policy == Reference(at=1)
        return "at_end" if at_end else "progressively"

    @property
    def is_reference(self) -> bool:
        """Whether it serves one system at a time, so that merges do not apply."""
        return isinstance(self.policy, Reference)

    @property
    def is_merged(self) -> bool:
        """Whether distances in two systems are merged."""
        return self.policy == ItemByItem()

    @property
    def recalls(self) -> int:
        """The number K of candidates that the backward system recalls; 0 if it is no cascade."""
        return self.policy.recalls if isinstance(self.policy, Cascade) else 0

    def pair(self, e: Embeddings, network: Any) -> UpgradePair:
        """Both systems, of these embeddings. network: the fitted maps; None if ``fit`` is None."""
        distinct = dict.fromkeys(self.sides)
        systems = dict(zip(distinct, e.systems(tuple(distinct), network), strict=True))
        return UpgradePair(systems[self.backward], systems[self.forward], self.switch)

    @property
    def is_trained(self) -> bool:
        """Whether a network is trained on stored embeddings; a formula is not trained."""
        return self.fit is not None and self.fit.is_trained

    @property
    def learns_new(self) -> bool:
        """Whether it trains rho, a head on top of the new model, so that it does not end at {new, new}."""
        return self.fit is not None and self.fit.learn_new

    @property
    def has_sigma(self) -> bool:
        """Whether its network estimates its uncertainty about an item."""
        return self.fit is not None and self.fit.has_sigma


@dataclass(frozen=True)
class BackboneKind:
    """A backbone that some methods need besides old and new.

    name: for the command line. title: for tables. source: paper. like: the model whose architecture, training settings
    and classes it has. needs_old: its training needs the frozen old backbone; otherwise its objective gets None.
    dim_of: size of its embedding for a number of classes, if it cannot have that of ``like``.
    """

    name: str
    title: str
    source: str
    like: Literal["old", "new"]
    objective: MakeObjective
    needs_old: bool
    dim_of: Callable[[int], int] | None = None

    def backbone(self, like: BackboneSettings, classes: int) -> BackboneSettings:
        """Its architecture. like: that of the model it is like. classes: labels 0, 1, ... of the whole train split."""
        # Who chooses the dimension puts the embedding anywhere in it, also where values are negative.
        return like if self.dim_of is None else replace(like, dim=self.dim_of(classes), last_layer="linear")


def all_backbones() -> dict[str, BackboneKind]:
    """Every kind of backbone besides old and new by name, in the order of ``all_methods``."""
    return {kind.name: kind for kind in _rows("BACKBONES")}


def all_methods() -> dict[str, Method]:
    """Every known method by name: the baselines, then by paper in alphabetical order, then those from outside."""
    return {method.name: method for method in _rows("METHODS")}


def _rows(table: str) -> list[Any]:
    """The rows of this table in all own modules, then those that other distributions register."""
    return [*own_rows(sys.modules[__name__], table, first="baselines"), *rows_from_outside(table)]


def find_methods(names: tuple[str, ...]) -> list[Method]:
    """The methods of these names. Raises InputError for an unknown name; the message names similar ones."""
    known, methods = all_methods(), []
    for name in names:
        base, _, number = name.partition("@")
        cascade = known.get(f"{base}@{RECALLS}")
        if name in known:
            methods.append(known[name])
        elif cascade is not None and re.fullmatch("[1-9][0-9]{0,8}", number):
            title = cascade.title.replace(str(RECALLS), number)
            methods.append(replace(cascade, name=name, title=title, policy=Cascade(int(number))))
        else:
            raise unknown_name("method", name, known)
    return methods


def models_of(methods: Sequence[Method]) -> tuple[str, ...]:
    """The backbones that these methods need: old, new, then further kinds in the order of ``all_backbones``."""
    needed = {model for method in methods for model in method.models}
    return ("old", "new", *(name for name in all_backbones() if name in needed))
