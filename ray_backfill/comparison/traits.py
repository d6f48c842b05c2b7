"""What reports need to know of methods, orders and merges, for manifests: a report knows no plugin."""

from collections.abc import Iterable

from ray_backfill.merges import all_merges
from ray_backfill.methods import Adapter, Method, TransformLoss
from ray_backfill.orders import Order, all_orders
from ray_backfill.tables.results import MergeTraits, MethodTraits, OrderTraits, Traits


def traits_of(methods: Iterable[Method], orders: Iterable[Order], merges: Iterable[str]) -> Traits:
    """By name, of everything that takes part."""
    kinds = all_merges()
    return Traits(
        {method.name: _of_method(method) for method in methods},
        {order.name: OrderTraits(order.title, order.is_oracle, order.glossary) for order in orders},
        {name: MergeTraits(kinds[name].title, kinds[name].glossary) for name in merges},
    )


# TO FINISH where Method has ``family`` and ``glossary``: they replace all but the first and the last statement, and the
# two texts move to the modules of their methods.
def _of_method(method: Method) -> MethodTraits:
    is_baseline = not method.is_reference and method.fit is None and set(method.models) == {"old", "new"}
    family, glossary = method.kind, {}
    if isinstance(method.fit, Adapter):
        glossary["Adapter"] = (
            "A small map between the embeddings of two models, fitted on pairs of embeddings without labels. gallery: "
            "it maps the old gallery into the new space; query: it maps new queries into the old space."
        )
    if isinstance(method.fit, TransformLoss):
        glossary["h"] = (
            "The network that maps an old embedding (and what else was stored) into the space of the new model."
        )
    if method.has_sigma:
        glossary |= all_orders()["sigma"].glossary
    return MethodTraits(method.title, family, method.is_reference, is_baseline, glossary)
