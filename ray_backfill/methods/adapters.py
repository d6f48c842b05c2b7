"""Adapters: small maps between the embeddings of two models, fitted on pairs of embeddings alone, without labels.

Each kind comes in two directions: ``_gallery`` maps the old gallery into the new space, {new, A(old)}; ``_query`` maps
new queries into the old space, {A(new), old}. Source: Schönemann 1966 (Procrustes), Izenman 1975 (reduced-rank
regression), and "drift adapters", 2025 (low-rank affine, residual MLP) for retrieval.

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ray_backfill.methods import Embeddings, Method
from ray_backfill.methods.baselines import new_system
from ray_backfill.models.apply import transform
from ray_backfill.systems import RetrievalSystem, UpgradePair
from ray_backfill.training.adapters import Formula, FormulaFit, ResidualFit, Wide
from ray_backfill.training.fit import Choice, Fit
from ray_backfill.training.settings import AdapterSettings

_GLOSSARY = {
    "Adapter": "A small map between the embeddings of two models, fitted on pairs of embeddings without labels. "
    "gallery: it maps the old gallery into the new space; query: it maps new queries into the old space."
}


Pair = Callable[[Embeddings, Any], UpgradePair]


def procrustes(x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return rotation(x_Np, y_Nq), np.zeros(y_Nq.shape[1])


def procrustes_centred(x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return about_means(x_Np, y_Nq, rotation)


def relaxed(x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return about_means(x_Np, y_Nq, lambda x, y: regression(x, y, settings.relaxation, towards=rotation(x, y)))


def least_squares(x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return about_means(x_Np, y_Nq, lambda x, y: regression(x, y, 0.0))


def ridge(x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return about_means(x_Np, y_Nq, lambda x, y: regression(x, y, settings.ridge))


def low_rank(x_Np: Wide, y_Nq: Wide, settings: AdapterSettings) -> tuple[Wide, Wide]:
    rank = max(1, round(settings.rank_share * min(x_Np.shape[1], y_Nq.shape[1])))
    return about_means(x_Np, y_Nq, lambda x, y: reduced_rank(x, y, rank))


def about_means(x_Np: Wide, y_Nq: Wide, weight_of: Callable[[Wide, Wide], Wide]) -> tuple[Wide, Wide]:
    """Fit the (p, q) weight W on centred inputs and targets; returns it with the (q,) bias b of the map x W + b."""
    mean_x, mean_y = x_Np.mean(0), y_Nq.mean(0)
    weight = weight_of(x_Np - mean_x, y_Nq - mean_y)
    return weight, mean_y - mean_x @ weight


def rotation(x_Np: Wide, y_Nq: Wide) -> Wide:
    """(p, q) W with orthonormal rows or columns: the polar factor of x^T y, which minimises ||x W - y||^2 for p <= q.

    Source: Schönemann 1966, for p = q.
    """
    u, _, vt = np.linalg.svd(x_Np.T @ y_Nq, full_matrices=False)
    return u @ vt


def regression(x_Np: Wide, y_Nq: Wide, strength: float, towards: Wide | None = None) -> Wide:
    """(p, q) W that minimises ||x W - y||^2 + strength * s * ||W - towards||^2, s = trace(x^T x) / p.

    towards: default 0, which is ridge regression. Deviates: in the literature lambda-orthogonal maps are trained under
    a constraint; a penalty towards the rotation has a closed form and the same two limits.
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


def _gallery(e: Embeddings, network: Any) -> UpgradePair:
    """{new, A(old)} and {new, new}."""
    return UpgradePair(RetrievalSystem(e.query["new"], transform(network, e.gallery["old"])), new_system(e))


def query_pair(e: Embeddings, network: Any) -> UpgradePair:
    """{A(new), old} and {new, new}."""
    return UpgradePair(RetrievalSystem(transform(network, e.query["new"]), e.gallery["old"]), new_system(e))


def _both_ways(name: str, title: str, fit: Callable[[str, str], Fit]) -> tuple[Method, Method]:
    """Both directions of an adapter. fit: makes the fit from a source and a target model."""

    def method(direction: str, source: str, pair: Pair, own: Fit, aligned: bool) -> Method:
        full = f"{name}_{direction}"
        return Method(
            full, f"{title}, {direction}", source, pair, "Adapters", own, forward="new", aligned=aligned,
            is_recommended=full in _RECOMMENDED, glossary=_GLOSSARY,
        )  # fmt: skip

    return (
        method("gallery", "old -> new", _gallery, fit("old", "new"), aligned=True),
        method("query", "new -> old", query_pair, fit("new", "old"), aligned=False),
    )


# The map that docs/results recommends, and the best-known baseline.
_RECOMMENDED = ("least_squares_gallery", "procrustes_query")

FORMULAS: dict[Formula, str] = {
    procrustes: "Procrustes",
    procrustes_centred: "centred Procrustes",
    relaxed: "relaxed Procrustes",
    least_squares: "least squares",
    ridge: "ridge",
    low_rank: "low-rank affine",
}

# What --tune may choose.
_PENALTIES = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
_SPACES: dict[Formula, tuple[Choice, ...]] = {
    relaxed: (Choice("adapters.relaxation", _PENALTIES),),
    ridge: (Choice("adapters.ridge", _PENALTIES),),
    low_rank: (Choice("adapters.rank_share", tuple(i / 8 for i in range(1, 9))),),
}

METHODS = (
    *(
        method
        for formula, title in FORMULAS.items()
        for method in _both_ways(formula.__name__, title, partial(FormulaFit, formula, space=_SPACES.get(formula, ())))
    ),
    *_both_ways("residual_mlp", "residual MLP", partial(ResidualFit, least_squares)),
)
