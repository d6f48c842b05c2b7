"""Cascades: a cheap system recalls K candidates, which the new model re-ranks. Any K may follow the @."""

from functools import partial
from typing import Any

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import POLICIES, RECALLS, Embeddings, Method
from ray_backfill.learn.methods.adapters import FORMULAS, relaxed
from ray_backfill.learn.methods.baselines import new_system, old_system
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.adapters import FormulaFit


def _old_recalls(e: Embeddings, network: Any) -> UpgradePair:
    return UpgradePair(old_system(e), new_system(e), switch="at_end")


def _map_recalls(e: Embeddings, network: Any) -> UpgradePair:
    recalling = RetrievalSystem(e.query["new"], transform(network, e.gallery["old"]))
    return UpgradePair(recalling, new_system(e), switch="at_end")


_cascade = partial(Method, family=POLICIES, forward="new", recalls=RECALLS)

METHODS = (
    _cascade(
        f"cascade@{RECALLS}",
        f"cascade of {RECALLS}, old recalls",
        "re-ranking: {old, old} recalls K items for every query, the new model re-ranks them",
        _old_recalls,
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
)
