"""Float32 products of a block of queries with tiles of the gallery, without copies of stored vectors."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import IntArray


class Tile(NamedTuple):
    """v = products * factor + offset, as in ``ProductForm``. products: (b, n). factor, offset: (n,)."""

    products: NDArray[np.float32]
    factor: NDArray[np.float32]
    offset: NDArray[np.float32]


class Products:
    """Computes products of some queries with one tile at a time, in reused memory. queries: rows of ``form.query``."""

    def __init__(self, form: ProductForm, queries: IntArray) -> None:
        self.form = form
        left = form.left(queries)
        self.left = left[:, : form.query.shape[1]] if form.uses_factors else left
        self.out = np.empty((len(queries), 0), np.float32)

    def tile(self, first: int, last: int) -> Tile:
        """Return the products with the gallery items first .. last - 1, valid until the next call. Cost: 2 b n D."""
        if self.out.shape[1] != last - first:
            self.out = np.empty((len(self.left), last - first), np.float32)
        if self.form.uses_factors:
            rows = np.ascontiguousarray(self.form.gallery[first:last], np.float32)
            factor, offset = self.form.factors(first, last)
        else:
            # Stored vectors are too long or too short for float32: scale a copy.
            rows = self.form.tile(first, last)
            factor, offset = np.ones(last - first, np.float32), np.zeros(last - first, np.float32)
        return Tile(np.matmul(self.left, rows.T, out=self.out), factor, offset)
