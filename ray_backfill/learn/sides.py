"""Applies a method to one side at a time: a live service never has all embeddings at once.

A shard has the old embeddings long before the new ones, and inserted items have no old ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import Merge
from ray_backfill.engine.systems import FloatArray, check_finite
from ray_backfill.learn.expressions import Evaluator, dim_of
from ray_backfill.learn.methods import Method

SideName = Literal["backward", "forward"]
SIDES: tuple[SideName, SideName] = ("backward", "forward")


def check_live(method: Method, merge: Merge) -> None:
    """Raises InputError if the method or the merge cannot serve a live drill."""
    if method.is_reference:
        raise InputError(f"live.method {method.name!r} backfills nothing; choose an upgrade method, such as rm")
    if not method.is_merged:
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
        evaluate = Evaluator(vectors, self.network, self.dims)
        backward, forward = (evaluate(side.query) for side in self.method.sides)
        check_finite(backward, "query embeddings")
        check_finite(forward, "query embeddings")
        if self.merge.references is None:
            return backward, forward
        of_backward, of_forward = self.merge.references
        return of_backward.queries(backward, self.distance), of_forward.queries(forward, self.distance)

    def gallery(self, name: SideName, vectors: Mapping[str, FloatArray]) -> FloatArray:
        """(n, d) gallery vectors of one system, from the embeddings of its models. n may be 0."""
        if not len(next(iter(vectors.values()))):
            return np.empty((0, self.dim(name)), np.float32)
        side = self.method.sides[SIDES.index(name)]
        mapped = Evaluator(vectors, self.network, self.dims)(side.gallery)
        check_finite(mapped, "gallery embeddings")
        references = self.merge.references
        return mapped if references is None else references[SIDES.index(name)].gallery_items(mapped, self.distance)

    def dim(self, name: SideName) -> int:
        """Dimension of the vectors that ``gallery`` returns."""
        expression = self.method.sides[SIDES.index(name)].gallery
        return dim_of(expression, self.dims, self.network) + 2 * (self.merge.references is not None)


def dims_of(tables: Iterable[Mapping[str, FloatArray]]) -> dict[str, int]:
    """Embedding dimension of each model, from whichever table has it."""
    return {model: vectors.shape[1] for table in tables for model, vectors in table.items()}
