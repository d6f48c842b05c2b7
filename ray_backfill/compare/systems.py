"""The retrieval systems of several methods: what they share is made and searched once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ray_backfill.engine.systems import RetrievalSystem, Switch, UpgradePair
from ray_backfill.learn.expressions import Side, maps_of
from ray_backfill.learn.methods import Method


class System(NamedTuple):
    """What distinguishes a retrieval system: its expressions, and the method whose fitted maps they name, if any."""

    side: Side
    method: str = ""

    @classmethod
    def both_of(cls, method: Method) -> tuple["System", "System"]:
        """The backward and the forward system of a method, which may be one."""
        backward, forward = (
            cls(side, method.name if maps_of(side.query, side.gallery) else "") for side in method.sides
        )
        return backward, forward


@dataclass(frozen=True)
class Systems:
    """The distinct systems of some methods. at: for each method, the indices of its backward and forward system."""

    systems: list[RetrievalSystem]
    at: list[tuple[int, int]]
    switches: list[Switch]


def distinct_systems(methods: Sequence[Method], pairs: Sequence[UpgradePair]) -> Systems:
    """Find what pairs share: the plain systems of models."""
    names, systems = [System.both_of(method) for method in methods], dict[System, RetrievalSystem]()
    for (backward, forward), pair in zip(names, pairs, strict=True):
        systems.setdefault(backward, pair.backward)
        systems.setdefault(forward, pair.forward)
    places = {name: place for place, name in enumerate(systems)}
    at = [(places[backward], places[forward]) for backward, forward in names]
    return Systems(list(systems.values()), at, [pair.switch for pair in pairs])
