"""Train items that are few for the dimension of their vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


# With fewer items per dimension than this, a map without a penalty fits noise: docs/results/wide.md.
ITEMS_PER_DIMENSION = 5

FIT_NOISE = (
    "Maps without a penalty, such as least squares, fit noise there; ridge and relaxed Procrustes choose their "
    "penalty by cross-validation"
)


def few_items_per_dimension(items: int, dims: int) -> str:
    """What to tell a user of train items that are few for their vectors' larger dimension; "" if they are enough."""
    if items >= ITEMS_PER_DIMENSION * dims:
        return ""
    return f"{items:,} train items, {items / dims:.3g} per dimension of the embeddings ({dims:,})"
