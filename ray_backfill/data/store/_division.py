"""Divides a train split into the items that everything is fitted on and the validation part, which no fit sees.

Shapes: N items of the train split.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.memory import room_for
from ray_backfill.engine.systems import FloatArray, IntArray

if TYPE_CHECKING:
    from ray_backfill.data.store import EmbeddingTable

# Share of the train items that is held out, and the most and fewest items of the part.
SHARE, MOST, FEWEST = 0.1, 20_000, 50
_SEED = 0
# Vectors that are copied at a time.
_ROWS = 1 << 16


def held_out(label_N: NDArray[Any] | None, n: int) -> NDArray[np.bool_]:
    """Return (N,) which train items are held out: a tenth, at most some 20,000, or none if these were fewer than 50.

    With labels, at least two items of a class, so that each has a right answer, and as many stay for the fits. So small
    classes are drawn until the tenth is reached; large ones all give their share. Items of unknown class (-1) stay.
    """
    held_N, rng = np.zeros(n, bool), np.random.default_rng(_SEED)
    wanted = min(round(SHARE * n), MOST)
    if label_N is None:
        drawn = rng.permutation(n)[:wanted]
    else:
        drawn = np.concatenate([np.empty(0, np.int64), *_of_classes(label_N, wanted, rng)])
    if len(drawn) >= FEWEST:
        held_N[drawn] = True
    return held_N


def _of_classes(label_N: NDArray[Any], wanted: int, rng: np.random.Generator) -> Iterator[IntArray]:
    """Rows of random classes, until there are as many as wanted."""
    share, found = wanted / max(len(label_N), 1), 0
    names, class_N = np.unique(label_N, return_inverse=True)
    shuffled = rng.permutation(len(label_N))
    by_class = shuffled[np.argsort(class_N[shuffled], kind="stable")]
    rows_of = np.split(by_class, np.cumsum(np.bincount(class_N))[:-1])
    for each in rng.permutation(len(names)):
        if found >= wanted:
            return
        rows, is_known = rows_of[each], names.dtype.kind != "i" or names[each] != -1
        size = max(2, round(share * len(rows)))
        if is_known and len(rows) >= size + 2:
            yield rows[:size]
            found += size


def take(table: "EmbeddingTable", rows: IntArray) -> "EmbeddingTable":
    """Return some rows of a table. Cost: a copy of their vectors, mapped from a temporary file if they are large."""
    names = [each.name for each in fields(table) if each.init and each.name not in ("path", "rows")]
    places = rows if table.rows is None else table.rows[rows]
    return replace(table, rows=places, **{name: _taken(getattr(table, name), rows) for name in names})


def take_views(views: Mapping[str, FloatArray], rows: IntArray) -> dict[str, FloatArray]:
    """Return the further views (V, N, d) of some train items. Cost: as ``take``."""
    taken = {}
    for model, of_items in views.items():
        n_views, n, dim = of_items.shape
        in_file = (np.arange(n_views)[:, None] * n + rows).ravel()
        taken[model] = _taken(of_items.reshape(-1, dim), in_file).reshape(n_views, len(rows), dim)
    return taken


def _taken(values: Any, rows: IntArray) -> Any:
    if values is None:
        return None
    if isinstance(values, dict):
        return {name: _taken(each, rows) for name, each in values.items()}
    if isinstance(values, list):
        return [values[row] for row in rows]
    if values.ndim == 1:
        return values[rows]
    out = room_for(len(rows), values.shape[1], values.dtype.type)
    for first in range(0, len(rows), _ROWS):
        out[first : first + _ROWS] = values[rows[first : first + _ROWS]]
    return out
