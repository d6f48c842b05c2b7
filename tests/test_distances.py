"""Distances by plain loops, and ties that stay ties whatever tile they stand in."""

import numpy as np
import pytest

from ray_backfill.distances import DISTANCES, distance_tile
from tests import reference


@pytest.mark.parametrize("distance", DISTANCES)
def test_tiles_equal_plain_loops(distance: str) -> None:
    rng = np.random.default_rng(0)
    query, gallery = rng.normal(size=(7, 24)).astype(np.float32), rng.normal(size=(40, 24)).astype(np.float32)
    gallery[3] = query[2]
    expected = reference.distances(query, gallery, distance)
    np.testing.assert_allclose(distance_tile(query, gallery, distance), expected, rtol=2e-7, atol=2e-7)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("step", [0.0, 1e-6, 1e-4, 1e-2, 1.0])
def test_equal_vectors_tie_in_tiles_of_any_shape(distance: str, step: float) -> None:
    """512 copies of one vector, near to the queries or far, alone and among others."""
    rng = np.random.default_rng(1)
    query = rng.normal(size=(20, 128)).astype(np.float32)
    twin = (query[0] + step * rng.normal(size=128)).astype(np.float32)
    gallery = rng.normal(size=(1024, 128)).astype(np.float32)
    gallery[::2] = twin
    seen = [distance_tile(query, gallery, distance)[:, ::2]]
    seen += [
        distance_tile(query, gallery[i : i + width], distance)[:, ::2] for i, width in [(0, 1), (2, 7), (512, 300)]
    ]
    seen += [distance_tile(query[:1], gallery, distance)[:, ::2]]
    values = np.concatenate([tile[0] for tile in seen])
    assert (values == values[0]).all()
    if distance == "l2" and step == 0:
        assert values[0] == 0
