"""Fits the interpolation between old and rotated new queries: the rotation by a formula, the point by recall.

Shapes: N train items, Q of them as queries, d dimensions of the old model.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.learn.training.adapters import FormulaFit, Wide
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import FitSettings

# Points of the arc to choose from, and the one without labels. Source: the authors' public code.
ALPHAS = tuple(i / 10 for i in range(11))
_MIDDLE = 0.5
# Most queries and items that recall is measured with.
_QUERIES, _ITEMS = 1_024, 65_536


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
        import torch

        from ray_backfill.learn.models.apply import transform
        from ray_backfill.learn.models.slerp import Slerp, SlerpShape
        from ray_backfill.learn.training.adapter_loop import fit_affine

        new, old = (data.vectors[model] for model in self.models)
        rotation = fit_affine(self, data, settings.adapters, "cosine").linear.weight

        def at(alpha: float) -> Slerp:
            network = Slerp(SlerpShape(old.shape[1], new.shape[1], alpha))
            with torch.no_grad():
                network.rotation.weight.copy_(rotation)
            return network.eval()

        flops = 2 * len(new) * new.shape[1] * (new.shape[1] + old.shape[1])
        if data.label is None:
            return Fitted(at(_MIDDLE), flops)
        items = np.random.default_rng(0).permutation(len(new))[:_ITEMS]
        queries = items[:_QUERIES]
        found = [recall_at_1(transform(at(alpha), old[queries], new[queries]), old[items], data.label[items])
                 for alpha in ALPHAS]  # fmt: skip
        searched = 2 * len(ALPHAS) * len(queries) * len(items) * old.shape[1]
        return Fitted(at(ALPHAS[int(np.argmax(found))]), flops + searched)


def recall_at_1(query_Qd: NDArray[np.floating], old_Nd: NDArray[np.floating], label_N: NDArray[Any]) -> float:
    """Share of queries whose closest other item by cosine is of their class. The queries are the first Q items."""
    similar_QN = _unit(query_Qd) @ _unit(old_Nd).T
    np.fill_diagonal(similar_QN, -np.inf)
    return float((label_N[similar_QN.argmax(1)] == label_N[: len(query_Qd)]).mean())


def _unit(vectors: NDArray[np.floating]) -> Wide:
    wide = np.asarray(vectors, np.float64)
    return wide / np.linalg.norm(wide, axis=1, keepdims=True)
