"""Groups of methods, orders and merges on a page, taken from their plugins. Unknown names are allowed."""

from collections.abc import Iterable

from ray_backfill.engine.merges import all_merges
from ray_backfill.engine.orders import all_orders
from ray_backfill.learn.methods import FAMILIES, POLICIES, all_methods

REFERENCES = tuple(method.name for method in all_methods().values() if method.is_reference)
# Methods that do not mix two systems' results: references, cascades, which rank as the new model does from the first
# day on, whatever the order, and instant, which hides items.
UNMIXED = tuple(method.name for method in all_methods().values() if method.is_reference or method.family == POLICIES)
ORDERS = tuple(all_orders())
MERGES = tuple(merge.name for merge in all_merges().values() if not merge.is_choice)

# Methods that need no gradient descent on pairs of embeddings, and merges that need no labels.
TRAINING_FREE_METHODS = tuple(
    method.name
    for method in all_methods().values()
    if method.models == ("old", "new") and method.name not in UNMIXED and not method.is_trained
)
LABEL_FREE_MERGES = tuple(merge.name for merge in all_merges().values() if not (merge.needs_labels or merge.is_choice))
# Orders that depend on the map of a method.
TRAINED_ORDERS = tuple(order.name for order in all_orders().values() if order.of_method)
# Heading of methods that no plugin defines.
OTHER = "Others"


def in_order(found: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names found, without duplicates: known ones in their order, then the others as found."""
    names = tuple(dict.fromkeys(found))
    first = tuple(name for name in known if name in names)
    return first + tuple(name for name in names if name not in first)


def grouped(methods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Family -> the methods found, in the order of a page; no family is empty."""
    known = all_methods()
    groups: dict[str, tuple[str, ...]] = dict.fromkeys((*FAMILIES, OTHER), ())
    for name in in_order(methods, known):
        groups[known[name].family if name in known else OTHER] += (name,)
    return {family: names for family, names in groups.items() if names}


def listed(methods: Iterable[str]) -> tuple[str, ...]:
    """The methods in the order of a page."""
    return tuple(name for names in grouped(methods).values() for name in names)
