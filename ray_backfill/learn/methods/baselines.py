"""References: no upgrade, and a finished one. Policies: other ways to switch from one to the other, and cascades.

{a, b}: a query is represented by its embedding under a, a gallery item by its embedding under b. t: the share of items
that are backfilled. The backward system of a method serves items that are not backfilled, the forward system those that
are, unless its policy says otherwise.

``cascade@100``: until t = 1 both models embed each query. {old, old} retrieves K = ``RECALLS`` = 100 candidates, {new,
new} re-ranks them by new distances alone, and all other items follow in the order of {old, old}; at t = 1 {new, new}
ranks all items. Candidates that are not backfilled are embedded by the new model for the query: up to 100 embeddings a
query at t = 0, none at the end. Until t = 1 rankings stay the same; only this cost falls. Nothing is fitted.
``cascade_map@100`` retrieves by {new, A(old)}, A an adapter (adapters.py), so that the new model alone embeds queries.
"""

from functools import partial

from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import POLICIES, RECALLS, Cascade, Method, OnlyBackfilled, Reference
from ray_backfill.learn.methods.adapters import FORMULAS, MAPPED_GALLERY, FormulaFit, relaxed

_reference = partial(Method, family="References", policy=Reference())
# A cheap system recalls K candidates, which the new model re-ranks.
_cascade = partial(Method, forward=plain("new"), family=POLICIES, policy=Cascade(RECALLS))

METHODS = {
    "baselines": (
        _reference("old", "old", "no upgrade: {old, old} throughout", plain("old"), plain("old")),
        _reference("new", "new", "finished upgrade: {new, new} throughout", plain("new"), plain("new")),
        _reference(
            "offline", "offline", "{old, old} until t = 1, then {new, new}", plain("old"), plain("new"),
            policy=Reference(at=1), is_recommended=True,
            glossary={
                "Offline": "The upgrade without an online backfill: the old model serves until every item is "
                "re-embedded, then the new one."
            },
        ),
        Method(
            "instant", "instant", "a new index is served from the start: only backfilled items can be found",
            plain("new"), plain("new"), POLICIES, policy=OnlyBackfilled(),
            glossary={
                "Instant": "The new model serves from the first day, over the items that are backfilled; all others "
                "cannot be found until they are."
            },
        ),
    ),
    "cascade": (
        _cascade(
            f"cascade@{RECALLS}", f"cascade of {RECALLS}, old recalls",
            "re-ranking: {old, old} recalls K items for every query, the new model re-ranks them",
            plain("old"),
            glossary={
                "Cascade": "For every query the old index, which keeps the old vectors of all items, recalls K "
                "candidates, and the new model re-ranks them; behind them the old ranking goes on. The new model must "
                "embed those candidates that are not backfilled yet."
            },
        ),
        _cascade(
            f"cascade_map@{RECALLS}", f"cascade of {RECALLS}, {FORMULAS[relaxed]} recalls",
            "re-ranking: {new, A(old)} recalls K items for every query, the new model re-ranks them",
            MAPPED_GALLERY, fit=FormulaFit(relaxed, "old", "new"),
            glossary={
                "Cascade": "For every query an index of mapped old embeddings recalls K candidates, and the new model "
                "re-ranks them. The new model must embed those candidates that are not backfilled yet."
            },
        ),
    ),
}  # fmt: skip
