"""Adapters: small maps between the embeddings of two models, fitted on pairs of embeddings alone, without labels.

{a, b}: a query is represented by its embedding under a, a gallery item by its embedding under b. Each kind of map A
comes in two directions:

- ``ridge_gallery`` and the like: {new, A(old)} for items that are not backfilled, {new, new} for those that are; both
  answers are merged by distance. From the start of the backfill the new model alone embeds queries, and a query costs
  no more than after it. The old gallery is mapped once, for p q multiply-accumulates an item; A is discarded once all
  items are backfilled.
- ``ridge_query`` and the like: {A(new), old} for items that are not backfilled, {new, new} for those that are. The old
  vectors are left as they are; each query is mapped.

A(x) = x W + b. Where distances are cosines, inputs (and targets, in fitting) are scaled to length 1 first. W and b are
fitted on items that both models have embedded (the train split). ``ridge``: W minimises ||X W - Y||^2 + strength s
||W||^2 for centred X and Y, s = trace(X^T X) / p; it is then multiplied by a factor (``stretch``), and b is mean(Y) -
mean(X) W.

Source: Schönemann 1966 (Procrustes), Izenman 1975 (reduced-rank regression), Mukherjee and Zhu 2011 (the same with a
ridge penalty), and "drift adapters", 2025 (low-rank affine, residual MLP) for retrieval. Penalties and ranks that are
not given are chosen by cross-validation: where items are hardly more than dimensions, plain least squares learns noise
(docs/results/atlas.md).

Shapes: N train items; X (N, p) inputs, Y (N, q) targets; p and q may differ.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ray_backfill.core.plugins import Deferred
from ray_backfill.learn.expressions import mapped, plain, side
from ray_backfill.learn.methods import Method
from ray_backfill.learn.models.apply import Affine, Wide, unit
from ray_backfill.learn.training.fit import (
    Choice,
    Device,
    Fit,
    FitByItems,
    Fitted,
    OnEpoch,
    TrainSet,
    trained_flops,
)  # fmt: skip
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings

T = TypeVar("T")

# Penalties, in units of the inputs' mean variance per dimension, and ranks, as shares of the smaller dimension, among
# which cross-validation chooses.
STRENGTHS = (1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RANK_SHARES = tuple(i / 8 for i in range(1, 9))
PARTS = 5
# Hidden units of an MLP on top of an affine map. Source: Drift-Adapter, section 3.
MLP_HIDDEN = 256
# From this many items on, one held-out part tells the strengths apart as well as all five do (each item says something
# in every dimension), at a fifth of the cost.
MANY = 1_000

# Larger arrays, in bytes, are not held for the next formula.
_MOST_SHARED = 1 << 28
# Least reciprocal condition of x^T x at which it may be inverted: that of x is then 1e-5, and errors stay below 1e-6.
_LEAST_RCOND = 1e-10

_TRAIN_MLP = Deferred("ray_backfill.learn.papers.drift_adapter", "train_mlp")


@dataclass(frozen=True, eq=False)
class Pairs:
    """Embeddings of N items to fit a map on. What several formulas need of them is computed once.

    x: (N, p) inputs. y: (N, q) targets. They must not change. inverse: the pairs from y to x, if they were made first.
    """

    x: Wide
    y: Wide
    inverse: "Pairs | None" = None
    _by_strength: dict[tuple[str, float], Wide] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, data: TrainSet, source: str, target: str, is_cosine: bool) -> "Pairs":
        """Those of two models. Formulas of both directions share them, as long as ``data.shared`` holds them."""
        if (source, target, is_cosine) in data.shared:
            return cast("Pairs", data.shared[source, target, is_cosine])
        if (inverse := data.shared.get((target, source, is_cosine))) is not None:
            pairs = cast("Pairs", inverse).reversed()
        else:
            x, y = (data.vectors[model] for model in (source, target))
            pairs = cls(unit(x), unit(y)) if is_cosine else cls(np.asarray(x, np.float64), np.asarray(y, np.float64))
        if max(pairs.x.nbytes, pairs.y.nbytes) <= _MOST_SHARED:
            data.shared[source, target, is_cosine] = pairs
        return pairs

    def reversed(self) -> "Pairs":
        """From the targets to the inputs."""
        return Pairs(self.y, self.x, self)

    @cached_property
    def centred(self) -> "Pairs":
        """Both minus their means."""
        if self.inverse:
            return self.inverse.centred.reversed()
        return Pairs(self.x - self.x.mean(0), self.y - self.y.mean(0))

    @cached_property
    def gram(self) -> Wide:
        """x^T x, (p, p)."""
        return self.x.T @ self.x

    @cached_property
    def cross(self) -> Wide:
        """x^T y, (p, q)."""
        return self.x.T @ self.y

    @cached_property
    def spectrum(self) -> tuple[Wide, Wide]:
        """(p,) eigenvalues and (p, p) eigenvectors of x^T x."""
        return cast("tuple[Wide, Wide]", np.linalg.eigh(self.gram))

    @cached_property
    def rotation(self) -> Wide:
        """(p, q) W with orthonormal rows or columns: the polar factor of x^T y. For p <= q, it minimises ||x W - y||^2.

        Both directions share one decomposition. Source: Schönemann 1966, for p = q.
        """
        if self.inverse:
            return self.inverse.rotation.T
        is_first = (self.x.shape[1], self.x[0, 0]) <= (self.y.shape[1], self.y[0, 0])  # the same in every run
        u, _, vt = np.linalg.svd(self.cross if is_first else self.y.T @ self.x, full_matrices=False)
        return u @ vt if is_first else (u @ vt).T

    @cached_property
    def folds(self) -> "list[Fold]":
        """Fifths of the items in random order, each held out in turn; only the first one where there are many items."""
        if self.inverse:
            return [Fold(pairs.reversed(), held_y, held_x) for pairs, held_x, held_y in self.inverse.folds]
        folds = []
        fifths = np.array_split(np.random.default_rng(0).permutation(len(self.x)), PARTS)
        for held in fifths if len(self.x) < MANY else fifths[:1]:
            seen = np.ones(len(self.x), bool)
            seen[held] = False
            mean_x, mean_y = self.x[seen].mean(0), self.y[seen].mean(0)
            pairs = Pairs(self.x[seen] - mean_x, self.y[seen] - mean_y)
            folds.append(Fold(pairs, self.x[held] - mean_x, self.y[held] - mean_y))
        return folds

    def regression(self, strength: float) -> Wide:
        """(p, q) W that minimises ||x W - y||^2 + strength * s * ||W||^2, s = trace(x^T x) / p."""
        if ("regression", strength) not in self._by_strength:
            self._by_strength["regression", strength] = regression(self, strength)
        return self._by_strength["regression", strength]

    def main_directions(self, strength: float) -> Wide:
        """(q, min(p, q)) directions of the fitted values, the largest first; a penalty acts like p more items."""
        if ("directions", strength) not in self._by_strength:
            weight = self.regression(strength)
            fitted = weight.T @ self.cross  # weight^T (x^T x + penalty) weight, which is symmetric
            directions = np.linalg.eigh(fitted)[1][:, ::-1][:, : min(weight.shape)]
            self._by_strength["directions", strength] = directions
        return self._by_strength["directions", strength]


class Fold(NamedTuple):
    """One split of the train items: what is fitted on and what is held out, both centred on the means of the former."""

    pairs: Pairs
    held_x: Wide
    held_y: Wide


# -> weight W, (p, q), and bias b, (q,), of the map X W + b.
Formula = Callable[[Pairs, AdapterSettings], tuple[Wide, Wide]]


def procrustes(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return pairs.rotation, np.zeros(pairs.y.shape[1])


def procrustes_centred(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    return about_means(pairs, pairs.centred.rotation)


def least_squares(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """Without a penalty; only for comparison where there are fewer than some 10 items per dimension."""
    return about_means(pairs, pairs.centred.regression(0.0))


def relaxed(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """A regression whose penalty draws the map to the rotation."""
    strength = settings.relaxation if settings.relaxation is not None else strength_of(pairs, to_rotation=True)
    return about_means(pairs, regression(pairs.centred, strength, pairs.centred.rotation))


def ridge(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """A regression whose penalty draws the map to zero, then ``stretch``."""
    strength = settings.ridge if settings.ridge is not None else strength_of(pairs)
    return about_means(
        pairs, pairs.centred.regression(strength) * stretch(pairs, lambda seen: seen.regression(strength))
    )


def low_rank(pairs: Pairs, settings: AdapterSettings) -> tuple[Wide, Wide]:
    """Ridge of a rank, stretched."""
    strength = strength_of(pairs)
    fit = partial(reduced_rank, rank=rank_of(pairs, strength, settings.rank_share), strength=strength)
    return about_means(pairs, fit(pairs.centred) * stretch(pairs, fit))


def strength_of(pairs: Pairs, to_rotation: bool = False) -> float:
    """The strength of the penalty that predicts held-out items best. Cost: O(N p (p + q) + p^3).

    to_rotation: the penalty draws to the rotation, instead of to zero, which is a ridge.
    """
    errors = []
    for seen, held_x, held_y in pairs.folds:
        if to_rotation:
            # What the rotation leaves over is predicted by a ridge regression.
            left, held_y = seen.y - seen.x @ seen.rotation, held_y - held_x @ seen.rotation
        else:
            left = seen.y
        scale, basis = seen.spectrum
        weight, held_x = basis.T @ (seen.x.T @ left), held_x @ basis
        # |H D W - Y|^2 of H held_x, Y what it should give and D diagonal: the same products for every strength.
        square = (held_x.T @ held_x) * (weight @ weight.T)
        cross = ((held_x.T @ held_y) * weight).sum(axis=1)
        inverse = [1 / (scale + strength * scale.mean()) for strength in STRENGTHS]
        errors.append([float(d @ square @ d - 2 * d @ cross) for d in inverse])
    return best_of(STRENGTHS, errors)


def rank_of(pairs: Pairs, strength: float, share: float | None) -> int:
    """The share of the smaller dimension; None: that rank, of eight, which predicts held-out items best."""
    smaller = min(pairs.x.shape[1], pairs.y.shape[1])
    if share is not None:
        return max(1, round(share * smaller))
    ranks = [max(1, round(some * smaller)) for some in RANK_SHARES]
    errors = []
    for seen, held_x, held_y in pairs.folds:
        directions = seen.main_directions(strength)
        coordinates = held_x @ seen.regression(strength) @ directions
        # Directions are orthonormal, so each changes the squared error by itself.
        changes = (coordinates * (coordinates - 2 * held_y @ directions)).sum(axis=0).cumsum()
        errors.append([float(changes[rank - 1]) for rank in ranks])
    return best_of(ranks, errors)


def stretch(pairs: Pairs, fit: Callable[[Pairs], Wide]) -> float:
    """Factor by which predictions of unseen items must be scaled to vary as much as the targets do.

    A penalised map predicts unseen items closer to their mean than true embeddings lie, the more so the less it knows:
    they then tend to be closer to a query than the items' embeddings by the new model, and the merged ranking shows
    mapped items first (ADR 16).
    """
    predicted = true = 0.0
    for seen, held_x, held_y in pairs.folds:
        predicted += _square(held_x @ fit(seen))
        true += _square(held_y)
    return float(np.sqrt(true / predicted)) if predicted > 0 else 1.0


def about_means(pairs: Pairs, weight: Wide) -> tuple[Wide, Wide]:
    """The (p, q) weight W that was fitted on ``pairs.centred``, with the (q,) bias b of the map x W + b."""
    return weight, pairs.y.mean(0) - pairs.x.mean(0) @ weight


def regression(pairs: Pairs, strength: float, towards: Wide | None = None) -> Wide:
    """(p, q) W that minimises ||x W - y||^2 + strength * s * ||W - towards||^2, s = trace(x^T x) / p.

    towards: default 0, which is ridge regression. Deviates: in the literature lambda-orthogonal maps are trained under
    a constraint; a penalty towards the rotation has a closed form and the same two limits.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve, lapack, solve

    gram, right = pairs.gram.copy(), pairs.cross
    norm, weight = np.linalg.norm(gram, 1), strength * np.trace(gram) / len(gram)
    if towards is not None:
        right = right + weight * towards
    gram[np.diag_indices_from(gram)] += weight
    if weight > 0:
        with suppress(LinAlgError):
            return cast("Wide", solve(gram, right, assume_a="pos"))
        return cast("Wide", solve(gram, right, assume_a="sym"))  # a penalty that is lost in rounding
    with suppress(LinAlgError):  # singular: constant dimensions, or fewer items than dimensions
        factor = cho_factor(gram)
        if lapack.dpocon(factor[0], norm)[0] > _LEAST_RCOND:
            first = cho_solve(factor, right)  # and once more, for what is lost by squaring x
            return cast("Wide", first + cho_solve(factor, pairs.x.T @ (pairs.y - pairs.x @ first)))
    return np.linalg.lstsq(pairs.x, pairs.y, rcond=None)[0].astype(np.float64)


def reduced_rank(pairs: Pairs, rank: int, strength: float = 0.0) -> Wide:
    """(p, q) W of at most this rank that minimises what ``regression`` does. Source: Izenman 1975 (identity weights)
    without a penalty, Mukherjee and Zhu 2011 with one."""
    weight = pairs.regression(strength)
    if rank >= min(weight.shape):
        return weight
    directions = pairs.main_directions(strength)[:, :rank]
    return weight @ directions @ directions.T


def best_of(values: Sequence[T], errors: Sequence[Sequence[float]]) -> T:
    """The value of the least error. errors: for each part, one squared error per value, up to a constant."""
    return values[int(np.sum(errors, axis=0).argmin())]


def _square(values: Wide) -> float:
    return float(np.vdot(values, values))


@dataclass(frozen=True)
class FormulaFit(Fit):
    """An affine map from the embeddings of ``source`` to those of ``target``, recorded by the formula's name.

    space: settings of the formula, if it has any.
    """

    formula: Formula
    source: str
    target: str
    space: tuple[Choice, ...] = ()

    option = "adapters"
    is_trained = False

    @property
    def models(self) -> tuple[str, str]:
        return self.source, self.target

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        this = {"kind": self.formula.__name__, "source": self.source, "target": self.target}
        return {"fit": this, "adapters": asdict(settings.adapters), "unit": distance == "cosine"}

    def share(self, data: TrainSet, settings: FitSettings, workers: int) -> int:
        """A formula needs all items at once, on one worker."""
        return len(data)

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        source, target = (data.vectors[model] for model in self.models)
        # Of x^T x and x^T y alone: choosing a penalty or a rank costs 3 to 30 times as much (docs/log.md).
        flops = 2 * len(source) * source.shape[1] * (source.shape[1] + target.shape[1])
        return Fitted(self.affine(data, settings.adapters, distance), flops)

    def affine(self, data: TrainSet, settings: AdapterSettings, distance: str) -> Affine:
        """The affine map. Cost: O(N p (p + q)), and O((p + q)^3)."""
        is_cosine = distance == "cosine"
        weight, bias = self.formula(Pairs.of(data, *self.models, is_cosine), settings)
        return Affine(weight.T.astype(np.float32), bias.astype(np.float32), is_cosine)


@dataclass(frozen=True)
class ResidualFit(FitByItems):
    """A small MLP on top of an affine map, trained on the squared error. base: the affine map, fitted by --adapters."""

    base: FormulaFit

    @property
    def models(self) -> tuple[str, str]:
        return self.base.models

    def recorded(self, settings: FitSettings, distance: str) -> dict[str, Any]:
        of_base = self.base.recorded(settings, distance)
        return of_base | {"fit": of_base["fit"] | {"kind": "residual_mlp"}, "training": asdict(settings.transforms)}

    def fit(
        self, data: TrainSet, settings: FitSettings, distance: str, device: Device = None, on_epoch: OnEpoch = None
    ) -> Fitted:
        base = self.base.affine(data, settings.adapters, distance)
        return _TRAIN_MLP(base, data, self.models, base.unit, settings.transforms, device, on_epoch)

    def step_flops(self, dims: Mapping[str, int], n: int, n_classes: int, settings: FitSettings, distance: str) -> int:
        p, q = (dims[model] for model in self.models)
        return n * trained_flops([(MLP_HIDDEN, q)], [(p, q), (p, MLP_HIDDEN)])


# {new, A(old)} and {A(new), old}.
MAPPED_GALLERY, MAPPED_QUERY = side("new", mapped("A", "old")), side(mapped("A", "new"), "old")


def _both_ways(name: str, title: str, fit: Callable[[str, str], Fit]) -> tuple[Method, Method]:
    """Both directions of an adapter. fit: makes the fit from a source and a target model."""

    both = partial(Method, forward=plain("new"), family="Adapters", glossary=_GLOSSARY)
    gallery, query = f"{name}_gallery", f"{name}_query"
    return (
        both(
            gallery, f"{title}, gallery", "old -> new", MAPPED_GALLERY, fit=fit("old", "new"),
            is_recommended=gallery in _RECOMMENDED,
        ),
        both(query, f"{title}, query", "new -> old", MAPPED_QUERY, fit=fit("new", "old")),
    )  # fmt: skip


_GLOSSARY = {
    "Adapter": "A small map between the embeddings of two models, fitted on pairs of embeddings without labels. "
    "gallery: it maps the old gallery into the new space; query: it maps new queries into the old space."
}
# The maps that docs/results/atlas.md finds near the best whatever the dimensions. Both map the gallery: queries mapped
# into an old space of another number of dimensions lose more than they gain, unless both models are alike.
_RECOMMENDED = ("relaxed_gallery", "ridge_gallery")

FORMULAS: dict[Formula, str] = {
    procrustes: "Procrustes",
    procrustes_centred: "centred Procrustes",
    relaxed: "relaxed Procrustes",
    least_squares: "least squares",
    ridge: "ridge",
    low_rank: "low-rank affine",
}

# What --tune may choose.
_PENALTIES = (0.0, *STRENGTHS)
_SPACES: dict[Formula, tuple[Choice, ...]] = {
    relaxed: (Choice("adapters.relaxation", _PENALTIES),),
    ridge: (Choice("adapters.ridge", _PENALTIES),),
    low_rank: (Choice("adapters.rank_share", RANK_SHARES),),
}

METHODS = (
    *(
        method
        for formula, title in FORMULAS.items()
        for method in _both_ways(formula.__name__, title, partial(FormulaFit, formula, space=_SPACES.get(formula, ())))
    ),
    *_both_ways(
        "residual_mlp", "residual MLP", lambda source, target: ResidualFit(FormulaFit(relaxed, source, target))
    ),
)
