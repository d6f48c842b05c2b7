"""SLERP: queries between the old embedding and the new one, which is rotated into the old space. Nothing is trained.

Source: Ricci, Biondi and Pernici, "Spherical Interpolation for Backward-Compatible Multimodal Representations",
NeurIPS 2026 (arXiv 2609.39836), and the authors' public code: orthogonal Procrustes on a support set, then one point
of the arc for all queries, the alpha in 0, 0.1, ..., 1 with the best Recall@1 on that set; if several are best, the
smallest.
Deviates: the support set is the train split, where the items of a class are the right answers and an item never finds
itself; the paper has pairs of images and texts. Without labels alpha is 0.5, as in the authors' example.

Shapes: N train items, Q of them as queries; B queries; d dimensions of the old model, n of the new one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.learn.expressions import mapped, plain, side
from ray_backfill.learn.methods import Method
from ray_backfill.learn.methods.adapters import FormulaFit, procrustes
from ray_backfill.learn.models.apply import FormulaMap, Wide, unit
from ray_backfill.learn.models.operators import Op, unit_of
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import FitSettings

# Points of the arc to choose from, and the one without labels. Source: the authors' public code.
ALPHAS = tuple(i / 10 for i in range(11))
_MIDDLE = 0.5
# Most queries and items that recall is measured with.
QUERIES, ITEMS = 1_024, 65_536
# Queries whose similarities are in memory at a time.
_ROWS = 128
# Closest that a cosine may come to 1 or -1, where the angle has no sine to divide by. Source: the authors' code.
_NEAR = 1e-7


@dataclass(eq=False)
class Slerp(FormulaMap):
    """sin((1 - alpha) theta) / sin(theta) u + sin(alpha theta) / sin(theta) v, with u old and v the rotated new query.

    If the new model has more dimensions, the paper fills up the old ones with zeros, so that the rotation is square.
    The gallery is zero there, so only the first d dimensions of v are computed; its length is 1 in all n, and theta is
    that of the paper.

    alpha: the point of the arc, from 0 (the old query) to 1 (the rotated new one).
    """

    rotation_dn: NDArray[np.float32]
    alpha: float

    kind, arrays = "slerp", {"rotation_dn": "rotation.weight"}

    @property
    def shape(self) -> dict[str, Any]:
        d, n = self.rotation_dn.shape
        return {"old_dim": d, "new_dim": n, "alpha": self.alpha}

    def output_dim(self, *dims: int) -> int:
        return len(self.rotation_dn)

    def __call__(self, *vectors_Bp: Wide) -> Wide:
        """(B, d) and (B, n) embeddings of the same queries -> (B, d)."""
        u_Bd, v_Bd = self.ends(*vectors_Bp)
        of_u_B1, of_v_B1 = weights(u_Bd, v_Bd, self.alpha)
        return of_u_B1 * u_Bd + of_v_B1 * v_Bd

    def ends(self, old_Bd: NDArray[np.floating], new_Bn: NDArray[np.floating]) -> tuple[Wide, Wide]:
        """u and v, (B, d) each."""
        return unit(old_Bd), unit(new_Bn) @ self.rotation_dn.T.astype(np.float64)

    def onnx(self, op: Op, old: str, new: str) -> str:
        u, v = unit_of(op, old), op("Gemm", unit_of(op, new), self.rotation_dn, transB=1)
        cosine = op("ReduceSum", op("Mul", u, v), np.array([1]), keepdims=1)
        # In float32 no number below 1 is closer to it.
        theta = op("Acos", op("Clip", cosine, np.float32(-1 + _NEAR), np.float32(1 - _NEAR)))
        shares = (
            op("Div", op("Sin", op("Mul", theta, np.float32(share))), op("Sin", theta))
            for share in (1 - self.alpha, self.alpha)
        )
        return op("Add", *(op("Mul", share, end) for share, end in zip(shares, (u, v), strict=True)))


def weights(u_Bd: Wide, v_Bd: Wide, alpha: float) -> tuple[Wide, Wide]:
    """(B, 1) of u and of v."""
    theta_B1 = np.arccos((u_Bd * v_Bd).sum(1, keepdims=True).clip(-1 + _NEAR, 1 - _NEAR))
    return np.sin((1 - alpha) * theta_B1) / np.sin(theta_B1), np.sin(alpha * theta_B1) / np.sin(theta_B1)


@dataclass(frozen=True)
class SlerpFit(FormulaFit):
    """A rotation from ``source`` to ``target``, and the point between the target's query and the rotated one."""

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "slerp", "formula": self.formula.__name__, "source": self.source, "target": self.target}
        return {"fit": this}

    def distance_problem(self, settings: FitSettings, distance: str) -> str:
        return "" if distance == "cosine" else f"SLERP is made for the cosine distance, not for {distance}"

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        new, old = (data.vectors[model] for model in self.models)
        middle = Slerp(self.affine(data, settings.adapters, "cosine").weight_qp, _MIDDLE)
        flops = 2 * len(new) * new.shape[1] * (new.shape[1] + old.shape[1])
        if data.label is None:
            return Fitted(middle, flops)
        items = np.random.default_rng(0).permutation(len(new))[:ITEMS]
        queries = items[:QUERIES]
        u_Qd, v_Qd = middle.ends(old[queries], new[queries])
        old_Nd = unit(old[items])
        recalls = recalls_at_1(
            (u_Qd, v_Qd), (old_Nd, old_Nd), [weights(u_Qd, v_Qd, alpha) for alpha in ALPHAS], data.label[items]
        )
        searched = 4 * len(queries) * len(items) * old.shape[1]
        return Fitted(replace(middle, alpha=ALPHAS[int(np.argmax(recalls))]), flops + searched)


def recalls_at_1(
    queries: tuple[Wide, Wide], items: tuple[Wide, Wide], weights: Sequence[tuple[Any, Any]], label_N: NDArray[Any]
) -> list[float]:
    """Share of queries whose most similar other item is of their class, for weighted sums of two similarities.

    Two products serve all weights.

    Args:
        queries: (Q, d) and (Q, n); the queries are the first Q items.
        items: (N, d) and (N, n); a similarity is an inner product with the query's vector of the same place.
        weights: Of both similarities, as numbers or as (Q, 1) arrays.
        label_N: Of the items.
    """
    right = np.zeros(len(weights), np.int64)
    for first in range(0, len(queries[0]), _ROWS):
        rows = np.arange(first, min(first + _ROWS, len(queries[0])))
        one_BN, two_BN = (query[rows] @ item.T for query, item in zip(queries, items, strict=True))
        for i, both in enumerate(weights):
            of_one, of_two = (weight[rows] if isinstance(weight, np.ndarray) else weight for weight in both)
            similar_BN = of_one * one_BN + of_two * two_BN
            similar_BN[np.arange(len(rows)), rows] = -np.inf
            right[i] += np.count_nonzero(label_N[similar_BN.argmax(1)] == label_N[rows])
    return [int(hits) / len(queries[0]) for hits in right]


METHODS = (
    Method(  # a query is embedded by both models
        "slerp", "SLERP", "Ricci et al. 2026: Procrustes, then spherical interpolation",
        side(mapped("slerp", "old", "new"), "old"), plain("new"), "Adapters", SlerpFit(procrustes, "new", "old"),
        is_recommended=True,
        glossary={
            "SLERP": "Spherical interpolation: old items are searched with a point between the old query and the new "
            "one, which is rotated into the old space. Each query is embedded by both models."
        },
    ),
)  # fmt: skip
