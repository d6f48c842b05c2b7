"""Local adapters: a map of its own for each cluster of old embeddings, drawn to one map for all.

Source: Nakashole, "NORMA: Neighborhood Sensitive Maps for Multilingual Word Embeddings", EMNLP 2018: neighbourhoods
of the source space have maps of their own.
Deviates: clusters by k-means instead of a learned dictionary; each map is a ridge regression towards the map of all
items (``adapters.relaxed``), so that clusters with few items fall back on it.

Shapes: N train items; k clusters; p dimensions of the old model, q of the new one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.learn.expressions import plain
from ray_backfill.learn.methods import Method
from ray_backfill.learn.methods.adapters import (
    MAPPED_GALLERY,
    FormulaFit,
    Pairs,
    about_means,
    relaxed,
    strength_of,
)
from ray_backfill.learn.models.apply import FormulaMap, Wide, unit
from ray_backfill.learn.models.operators import Op, unit_of
from ray_backfill.learn.training.fit import Device, Fitted, OnEpoch, TrainSet
from ray_backfill.learn.training.settings import FitSettings

# Train items of a cluster, on average, for each old dimension; clusters, at most; rounds of k-means.
_PER_DIMENSION, _MOST, _ROUNDS = 2, 16, 20


@dataclass(eq=False)
class Local(FormulaMap):
    """x W_c + b_c, c the cluster whose centre is closest to x, which is scaled to length 1 if ``unit`` is set."""

    centre_kp: NDArray[np.float32]
    weight_kqp: NDArray[np.float32]
    bias_kq: NDArray[np.float32]
    unit: bool = True

    kind, arrays = "local", {"centre_kp": "centre", "weight_kqp": "linear.weight", "bias_kq": "linear.bias"}

    @property
    def shape(self) -> dict[str, Any]:
        k, q, p = self.weight_kqp.shape
        return {"clusters": k, "input_dim": p, "output_dim": q, "unit": self.unit}

    @property
    def macs(self) -> int:
        """Those of all distances to centres, and of one map."""
        return self.centre_kp.size + self.weight_kqp[0].size

    def output_dim(self, *dims: int) -> int:
        return self.bias_kq.shape[1]

    def __call__(self, *vectors_Bp: Wide) -> Wide:
        (x_Bp,) = vectors_Bp
        x_Bp = unit(x_Bp) if self.unit else x_Bp
        cluster_B = closest(x_Bp, self.centre_kp.astype(np.float64))
        out = np.empty((len(x_Bp), self.bias_kq.shape[1]))
        for c in np.unique(cluster_B):
            rows = cluster_B == c
            out[rows] = x_Bp[rows] @ self.weight_kqp[c].T.astype(np.float64) + self.bias_kq[c]
        return out

    def onnx(self, op: Op, x: str) -> str:
        """Maps by all clusters and takes one: k times the arithmetic, but no map is copied for each item."""
        x, (k, q, p) = unit_of(op, x) if self.unit else x, self.weight_kqp.shape
        apart = op("Sub", (self.centre_kp**2).sum(1), op("Gemm", x, 2 * self.centre_kp, transB=1))
        cluster = op("ArgMin", apart, axis=1, keepdims=1)
        of_all = op("Gemm", x, self.weight_kqp.reshape(k * q, p), self.bias_kq.reshape(k * q), transB=1)
        is_own = op("Cast", op("Equal", cluster, np.arange(k)), to=1)
        weighed = op("Mul", op("Reshape", of_all, np.array([-1, k, q])), op("Unsqueeze", is_own, np.array([2])))
        return op("ReduceSum", weighed, np.array([1]), keepdims=0)


def closest(x_Np: Wide, centre_kp: Wide) -> NDArray[np.int64]:
    """(N,) number of the centre that is closest to each item."""
    return np.asarray(((centre_kp**2).sum(1) - 2 * x_Np @ centre_kp.T).argmin(1), np.int64)


def clustered(x_Np: Wide, k: int, seed: int = 0) -> Wide:
    """(k, p) centres by k-means from k random items. A cluster that becomes empty keeps its centre."""
    centre_kp = x_Np[np.random.default_rng(seed).permutation(len(x_Np))[:k]].copy()
    for _ in range(_ROUNDS):
        cluster_N = closest(x_Np, centre_kp)
        for c in np.unique(cluster_N):
            centre_kp[c] = x_Np[cluster_N == c].mean(0)
    return centre_kp


@dataclass(frozen=True)
class LocalFit(FormulaFit):
    """One map, and from it one for each cluster."""

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        of_base = super().recorded(settings, distance)
        return of_base | {"fit": of_base["fit"] | {"kind": "local"}}

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        pairs = Pairs.of(data, *self.models, distance == "cosine")
        x_Np, y_Nq = pairs.x, pairs.y
        weight_pq, bias_q = self.formula(pairs, settings.adapters)
        left_Nq = y_Nq - x_Np @ weight_pq - bias_q
        k = min(_MOST, max(1, len(x_Np) // (_PER_DIMENSION * x_Np.shape[1])))
        centre_kp = clustered(x_Np, k)
        cluster_N = closest(x_Np, centre_kp)
        weights, biases = [], []
        for c in range(k):
            rows = cluster_N == c
            more_pq, more_q = np.zeros_like(weight_pq), np.zeros_like(bias_q)
            if rows.sum() >= x_Np.shape[1]:
                left = Pairs(x_Np[rows], left_Nq[rows])
                more_pq, more_q = about_means(left, left.centred.regression(strength_of(left)))
            weights.append((weight_pq + more_pq).T)
            biases.append(bias_q + more_q)
        flops = 4 * len(x_Np) * x_Np.shape[1] * (x_Np.shape[1] + y_Nq.shape[1]) + 2 * _ROUNDS * x_Np.size * k
        weight_kqp, bias_kq = np.stack(weights).astype(np.float32), np.stack(biases).astype(np.float32)
        return Fitted(Local(centre_kp.astype(np.float32), weight_kqp, bias_kq, distance == "cosine"), flops)


METHODS = (
    Method(
        "local_gallery", "local adapters, gallery", "Nakashole 2018: maps of neighbourhoods", MAPPED_GALLERY,
        plain("new"), "Adapters", LocalFit(relaxed, "old", "new"),
        glossary={"Local adapters": "A map of the old gallery that has a part of its own for each cluster of it."},
    ),
)  # fmt: skip
