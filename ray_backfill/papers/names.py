"""Which methods, orders and merges belong together on a page: what their plugins say. Unknown names are welcome."""

from collections.abc import Iterable

from ray_backfill.merges import all_merges
from ray_backfill.methods import FAMILIES, all_methods
from ray_backfill.orders import all_orders

REFERENCES = tuple(method.name for method in all_methods().values() if method.is_reference)
ORDERS = tuple(all_orders())
MERGES = tuple(all_merges())

# What needs neither gradient descent on pairs of embeddings nor, for the merge, any labels.
TRAINING_FREE_METHODS = tuple(
    method.name
    for method in all_methods().values()
    if method.models == ("old", "new") and not method.is_reference and not method.is_trained
)
LABEL_FREE_MERGES = tuple(merge.name for merge in all_merges().values() if not merge.needs_labels)
# They come out of a method's map.
TRAINED_ORDERS = tuple(order.name for order in all_orders().values() if order.of_method)
# The heading of methods that no plugin here knows.
OTHER = "Others"


def in_order(found: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """The names that were found, once each: known ones in their order, then the others as they came."""
    names = tuple(dict.fromkeys(found))
    first = tuple(name for name in known if name in names)
    return first + tuple(name for name in names if name not in first)


def grouped(methods: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Family -> the methods that were found, in the order in which a page lists them; no family is empty."""
    known = all_methods()
    groups: dict[str, tuple[str, ...]] = dict.fromkeys((*FAMILIES, OTHER), ())
    for name in in_order(methods, known):
        groups[known[name].family if name in known else OTHER] += (name,)
    return {family: names for family, names in groups.items() if names}


def listed(methods: Iterable[str]) -> tuple[str, ...]:
    """The methods in the order in which a page lists them."""
    return tuple(name for names in grouped(methods).values() for name in names)
