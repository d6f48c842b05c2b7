"""Applies a method to one side at a time, as a live service never has all embeddings at once.

A shard has the old embeddings long before the new ones, and inserted items have no old ones, but ``Method.pair`` takes
both. The backward gallery depends on the old models' embeddings only and the forward gallery on the new models' only (a
test checks this for every method), so each side is computed with vectors of ones in place of the missing embeddings.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import FloatArray, UpgradePair
from ray_backfill.learn.methods import POLICIES, Embeddings, Method, all_backbones

Side = Literal["backward", "forward"]
SIDES: tuple[Side, Side] = ("backward", "forward")


def old_models(method: Method) -> tuple[str, ...]:
    """The models whose gallery embeddings exist before the backfill starts."""
    kinds = all_backbones()
    return tuple(m for m in method.models if m == "old" or (m in kinds and kinds[m].like == "old"))


def new_models(method: Method) -> tuple[str, ...]:
    """The models that embed the gallery during the backfill; as few as the method's pair allows."""
    made = tuple(model for model in method.models if model not in old_models(method))
    # A method with its own backbone lists "new", but serves without it.
    return tuple(m for m in made if m != "new") or made


def check_live(method: Method, merge: Merge) -> None:
    """Raises InputError if the method or the merge cannot serve a live drill."""
    if method.is_reference:
        raise InputError(f"live.method {method.name!r} backfills nothing; choose an upgrade method, such as rm")
    if method.family == POLICIES:
        raise InputError(f"live.method {method.name!r} is replayed only; choose an upgrade method, such as rm")
    if merge.by_rank:
        raise InputError(
            f"merge {merge.name!r} needs ranks over the whole gallery, which no shard has; choose another, such as raw"
        )


@dataclass(frozen=True)
class Sides:
    """A method with its fitted network, merge and distance. dims: embedding dimension of each of its models."""

    method: Method
    network: Any
    merge: Merge
    distance: str
    dims: Mapping[str, int]

    @property
    def live_distance(self) -> str:
        """The distance between vectors of ``queries`` and ``gallery``; CSLS replaces the configured one."""
        return self.distance if self.merge.references is None else "inner_product"

    def queries(self, vectors: Mapping[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """(Q, d) backward and (Q, d') forward query vectors, from all models' embeddings of the queries."""
        pair = self._pair(vectors, {}, 1)
        return pair.backward.query, pair.forward.query

    def gallery(self, side: Side, vectors: Mapping[str, FloatArray]) -> FloatArray:
        """(n, d) gallery vectors of one system, from the embeddings of its models. n may be 0."""
        n_items = len(next(iter(vectors.values())))
        pair = self._pair({}, vectors, max(n_items, 1))
        return getattr(pair, side).gallery[:n_items]

    def dim(self, side: Side) -> int:
        """Dimension of the vectors that ``gallery`` returns."""
        return self.gallery(side, {model: _ones(1, dim) for model, dim in self.dims.items()}).shape[1]

    def _pair(self, query: Mapping[str, FloatArray], gallery: Mapping[str, FloatArray], n_items: int) -> UpgradePair:
        n_queries = len(next(iter(query.values()))) if query else 1
        embeddings = Embeddings(self._filled(query, n_queries), self._filled(gallery, n_items))
        return self.merge.prepare(self.method.pair(embeddings, self.network), self.distance)[0]

    def _filled(self, vectors: Mapping[str, FloatArray], n: int) -> dict[str, FloatArray]:
        return {
            model: vectors[model] if len(vectors.get(model, ())) else _ones(n, self.dims[model])
            for model in self.method.models
        }


def _ones(n: int, dim: int) -> NDArray[np.float32]:
    return np.ones((n, dim), np.float32)


def dims_of(tables: Iterable[Mapping[str, FloatArray]]) -> dict[str, int]:
    """Embedding dimension of each model, from whichever table has it."""
    return {model: vectors.shape[1] for table in tables for model, vectors in table.items()}
