"""What a method does, as data: expressions over the embeddings of models and the maps that are fitted together.

An expression says what a query or a gallery item is compared by. Which models embed it, its dimensions and cost, and
whether it is a model's own embedding follow from the expression alone; equal expressions have equal vectors.

Shapes: n vectors, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.models.apply import macs, named_map, output_dim, transform

Expression: TypeAlias = "Stored | Mapped | Prefix | Resized"


@dataclass(frozen=True)
class Stored:
    """The embedding of a model."""

    model: str

    def __str__(self) -> str:
        return self.model


@dataclass(frozen=True)
class Mapped:
    """A fitted map of embeddings of the same items. name: of the map, as psi, rho, h; A for a method's only one."""

    name: str
    of: tuple[Expression, ...]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.of))})"


@dataclass(frozen=True)
class Prefix:
    """The first dimensions of an embedding: as many as both it and the embedding of the model ``like`` have."""

    of: Expression
    like: str

    def __str__(self) -> str:
        return f"{self.of} in the dimensions that {self.like} has, too"


@dataclass(frozen=True)
class Resized:
    """An embedding cut, or filled up with zeros, to the dimensions of the model ``like``."""

    of: Expression
    like: str

    def __str__(self) -> str:
        return f"{self.of} in as many dimensions as {self.like}"


@dataclass(frozen=True)
class Side:
    """One system of a method: what queries and gallery items are compared by."""

    query: Expression
    gallery: Expression

    def __str__(self) -> str:
        return f"{{{self.query}, {self.gallery}}}"

    @property
    def plain(self) -> str:
        """The model x if this is {x, x}; "" otherwise."""
        return self.query.model if self.query == self.gallery and isinstance(self.query, Stored) else ""


def mapped(name: str, *of: Expression | str) -> Mapped:
    """A map of expressions; a string names a model."""
    return Mapped(name, tuple(_expression(inner) for inner in of))


def side(query: Expression | str, gallery: Expression | str) -> Side:
    """A system; a string names a model."""
    return Side(_expression(query), _expression(gallery))


def plain(model: str) -> Side:
    """{model, model}."""
    return side(model, model)


def _expression(given: Expression | str) -> Expression:
    return Stored(given) if isinstance(given, str) else given


def parts(expression: Expression) -> Iterator[Expression]:
    """Its inputs, the inputs of these, and so on; itself comes last."""
    if isinstance(expression, Mapped):
        for inner in expression.of:
            yield from parts(inner)
    elif not isinstance(expression, Stored):
        yield from parts(expression.of)
    yield expression


def stored_models(*expressions: Expression) -> tuple[str, ...]:
    """The models whose embeddings they need, without repetitions."""
    models = (part.model for expression in expressions for part in parts(expression) if isinstance(part, Stored))
    return tuple(dict.fromkeys(models))


def maps_of(*expressions: Expression) -> tuple[Mapped, ...]:
    """The maps to apply, each once, in an order in which that is possible."""
    applied = (part for expression in expressions for part in parts(expression) if isinstance(part, Mapped))
    return tuple(dict.fromkeys(applied))


def dim_of(expression: Expression, dims: Mapping[str, int], network: Any) -> int:
    """Its number of dimensions. dims: of each model. network: the fitted maps."""
    match expression:
        case Stored(model):
            return dims[model]
        case Mapped(name, of):
            return output_dim(named_map(network, name), [dim_of(inner, dims, network) for inner in of])
        case Prefix(of, like):
            return min(dim_of(of, dims, network), dims[like])
        case Resized(_, like):
            return dims[like]


def macs_of(network: Any, *expressions: Expression) -> int:
    """Multiply-accumulates of the maps for one query or item; what expressions share is computed once."""
    return sum(macs(named_map(network, applied.name)) for applied in maps_of(*expressions))


@dataclass
class Evaluator:
    """Computes expressions of the same n queries or items; what they share is computed once.

    vectors: model -> (n, d), as far as the expressions need them. network: the fitted maps. dims: of each model.
    """

    vectors: Mapping[str, FloatArray]
    network: Any
    dims: Mapping[str, int]
    _known: dict[Expression, FloatArray] = field(default_factory=dict)

    def __call__(self, expression: Expression) -> FloatArray:
        """(n, d) vectors: a model's own as they are, the results of maps in float32."""
        if isinstance(expression, Stored):
            return self.vectors[expression.model]
        if expression in self._known:
            return self._known[expression]
        computed: Any
        if isinstance(expression, Mapped):
            computed = transform(named_map(self.network, expression.name), *map(self, expression.of))
        else:
            vectors, width = self(expression.of), self.dims[expression.like]
            missing = width - vectors.shape[1]
            computed = vectors[:, :width]
            if isinstance(expression, Prefix):
                computed = np.ascontiguousarray(computed)
            elif missing > 0:
                computed = np.pad(vectors.astype(np.float32), ((0, 0), (0, missing)))
        self._known[expression] = computed
        return self._known[expression]


def to_json(expression: Expression) -> dict[str, Any]:
    """As JSON has it; ``from_json`` reads it."""
    match expression:
        case Stored(model):
            return {"model": model}
        case Mapped(name, of):
            return {"map": name, "of": [to_json(inner) for inner in of]}
        case Prefix(of, like):
            return {"prefix": to_json(of), "like": like}
        case Resized(of, like):
            return {"resized": to_json(of), "like": like}


def from_json(value: Any) -> Expression:
    """The expression that ``to_json`` has written. Raises InputError for anything else."""
    match value:
        case {"model": str(model), **rest} if not rest:
            return Stored(model)
        case {"map": str(name), "of": [_, *_] as of, **rest} if not rest:
            return Mapped(name, tuple(map(from_json, of)))
        case {"prefix": of, "like": str(like), **rest} if not rest:
            return Prefix(from_json(of), like)
        case {"resized": of, "like": str(like), **rest} if not rest:
            return Resized(from_json(of), like)
    raise InputError(f"unknown expression {value!r}; it was written by another version of ray_backfill")
