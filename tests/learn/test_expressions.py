"""Expressions: their dimensions are those of the vectors that they give, and JSON holds them."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.learn.expressions import (
    Evaluator,
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


@pytest.mark.parametrize(
    ("expression", "of_5_and_8", "of_8_and_5", "of_6_and_6"),
    [
        (Stored("old"), 5, 8, 6),
        (mapped("A", "old"), 7, 7, 7),
        (Prefix(Stored("old"), "new"), 5, 5, 6),
        (Resized(Stored("new"), "old"), 5, 8, 6),
        (Resized(mapped("A", "old"), "new"), 8, 5, 6),
        (Prefix(mapped("A", "old"), "new"), 7, 5, 6),
    ],
    ids=str,
)
def test_dimensions_are_those_of_the_vectors(
    expression: Expression, of_5_and_8: int, of_8_and_5: int, of_6_and_6: int
) -> None:
    for old, new, width in ((5, 8, of_5_and_8), (8, 5, of_8_and_5), (6, 6, of_6_and_6)):
        dims = {"old": old, "new": new}
        network = Affine(RNG.normal(size=(7, old)).astype(np.float32), np.zeros(7, np.float32), unit=False)
        vectors = {model: RNG.normal(size=(3, dim)).astype(np.float32) for model, dim in dims.items()}
        assert Evaluator(vectors, network, dims)(expression).shape == (3, width)
        assert dim_of(expression, dims, network) == width
    assert from_json(to_json(expression)) == expression


@pytest.mark.parametrize("written", [{}, {"model": 3}, {"map": "A", "of": []}, {"model": "old", "like": "new"}, "old"])
def test_anything_else_is_refused(written: object) -> None:
    with pytest.raises(InputError, match="unknown expression"):
        from_json(written)
