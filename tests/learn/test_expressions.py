"""Expressions: their dimensions are those of the vectors that they give, and JSON holds them."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.learn.expressions import (
    Evaluation,
    Expression,
    Prefix,
    Resized,
    Stored,
    dim_of,
    from_json,
    mapped,
    to_json,
)
from ray_backfill.learn.models.apply import Affine

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("dims", [{"old": 5, "new": 8}, {"old": 8, "new": 5}, {"old": 6, "new": 6}], ids=str)
@pytest.mark.parametrize(
    ("expression", "width"),
    [
        (Stored("old"), lambda old, new: old),
        (mapped("A", "old"), lambda old, new: 7),
        (Prefix(Stored("old"), "new"), min),
        (Resized(Stored("new"), "old"), lambda old, new: old),
        (Resized(mapped("A", "old"), "new"), lambda old, new: new),
        (Prefix(mapped("A", "old"), "new"), lambda old, new: min(7, new)),
    ],
    ids=str,
)
def test_dimensions_are_those_of_the_vectors(expression: Expression, width: object, dims: dict[str, int]) -> None:
    weight, bias = RNG.normal(size=(7, dims["old"])).astype(np.float32), np.zeros(7, np.float32)
    network = Affine(weight, bias, unit=False)
    vectors = {model: RNG.normal(size=(3, dim)).astype(np.float32) for model, dim in dims.items()}
    of_items = Evaluation(vectors, network, dims)(expression)
    assert callable(width)
    assert of_items.shape == (3, width(dims["old"], dims["new"]))
    assert dim_of(expression, dims, network) == of_items.shape[1]
    assert from_json(to_json(expression)) == expression


@pytest.mark.parametrize("written", [{}, {"model": 3}, {"map": "A", "of": []}, {"model": "old", "like": "new"}, "old"])
def test_anything_else_is_refused(written: object) -> None:
    with pytest.raises(InputError, match="unknown expression"):
        from_json(written)
