"""Adapters: small maps between the embeddings of two models, fitted on pairs of embeddings alone, without labels.

Each kind comes in two directions: ``_gallery`` maps the old gallery into the new space, {new, A(old)}; ``_query`` maps
new queries into the old space, {A(new), old}. Source: Schönemann 1966 (Procrustes), Izenman 1975 (reduced-rank
regression), and "drift adapters", 2025 (low-rank affine, residual MLP) for retrieval.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ray_backfill.errors import InputError, require_positive
from ray_backfill.methods import Adapter, Embeddings, Method
from ray_backfill.methods.baselines import new_system
from ray_backfill.models.maps import Affine, AffineShape, transform
from ray_backfill.systems import RetrievalSystem, UpgradePair

Wide = NDArray[np.float64]
KINDS = ("procrustes", "procrustes_centred", "relaxed", "least_squares", "ridge", "low_rank", "residual_mlp")
TITLES = {
    "procrustes": "Procrustes",
    "procrustes_centred": "centred Procrustes",
    "relaxed": "relaxed Procrustes",
    "least_squares": "least squares",
    "ridge": "ridge",
    "low_rank": "low-rank affine",
    "residual_mlp": "residual MLP",
}


@dataclass(frozen=True)
class AdapterSettings:
    """How adapters are fitted."""

    # Of ridge, in units of the inputs' mean variance a dimension: how strongly the map is drawn to zero.
    ridge: float = 0.1
    # Of the relaxed map, in the same units: how strongly it is drawn to the orthogonal one. 0 is least squares.
    relaxation: float = 1.0
    # Of the low-rank map: its rank as a share of the smaller dimension.
    rank_share: float = 0.5

    def __post_init__(self) -> None:
        require_positive(self, "rank_share")
        if self.ridge < 0 or self.relaxation < 0:
            raise InputError("--adapters.ridge and --adapters.relaxation must not be negative")
        if self.rank_share > 1:
            raise InputError(f"--adapters.rank-share must be at most 1, got {self.rank_share}")


def fit_affine(
    kind: str, source_Np: NDArray[np.floating], target_Nq: NDArray[np.floating], settings: AdapterSettings, unit: bool
) -> Affine:
    """The affine map of ``kind`` from one model's embeddings to another's.

    unit: both sides are scaled to length 1 first, as the cosine distance does. residual_mlp: what its MLP starts from.
    Cost: O(N p (p + q)), and O((p + q)^3).
    """
    x, y = (_unit(v) if unit else np.asarray(v, np.float64) for v in (source_Np, target_Nq))
    weight, bias = solve(kind, x, y, settings)
    network = Affine(AffineShape(x.shape[1], y.shape[1], unit))
    with torch.no_grad():
        network.linear.weight.copy_(torch.from_numpy(weight.T.copy()))
        network.linear.bias.copy_(torch.from_numpy(bias))
    return network.eval()


def solve(kind: str, x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """(p, q) weight W and (q,) bias b of x W + b."""
    if kind == "procrustes":
        return rotation(x_Np, y_Nq), np.zeros(y_Nq.shape[1])
    mean_x, mean_y = x_Np.mean(0), y_Nq.mean(0)
    x, y = x_Np - mean_x, y_Nq - mean_y
    if kind == "procrustes_centred":
        weight = rotation(x, y)
    elif kind == "relaxed":
        weight = regression(x, y, settings.relaxation, towards=rotation(x, y))
    elif kind == "ridge":
        weight = regression(x, y, settings.ridge)
    elif kind == "low_rank":
        weight = reduced_rank(x, y, max(1, round(settings.rank_share * min(x.shape[1], y.shape[1]))))
    elif kind in ("least_squares", "residual_mlp"):
        weight = regression(x, y, 0.0)
    else:
        raise InputError(f"unknown adapter {kind!r}; known: {', '.join(KINDS)}")
    return weight, mean_y - mean_x @ weight


def rotation(x_Np: Wide, y_Nq: Wide) -> Wide:
    """(p, q) W with orthonormal rows or columns that minimises ||x W - y||^2 (for p <= q; the same polar factor else).

    Source: Schönemann 1966; for p != q the polar factor of x^T y.
    """
    u, _, vt = np.linalg.svd(x_Np.T @ y_Nq, full_matrices=False)
    return u @ vt


def regression(x_Np: Wide, y_Nq: Wide, strength: float, towards: Wide | None = None) -> Wide:
    """(p, q) W that minimises ||x W - y||^2 + strength * s * ||W - towards||^2, s = trace(x^T x) / p.

    towards: default 0, which is ridge. Deviates: lambda-orthogonal maps are trained under a constraint in the
    literature; drawing the regression to the rotation has a closed form and the same two ends.
    """
    gram, cross = x_Np.T @ x_Np, x_Np.T @ y_Nq
    weight = strength * np.trace(gram) / len(gram)
    if weight == 0:
        return np.linalg.lstsq(x_Np, y_Nq, rcond=None)[0].astype(np.float64)
    right = cross if towards is None else cross + weight * towards
    return np.linalg.solve(gram + weight * np.eye(len(gram)), right)


def reduced_rank(x_Np: Wide, y_Nq: Wide, rank: int) -> Wide:
    """(p, q) W of at most this rank that minimises ||x W - y||^2. Source: Izenman 1975 (identity weights)."""
    weight = regression(x_Np, y_Nq, 0.0)
    _, _, vt = np.linalg.svd(x_Np @ weight, full_matrices=False)
    return weight @ vt[:rank].T @ vt[:rank]


def _unit(vectors: NDArray[np.floating]) -> Wide:
    wide = np.asarray(vectors, np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(length == 0, 1, length)


def _gallery(e: Embeddings, network: Any) -> UpgradePair:
    """{new, A(old)} and {new, new}."""
    return UpgradePair(RetrievalSystem(e.query["new"], transform(network, e.gallery["old"])), new_system(e))


def _query(e: Embeddings, network: Any) -> UpgradePair:
    """{A(new), old} and {new, new}."""
    return UpgradePair(RetrievalSystem(transform(network, e.query["new"]), e.gallery["old"]), new_system(e))


METHODS = tuple(
    method
    for kind in KINDS
    for method in (
        Method(
            f"{kind}_gallery", f"{TITLES[kind]}, gallery", "old -> new", _gallery, Adapter(kind, "old", "new"),
            aligned=True,
        ),
        Method(f"{kind}_query", f"{TITLES[kind]}, query", "new -> old", _query, Adapter(kind, "new", "old")),
    )
)  # fmt: skip
