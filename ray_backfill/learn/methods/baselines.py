"""References: no upgrade, a finished upgrade, and an upgrade that switches when the backfill is finished."""

from functools import partial
from typing import Any

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import POLICIES, Embeddings, Method


def old_system(e: Embeddings) -> RetrievalSystem:
    """{old, old}: the service before the upgrade."""
    return RetrievalSystem(e.query["old"], e.gallery["old"])


def new_system(e: Embeddings) -> RetrievalSystem:
    """{new, new}: the service after a finished offline backfill."""
    return RetrievalSystem(e.query["new"], e.gallery["new"])


def _old(e: Embeddings, network: Any) -> UpgradePair:
    system = old_system(e)
    return UpgradePair(system, system)


def _new(e: Embeddings, network: Any) -> UpgradePair:
    system = new_system(e)
    return UpgradePair(system, system)


def _instant(e: Embeddings, network: Any) -> UpgradePair:
    system = new_system(e)
    return UpgradePair(system, system, switch="only_backfilled")


def _offline(e: Embeddings, network: Any) -> UpgradePair:
    return UpgradePair(old_system(e), new_system(e), switch="at_end")


_reference = partial(Method, family="References", is_reference=True)

METHODS = (
    _reference("old", "old", "no upgrade: {old, old} throughout", _old, backward="old", forward="old"),
    _reference("new", "new", "finished upgrade: {new, new} throughout", _new, backward="new", forward="new"),
    _reference(
        "offline",
        "offline",
        "{old, old} until t = 1, then {new, new}",
        _offline,
        backward="old",
        forward="new",
        is_recommended=True,
        glossary={
            "Offline": "The upgrade without an online backfill: the old model serves until every item is re-embedded, "
            "then the new one."
        },
    ),
    Method(
        "instant",
        "instant",
        "a new index is served from the start: only backfilled items can be found",
        _instant,
        family=POLICIES,
        backward="new",
        forward="new",
        glossary={
            "Instant": "The new model serves from the first day, over the items that are backfilled; all others cannot "
            "be found until they are."
        },
    ),
)
