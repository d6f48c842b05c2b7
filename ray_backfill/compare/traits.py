"""Facts about methods, orders and merges for manifests, because reports do not import plugins."""

from collections.abc import Iterable

from ray_backfill.compare.tables.results import MergeTraits, MethodTraits, OrderTraits, Traits
from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import GalleryColumns, Order
from ray_backfill.learn.methods import POLICIES, Method


def traits_of(
    methods: Iterable[Method], orders: Iterable[Order], merges: Iterable[str], gallery: GalleryColumns
) -> Traits:
    """Traits by name of everything that takes part. gallery: what the orders read."""
    kinds = all_merges()
    return Traits(
        {method.name: _of_method(method) for method in methods},
        {
            order.name: OrderTraits(order.title, order.is_oracle, order.glossary, order.column_in(gallery) == "label")
            for order in orders
        },
        {name: MergeTraits(kinds[name].title, kinds[name].glossary) for name in merges},
    )


def _of_method(method: Method) -> MethodTraits:
    is_baseline = not method.is_reference and method.fit is None and set(method.models) == {"old", "new"}
    return MethodTraits(
        method.title,
        method.family,
        method.is_reference,
        is_baseline,
        needs_labels=method.fit is not None and method.fit.needs_labels,
        learns_new=method.learns_new,
        further_models=tuple(model for model in method.models if model not in ("old", "new")),
        stays=method.forward != "new" and not method.is_reference,
        recalls=method.recalls,
        merges_models=is_baseline and method.family != POLICIES,
        glossary=method.glossary,
    )
