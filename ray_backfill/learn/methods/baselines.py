"""References and policies, which train nothing: no upgrade, a finished one, other ways to switch, and cascades."""

from functools import partial
from typing import Any

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import POLICIES, RECALLS, Embeddings, Method
from ray_backfill.learn.methods.adapters import FORMULAS, FormulaFit, relaxed
from ray_backfill.learn.models.apply import transform


def _instant(e: Embeddings, network: Any) -> UpgradePair:
    system = e.system("new")
    return UpgradePair(system, system, switch="only_backfilled")


def _at_end(e: Embeddings, network: Any) -> UpgradePair:
    """{old, old} until t = 1, then {new, new}."""
    return UpgradePair(e.system("old"), e.system("new"), switch="at_end")


def _map_recalls(e: Embeddings, network: Any) -> UpgradePair:
    recalling = RetrievalSystem(e.query["new"], transform(network, e.gallery["old"]))
    return UpgradePair(recalling, e.system("new"), switch="at_end")


_reference = partial(Method, family="References", is_reference=True)
# A cheap system recalls K candidates, which the new model re-ranks.
_cascade = partial(Method, family=POLICIES, forward="new", recalls=RECALLS)


def _only(model: str, source: str) -> Method:
    """{model, model} at all times."""

    def pair(e: Embeddings, network: Any) -> UpgradePair:
        system = e.system(model)
        return UpgradePair(system, system)

    return _reference(model, model, source, pair, backward=model, forward=model)


METHODS = {
    "baselines": (
        _only("old", "no upgrade: {old, old} throughout"),
        _only("new", "finished upgrade: {new, new} throughout"),
        _reference(
            "offline",
            "offline",
            "{old, old} until t = 1, then {new, new}",
            _at_end,
            backward="old",
            forward="new",
            is_recommended=True,
            glossary={
                "Offline": "The upgrade without an online backfill: the old model serves until every item is "
                "re-embedded, then the new one."
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
                "Instant": "The new model serves from the first day, over the items that are backfilled; all others "
                "cannot be found until they are."
            },
        ),
    ),
    "cascade": (
        _cascade(
            f"cascade@{RECALLS}",
            f"cascade of {RECALLS}, old recalls",
            "re-ranking: {old, old} recalls K items for every query, the new model re-ranks them",
            _at_end,
            backward="old",
            glossary={
                "Cascade": "For every query the old index, which keeps the old vectors of all items, recalls K "
                "candidates, and the new model re-ranks them; behind them the old ranking goes on. The new model must "
                "embed those candidates that are not backfilled yet."
            },
        ),
        _cascade(
            f"cascade_map@{RECALLS}",
            f"cascade of {RECALLS}, {FORMULAS[relaxed]} recalls",
            "re-ranking: {new, A(old)} recalls K items for every query, the new model re-ranks them",
            _map_recalls,
            fit=FormulaFit(relaxed, "old", "new"),
            glossary={
                "Cascade": "For every query an index of mapped old embeddings recalls K candidates, and the new model "
                "re-ranks them. The new model must embed those candidates that are not backfilled yet."
            },
        ),
    ),
}
