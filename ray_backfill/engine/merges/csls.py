"""Cross-domain similarity local scaling (CSLS): similarities are reduced for vectors with many close neighbours.

Source: Conneau et al., Word translation without parallel data (ICLR 2018), section 2.3:
CSLS(q, g) = 2 cos(q, g) - r(q) - r(g), where r is the mean cosine to the k nearest vectors of the other side.
Deviates: the neighbours are train vectors instead of gallery items, which change during the backfill, and k is a share
of them instead of 10. So r means the same whatever their number, as in a trial on a part of them.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.memory import room_for
from ray_backfill.core.progress import detail, is_shown
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import FloatArray, RetrievalSystem, UpgradePair

# Share of the references whose mean cosine is r. The best share hardly depends on models or number of references, the
# best number does (docs/log.md, 2026-11-28).
SHARE = 0.05
# Most train items that r is computed from: more of them cost time for every query and gallery item.
_MOST_ROWS = 2048
# From so many vectors on, their neighbours take more than a second or two, and progress is shown.
_MANY = 20_000
# Vectors that are processed at a time: their products with all references take 16 MB.
_ROWS = 1024


@dataclass(frozen=True, eq=False)
class References:
    """The train vectors of one system from which r is computed."""

    query: NDArray[np.float32]
    """(R, d) embeddings of queries, or of train items, by the query model."""
    gallery: NDArray[np.float32]
    """(R, d) embeddings by the gallery model."""

    def replace(self, system: RetrievalSystem, distance: str) -> RetrievalSystem:
        """Return the system of ``queries`` and ``gallery_items``, whose inner product is CSLS / 2."""
        return RetrievalSystem(self.queries(system.query, distance), self.gallery_items(system.gallery, distance))

    def queries(self, vectors: FloatArray, distance: str) -> NDArray[np.float32]:
        """Return (Q, d + 2) rows [unit q, 1, -r(q) / 2].

        Cost: 2 R d operations per vector, and a copy.

        Raises:
            InputError: The distance is not cosine, the dimensions differ from the references', or a vector is zero.
        """
        self._check(vectors, distance)
        return _unit_and_two(vectors, self.gallery)

    def gallery_items(self, vectors: FloatArray, distance: str) -> NDArray[np.float32]:
        """Return (N, d + 2) rows [unit g, -r(g) / 2, 1]. Cost, errors: as of ``queries``."""
        self._check(vectors, distance)
        rows = _unit_and_two(vectors, self.query)
        rows[:, [-2, -1]] = rows[:, [-1, -2]]
        return rows

    def _check(self, vectors: FloatArray, distance: str) -> None:
        if distance != "cosine":
            raise InputError(f"the csls merge supports only the cosine distance, not {distance}; use another merge")
        if vectors.shape[1] != self.query.shape[1]:
            raise InputError(
                f"the csls merge was fitted on vectors of {self.query.shape[1]} dimensions, but these have "
                f"{vectors.shape[1]}; fit it on train embeddings of the same models"
            )


def fit_csls(train: UpgradePair, seed: int) -> tuple[References, References]:
    """Return the references of the backward and of the forward system."""
    asked, items = (
        np.arange(number)
        if number <= _MOST_ROWS
        else np.sort(np.random.default_rng(seed).choice(number, _MOST_ROWS, replace=False))
        for number in (train.n_queries, train.n_gallery)
    )
    backward, forward = (
        References(system.query[asked].astype(np.float32), system.gallery[items].astype(np.float32))
        for system in (train.backward, train.forward)
    )
    return backward, forward


def n_nearest(references: int) -> int:
    """k, for so many references."""
    return max(1, round(SHARE * references))


def mean_nearest_cosine(vectors: FloatArray, references: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return (n,) r: the mean cosine of each vector to the nearest references, ``SHARE`` of them but at least one.

    A vector has the same result in any batch: float32 products only select the few references that can be among the
    nearest; their exact distances decide and are averaged.
    """
    k = n_nearest(len(references))
    out = np.empty(len(vectors))
    is_long = len(vectors) >= _MANY and is_shown()
    with detail("neighbours for CSLS", len(vectors), "vectors") if is_long else nullcontext() as bar:
        for first in range(0, len(vectors), _ROWS):
            some = vectors[first : first + _ROWS]
            form, rows = ProductForm.of(RetrievalSystem(some, references), "cosine"), np.arange(len(some))
            v_nR = form.left(rows) @ form.tile(0, len(references)).T
            # Within a margin of twice the error of the products, they include the k nearest by exact distance.
            kth = np.partition(v_nR, k - 1, axis=1)[:, k - 1].astype(np.float64)
            row, reference = np.nonzero(v_nR <= (kth + 2.001 * form.error(rows))[:, None])
            exact = form.exact(row, reference)
            starts = np.searchsorted(row, rows)
            by_distance = np.lexsort((exact, row))
            nearest_nk = exact[by_distance][starts[:, None] + np.arange(k)].astype(np.float64)
            total = np.zeros(len(some))
            for i in range(k):  # in a fixed order: the order of numpy's own sum may depend on the number of rows
                total += 1 - nearest_nk[:, i]
            out[first : first + len(some)] = total / k
            if bar is not None:
                bar.advance(len(some))
    return out


def _unit_and_two(vectors: FloatArray, references: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return (n, d + 2) float32 rows [unit vector, 1, -r / 2]; mapped from a temporary file if they are large."""
    out = room_for(len(vectors), vectors.shape[1] + 2, np.float32)
    out[:, -2] = 1
    for first in range(0, len(vectors), _ROWS):
        some = vectors[first : first + _ROWS]
        out[first : first + len(some), :-2] = ProductForm.of(RetrievalSystem(references, some), "cosine").tile(
            0, len(some)
        )
    out[:, -1] = -mean_nearest_cosine(vectors, references) / 2
    return out
