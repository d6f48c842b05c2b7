"""A fitted merge as plain data: how the distances of two systems compare.

The ranking at progress t is by (score of the active system's distance, distance, gallery position); without score maps
the distances are their own scores.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.merges.csls import References
from ray_backfill.merges.score_map import ScoreMap
from ray_backfill.systems import UpgradePair


@dataclass(frozen=True)
class Merge:
    """Plain data that pickles; ``fit_merge`` makes it.

    backward, forward: how each system's distances become scores; None for distances as they are.
    by_rank: reciprocal rank fusion instead: places in the two systems' own lists are compared, not distances.
    references: what replaces both systems by others (CSLS), if anything does: that of the backward and of the forward.

    Raises:
        InputError: a score map for one system only, or together with by_rank.
    """

    name: str
    backward: ScoreMap | None = None
    forward: ScoreMap | None = None
    by_rank: bool = False
    references: tuple[References, References] | None = None

    def __post_init__(self) -> None:
        if (self.backward is None) != (self.forward is None):
            raise InputError(f"merge {self.name!r} needs a score map for both systems, or for none")
        if self.by_rank and self.backward is not None:
            raise InputError(f"merge {self.name!r} compares places or scores, not both")

    @property
    def is_mapped(self) -> bool:
        """Whether scores are compared in place of distances."""
        return self.backward is not None

    def prepare(self, pair: UpgradePair, distance: str) -> tuple[UpgradePair, str]:
        """The pair and the distance to replay. Vector by vector, so that a part of the gallery gives what all of it

        gives; ``pair.switch`` stays, and so does one system that is both.

        Raises:
            InputError: CSLS with another distance than cosine, or vectors of other dimensions than those it was fit on.
        """
        if self.references is None:
            return pair, distance
        of_backward, of_forward = self.references
        backward = of_backward.replace(pair.backward, distance)
        forward = backward if pair.forward is pair.backward else of_forward.replace(pair.forward, distance)
        return UpgradePair(backward, forward, pair.switch), "inner_product"

    def scores(self, distances: NDArray[np.float32], is_forward: NDArray[np.bool_]) -> NDArray[np.float64]:
        """(n,) scores of distances of either system."""
        if self.backward is None or self.forward is None:
            return distances.astype(np.float64)
        out = np.empty(len(distances))
        for of_system, score_map in ((~is_forward, self.backward), (is_forward, self.forward)):
            out[of_system] = score_map(distances[of_system])
        return out

    def across(
        self, distances: NDArray[np.float32], from_forward: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """For distances of one system: the smallest distance of the other one that does not rank before each, and

        whether the two tie, so that positions decide.
        """
        if self.backward is None or self.forward is None:
            return distances, np.ones(len(distances), np.bool_)
        own, other = (self.forward, self.backward) if from_forward else (self.backward, self.forward)
        return other.first_not_before(distances, own(distances))


RAW = Merge("raw")
