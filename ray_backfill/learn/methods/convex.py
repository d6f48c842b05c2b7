"""Convex fusion: a backfilled item keeps its old vector, and its similarity is a mean of both models' similarities.

Source: Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval", TOIS 2023, section 3: a convex
combination of two systems' scores is better than their reciprocal ranks.
Deviates: similarities are cosines and are not normalised first; the weight is chosen on train items with labels, and is
one half without them. Items that are not backfilled have one similarity, that of the old model.

Shapes: B vectors; d dimensions of the old model, n of the new one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.learn.expressions import mapped, plain, side
from ray_backfill.learn.methods import POLICIES, ItemByItem, Method
from ray_backfill.learn.methods.adapters import FormulaFit, procrustes
from ray_backfill.learn.methods.slerp import ITEMS, QUERIES, recalls_at_1
from ray_backfill.learn.models.apply import FormulaMap, Wide, unit
from ray_backfill.learn.models.operators import Op, unit_of
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import FitSettings

ALPHAS = tuple(i / 10 for i in range(1, 11))


@dataclass(eq=False)
class Convex(FormulaMap):
    """Both embeddings side by side, so that cosines are alpha times the new model's plus 1 - alpha times the old one's.

    alpha_1: (1,) weight of the new model.
    """

    alpha_1: NDArray[np.float32]

    kind, arrays = "convex", {"alpha_1": "alpha"}

    @property
    def shape(self) -> dict[str, Any]:
        return {}

    def output_dim(self, *dims: int) -> int:
        return sum(dims)

    def __call__(self, *vectors_Bp: Wide) -> Wide:
        """(B, d) and (B, n) embeddings of the same items -> (B, d + n)."""
        old_Bd, new_Bn = vectors_Bp
        alpha = float(self.alpha_1[0])
        return np.concatenate([np.sqrt(1 - alpha) * unit(old_Bd), np.sqrt(alpha) * unit(new_Bn)], 1)

    def onnx(self, op: Op, old: str, new: str) -> str:
        shares = (1 - self.alpha_1, old), (self.alpha_1, new)
        return op("Concat", *(op("Mul", unit_of(op, x), np.sqrt(share)) for share, x in shares), axis=1)


@dataclass(frozen=True)
class ConvexFit(FormulaFit):
    """The weight of the new model."""

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        return {"fit": {"kind": "convex", "source": self.source, "target": self.target}}

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        return "" if distance == "cosine" else f"convex fusion is made for the cosine distance, not for {distance}"

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        old, new = (data.vectors[model] for model in self.models)
        if data.label is None:
            return Fitted(Convex(np.array([0.5], np.float32)), 0)
        items = np.random.default_rng(0).permutation(len(new))[:ITEMS]
        queries = items[:QUERIES]
        old_Nd, new_Nn = unit(old[items]), unit(new[items])
        some = (old_Nd[: len(queries)], new_Nn[: len(queries)])
        recalls = recalls_at_1(some, (old_Nd, new_Nn), [(1 - alpha, alpha) for alpha in ALPHAS], data.label[items])
        searched = 2 * len(queries) * len(items) * (old.shape[1] + new.shape[1])
        return Fitted(Convex(np.array([ALPHAS[int(np.argmax(recalls))]], np.float32)), searched)


_BOTH = mapped("convex", "old", "new")

METHODS = (
    Method(
        "convex", "convex fusion", "Bruch et al. 2023, section 3: a convex combination of similarities",
        plain("old"), side(_BOTH, _BOTH), POLICIES, ConvexFit(procrustes, "old", "new"), ItemByItem(is_merged=False),
        glossary={
            "Convex fusion": "A backfilled item keeps its old vector, too: its similarity is a weighted mean of both "
            "models' similarities, also when the backfill is finished. Twice the memory, and each query is embedded by "
            "both models."
        },
    ),
)  # fmt: skip
