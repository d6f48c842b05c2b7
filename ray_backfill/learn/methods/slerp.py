"""SLERP: queries between the old embedding and the new one, which is rotated into the old space. Nothing is trained.

Source: Ricci, Biondi and Pernici, "Spherical Interpolation for Backward-Compatible Multimodal Representations",
NeurIPS 2026 (arXiv 2609.39836), and the authors' public code: orthogonal Procrustes on a support set, then one point
of the arc for all queries, the alpha in 0, 0.1, ..., 1 with the best Recall@1 on that set; if several are best, the
smallest.
Deviates: the support set is the train split, where the items of a class are the right answers and an item never finds
itself; the paper has pairs of images and texts. Without labels alpha is 0.5, as in the authors' example.

Shapes: N train items, Q of them as queries; B queries; d dimensions of the old model, n of the new one.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method
from ray_backfill.learn.methods.adapters import FormulaFit, procrustes
from ray_backfill.learn.models.apply import FormulaMap, Wide, transform, unit
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import FitSettings

# Points of the arc to choose from, and the one without labels. Source: the authors' public code.
ALPHAS = tuple(i / 10 for i in range(11))
_MIDDLE = 0.5
# Most queries and items that recall is measured with.
QUERIES, ITEMS = 1_024, 65_536
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

    def mapped(self, *vectors_Bp: Wide) -> Wide:
        """(B, d) and (B, n) embeddings of the same queries -> (B, d)."""
        old_Bd, new_Bn = vectors_Bp
        u_Bd, v_Bd = unit(old_Bd), unit(new_Bn) @ self.rotation_dn.T.astype(np.float64)
        theta_B1 = np.arccos((u_Bd * v_Bd).sum(1, keepdims=True).clip(-1 + _NEAR, 1 - _NEAR))
        shares_B1 = np.sin((1 - self.alpha) * theta_B1), np.sin(self.alpha * theta_B1)
        return (shares_B1[0] * u_Bd + shares_B1[1] * v_Bd) / np.sin(theta_B1)


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
        points = [replace(middle, alpha=alpha) for alpha in ALPHAS]
        found = [
            recall_at_1(transform(point, old[queries], new[queries]), old[items], data.label[items]) for point in points
        ]
        searched = 2 * len(ALPHAS) * len(queries) * len(items) * old.shape[1]
        return Fitted(points[int(np.argmax(found))], flops + searched)


def recall_at_1(query_Qd: NDArray[np.floating], old_Nd: NDArray[np.floating], label_N: NDArray[Any]) -> float:
    """Share of queries whose closest other item by cosine is of their class. The queries are the first Q items."""
    similar_QN = unit(query_Qd) @ unit(old_Nd).T
    np.fill_diagonal(similar_QN, -np.inf)
    return float((label_N[similar_QN.argmax(1)] == label_N[: len(query_Qd)]).mean())


def _pair(e: Embeddings, network: Any) -> UpgradePair:
    """{slerp(old, new), old} and {new, new}: a query is embedded by both models."""
    between = transform(network, e.query["old"], e.query["new"])
    return UpgradePair(RetrievalSystem(between, e.gallery["old"]), e.system("new"))


METHODS = (
    Method(
        "slerp",
        "SLERP",
        "Ricci et al. 2026: Procrustes, then spherical interpolation",
        _pair,
        "Adapters",
        SlerpFit(procrustes, "new", "old"),
        forward="new",
        is_recommended=True,
        glossary={
            "SLERP": "Spherical interpolation: old items are searched with a point between the old query and the new "
            "one, which is rotated into the old space. Each query is embedded by both models."
        },
    ),
)
