"""Drift-Adapter as published: three maps of new queries into the old space, with a diagonal scaling matrix.

Source: Vejendla, "Drift-Adapter: A Practical Approach to Near Zero-Downtime Embedding Model Upgrades in Vector
Databases", EMNLP 2025 (arXiv 2509.23471), section 3: orthogonal Procrustes, low-rank affine U V^T x + t of rank 64, a
residual MLP x + W2 GELU(W1 x + b1) + b2 with 256 hidden units, and S g(x) with a diagonal S (DSM), all fitted on the
squared error of pairs of embeddings. Procrustes without S is the method ``procrustes_query``.
S has no effect on the low-rank map, and is left out there: S U V^T x + S t is a map of the same kind, so the best one
has S = 1.
Deviates: the best low-rank map is computed, not trained. How the paper trains the MLP is not known to us; here it is
trained like the other networks, by --transforms, on all pairs.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import Method
from ray_backfill.learn.methods.adapters import (
    MAPPED_QUERY,
    MLP_HIDDEN,
    FormulaFit,
    Pairs,
    about_means,
    reduced_rank,
)
from ray_backfill.learn.models.apply import Wide
from ray_backfill.learn.training.fit import Choice, Device, Fit, FitByItems, Fitted, OnEpoch, TrainSet, trained_flops
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings

_TRAIN = Deferred("ray_backfill.learn.papers.drift_adapter", "train_mlp")


def drift_procrustes(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """The rotation, then the best scaling of each of its results."""
    weight = pairs.rotation
    return weight * scaling(pairs.x @ weight, pairs.y), np.zeros(pairs.y.shape[1])


def drift_low_rank(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    rank = min(settings.drift_rank, pairs.x.shape[1], pairs.y.shape[1])
    return about_means(pairs, reduced_rank(pairs.centred, rank))


def scaling(predicted_Nq: Wide, y_Nq: Wide) -> Wide:
    """(q,) diagonal of the S that minimises ||predicted S - y||^2; 1 where all predictions are 0."""
    products, squares = (predicted_Nq * y_Nq).sum(0), (predicted_Nq**2).sum(0)
    return np.where(squares > 0, products / np.where(squares > 0, squares, 1), 1.0)


@dataclass(frozen=True)
class ScaledResidualFit(FitByItems):
    """Drift-Adapter's MLP from new embeddings to old ones, trained on the squared error."""

    models = ("new", "old")

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": "scaled_residual", "source": "new", "target": "old"}
        return {"fit": this, "training": asdict(settings.transforms), "unit": distance == "cosine"}

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        return _TRAIN(None, data, self.models, distance == "cosine", settings.transforms, device, on_epoch)

    def step_flops(self, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str) -> int:
        return n * trained_flops([(MLP_HIDDEN, dims["old"])], [(dims["new"], MLP_HIDDEN)])


_GLOSSARY = {
    "Drift-Adapter": "A small map of new queries into the old space, so that they search the old gallery as it is.",
    "DSM": "Diagonal scaling matrix: Drift-Adapter's factor for each dimension of the mapped query.",
}


def _method(name: str, title: str, source: str, fit: Fit) -> Method:
    title, source = f"Drift-Adapter {title}", f"Drift-Adapter, section 3{source}"
    return Method(name, title, source, MAPPED_QUERY, plain("new"), "Adapters", fit, glossary=_GLOSSARY)


# What --tune may choose.
_RANKS = (Choice("adapters.drift_rank", (8, 16, 24, 32, 48, 64, 96, 128)),)

METHODS = (
    _method("drift_procrustes", "Procrustes + DSM", "", FormulaFit(drift_procrustes, "new", "old")),
    _method("drift_low_rank", "low-rank affine", ": rank 64", FormulaFit(drift_low_rank, "new", "old", _RANKS)),
    _method("drift_mlp", "MLP + DSM", ": 256 hidden units", ScaledResidualFit()),
)
