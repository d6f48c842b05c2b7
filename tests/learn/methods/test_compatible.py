"""The pair of a compatible backbone compares with the old gallery what its training compared with the old model."""

import numpy as np
import pytest
import torch

from ray_backfill.learn.methods import Embeddings, find_methods
from ray_backfill.learn.training.objective import fit_width


@pytest.mark.parametrize("name", ["bct", "ract", "ract_hard", "advbct", "mixbct"])
@pytest.mark.parametrize("old_dim", [3, 5, 8])
def test_queries_are_cut_or_filled_up_as_in_training(name: str, old_dim: int) -> None:
    rng = np.random.default_rng(0)
    query, gallery = rng.normal(size=(4, 5)).astype(np.float32), rng.normal(size=(6, 5)).astype(np.float32)
    old = rng.normal(size=(6, old_dim)).astype(np.float32)
    pair = find_methods((name,))[0].pair(Embeddings({name: query}, {name: gallery, "old": old}), None)
    np.testing.assert_array_equal(pair.backward.query, fit_width(torch.from_numpy(query), old_dim).numpy())
    assert pair.backward.gallery is old
    assert pair.forward.query is query
    assert pair.forward.gallery is gallery
