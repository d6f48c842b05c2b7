"""Cross-domain similarity local scaling: a similarity counts for less between vectors that have many close ones.

Source: Conneau et al., Word translation without parallel data (ICLR 2018), section 2.3:
CSLS(q, g) = 2 cos(q, g) - r(q) - r(g), r being the mean cosine to the k nearest vectors of the other side.
Deviates: r is taken to train vectors in place of the gallery's and the queries' own, which change during the backfill.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.distances import ProductForm, Products
from ray_backfill.errors import InputError
from ray_backfill.kernels import Array, kernel
from ray_backfill.store import room_for
from ray_backfill.systems import FloatArray, IntArray, RetrievalSystem, UpgradePair

NEIGHBOURS = 10
# Train items that r is taken over: more cost time for every query and gallery item.
_MOST_ROWS = 4096
# Vectors that are taken at a time: their products with all references are 16 MB.
_ROWS = 1024


@dataclass(frozen=True)
class References:
    """The train vectors of one system that r is taken over: (R, d) of its query side and of its gallery side."""

    query: NDArray[np.float32]
    gallery: NDArray[np.float32]

    def replace(self, system: RetrievalSystem, distance: str) -> RetrievalSystem:
        """The system whose inner products are CSLS / 2: [unit q, 1, -r(q) / 2] and [unit g, -r(g) / 2, 1], float32.

        Raises:
            InputError: another distance than cosine, vectors of other dimensions than the references, a zero vector.
        Cost: 2 R d for each vector, and a copy of queries and gallery.
        """
        if distance != "cosine":
            raise InputError(f"the csls merge is made for the cosine distance, not {distance}")
        if system.query.shape[1] != self.query.shape[1]:
            raise InputError(
                f"CSLS was fit on vectors of {self.query.shape[1]} dimensions, these have {system.query.shape[1]}; "
                "fit it on the same systems"
            )
        query = _unit_and_two(system.query, self.gallery)
        gallery = _unit_and_two(system.gallery, self.query)
        gallery[:, [-2, -1]] = gallery[:, [-1, -2]]
        return RetrievalSystem(query, gallery)


def fit_csls(train: UpgradePair, seed: int) -> tuple[References, References]:
    """The references of the backward and of the forward system."""
    rows = np.arange(train.n_gallery)
    if len(rows) > _MOST_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _MOST_ROWS, replace=False))
    backward, forward = (
        References(system.query[rows].astype(np.float32), system.gallery[rows].astype(np.float32))
        for system in (train.backward, train.forward)
    )
    return backward, forward


def mean_nearest_cosine(vectors: FloatArray, references: NDArray[np.float32]) -> NDArray[np.float64]:
    """(n,) r: the mean cosine of each vector to its ``NEIGHBOURS`` nearest references (or to all, if there are fewer).

    The same bits for a vector alone or among any others: float32 products only find the few references that can be
    among the nearest, their exact distances decide and are averaged.
    """
    k = min(NEIGHBOURS, len(references))
    out = np.empty(len(vectors))
    for first in range(0, len(vectors), _ROWS):
        some = vectors[first : first + _ROWS]
        form, rows = ProductForm.of(RetrievalSystem(some, references), "cosine"), np.arange(len(some))
        v_nR = Products(form, rows).tile(0, len(references))
        row, reference = _find_near(v_nR, k, 2.001 * form.error(rows))
        exact = form.exact(row, reference)
        starts = np.searchsorted(row, rows)
        by_distance = np.lexsort((exact, row))
        nearest_nk = exact[by_distance][starts[:, None] + np.arange(k)].astype(np.float64)
        total = np.zeros(len(some))
        for i in range(k):  # one after the other: numpy's own sum may group them by the number of rows
            total += 1 - nearest_nk[:, i]
        out[first : first + len(some)] = total / k
    return out


def _unit_and_two(vectors: FloatArray, references: NDArray[np.float32]) -> NDArray[np.float32]:
    """(n, d + 2) float32 [unit vector, 1, -r / 2]; mapped from a temporary file if it is large."""
    out = room_for(len(vectors), vectors.shape[1] + 2, np.float32)
    out[:, -2] = 1
    for first in range(0, len(vectors), _ROWS):
        some = vectors[first : first + _ROWS]
        out[first : first + len(some), :-2] = ProductForm.of(RetrievalSystem(references, some), "cosine").tile(
            0, len(some)
        )
    out[:, -1] = -mean_nearest_cosine(vectors, references) / 2
    return out


def _find_near(v_nR: NDArray[np.float32], k: int, margins: NDArray[np.float64]) -> tuple[IntArray, IntArray]:
    """(row, column) of all entries within a row's margin of its k-th smallest, in the order of rows.

    With twice the error of the products as margin, the k nearest by exact distance are among them.
    """
    limits, counts = np.empty(len(v_nR)), np.empty(len(v_nR), np.int64)
    _find_limits(v_nR, k, margins, limits, counts)
    columns = np.empty(counts.sum(), np.int64)
    _collect(v_nR, limits, columns)
    return np.repeat(np.arange(len(v_nR)), counts), columns


@kernel
def _find_limits(v_nR: Array, k: int, margins: Array, limits: Array, counts: Array) -> None:
    """The limit of each row, and how many entries are within. Most entries cost one comparison."""
    smallest = np.empty(k, np.float32)
    for q in range(len(v_nR)):
        smallest[:] = np.inf
        for v in v_nR[q]:
            if v < smallest[k - 1]:
                at = k - 1
                while at > 0 and smallest[at - 1] > v:
                    smallest[at] = smallest[at - 1]
                    at -= 1
                smallest[at] = v
        limits[q] = np.float64(smallest[k - 1]) + margins[q]
        counts[q] = 0
        for v in v_nR[q]:
            counts[q] += v <= limits[q]


@kernel
def _collect(v_nR: Array, limits: Array, columns: Array) -> None:
    found = 0
    for q in range(len(v_nR)):
        for j in range(v_nR.shape[1]):
            if v_nR[q, j] <= limits[q]:
                columns[found] = j
                found += 1
