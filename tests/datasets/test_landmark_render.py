import numpy as np
import pytest

from ray_backfill.datasets.landmarks.render import render
from tests.datasets import _landmark_numpy


@pytest.mark.parametrize(("size", "difficulty", "images"), [(32, 1.0, 600), (33, 3.0, 60), (16, 0.0, 60), (1, 1.0, 20)])
def test_compiled_loops_paint_what_numpy_paints(size: int, difficulty: float, images: int) -> None:
    rng = np.random.default_rng(size)
    ids, labels = rng.integers(0, 1 << 42, images), rng.integers(0, 10_000, images)
    painted = render(7, ids, labels, size, difficulty)
    np.testing.assert_array_equal(painted, _landmark_numpy.render(7, ids, labels, size, difficulty))
