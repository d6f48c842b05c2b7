"""A fitted merge as plain data: how the distances of two systems compare.

The ranking at progress t sorts by (score of the active system's distance, distance, gallery position). Without score
maps, the score is the distance itself.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges.csls import References
from ray_backfill.engine.merges.score_map import ScoreMap
from ray_backfill.engine.systems import UpgradePair


@dataclass(frozen=True)
class Merge:
    """A fitted merge, made by ``fit_merge``. It can be pickled.

    Raises:
        InputError: Only one system has a score map, or score maps are combined with by_rank.
    """

    name: str
    """Name of its kind."""
    backward: ScoreMap | None = None
    """Maps backward distances to scores; None compares raw distances."""
    forward: ScoreMap | None = None
    """Maps forward distances to scores; None compares raw distances."""
    by_rank: bool = False
    """Compare ranks in the two systems' own lists instead of distances (reciprocal rank fusion)."""
    references: tuple[References, References] | None = None
    """For CSLS, the train vectors of the backward and of the forward system."""

    def __post_init__(self) -> None:
        if (self.backward is None) != (self.forward is None):
            raise InputError(f"merge {self.name!r} has one score map; give one for both systems, or none")
        if self.by_rank and self.backward is not None:
            raise InputError(f"merge {self.name!r} has score maps and by_rank; use one of them, not both")

    @property
    def is_mapped(self) -> bool:
        """Whether scores are compared in place of distances."""
        return self.backward is not None

    def prepare(self, pair: UpgradePair, distance: str) -> tuple[UpgradePair, str]:
        """Return the pair and the distance to replay.

        Every vector is transformed on its own, so that a part of the gallery gives the same result as the whole.
        ``pair.switch`` is kept; if both systems are one object, they still are.

        Raises:
            InputError: For CSLS, the distance is not cosine or the dimensions differ from those of the train vectors.
        """
        if self.references is None:
            return pair, distance
        of_backward, of_forward = self.references
        backward = of_backward.replace(pair.backward, distance)
        forward = backward if pair.forward is pair.backward else of_forward.replace(pair.forward, distance)
        return UpgradePair(backward, forward, pair.switch), "inner_product"

    def scores(self, distances: NDArray[np.float32], is_forward: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the (n,) scores of distances; is_forward: (n,) the system of each."""
        if self.backward is None or self.forward is None:
            return distances.astype(np.float64)
        out = np.empty(len(distances))
        for of_system, score_map in ((~is_forward, self.backward), (is_forward, self.forward)):
            out[of_system] = score_map(distances[of_system])
        return out

    def across(
        self, distances: NDArray[np.float32], from_forward: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """For each distance of one system, return the smallest distance of the other that does not rank before it.

        Also returns whether the two tie, so that positions decide.
        """
        if self.backward is None or self.forward is None:
            return distances, np.ones(len(distances), np.bool_)
        score_map, other_map = (self.forward, self.backward) if from_forward else (self.backward, self.forward)
        return other_map.first_not_before(distances, score_map(distances))

    def carry_cutoffs(self, distances: NDArray[np.float32]) -> NDArray[np.float32]:
        """For each backward distance, return the largest forward distance that does not rank after it.

        Where the scores of both are equal, raw distances decide, as in the merged ranking. A distance that no float32
        number of the forward system reaches becomes minus or plus the largest one.

        Raises:
            InputError: The merge compares ranks or scaled similarities, which have no cut-off.
        """
        if self.by_rank or self.references is not None:
            raise InputError(f"the {self.name} merge has no cut-offs that could be carried; use another merge")
        first, ties = self.across(distances, from_forward=False)
        before = np.nextafter(first, np.float32(-np.inf))
        farthest = np.finfo(np.float32).max
        return np.clip(np.where(ties, first, before), -farthest, farthest)


RAW = Merge("raw")
