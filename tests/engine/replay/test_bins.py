"""The table of bins: what it says of a bin holds for every product in it."""

from typing import Any

import numpy as np
import pytest

from ray_backfill.engine.replay.bins import RUN, bin_of, fill_table, mark_bit


@pytest.mark.parametrize("width", [1e-6, 1e-2, 0.3])
def test_a_bin_has_one_place_or_is_marked(width: float) -> None:
    rng = np.random.default_rng(0)
    centres = np.sort(rng.uniform(-0.5, 0.5, 40)).astype(np.float32)
    low, high = (np.append(centres + sign * np.float32(width), np.float32(np.inf)) for sign in (-1, 1))
    size = 256
    table = np.empty(size + RUN, np.uint16)
    origin: Any = low[0]
    step: Any = np.float32((size - 3) / (high[-2] - low[0]))
    fill_table(low, high, origin, step, table)
    mark = int(mark_bit(table))
    v = np.sort(rng.uniform(-0.9, 0.9, 20_000)).astype(np.float32)
    entries = table[[bin_of(x, origin, step, size - 1) for x in v]].astype(int)
    place = (high[:-1] < v[:, None]).sum(axis=1)
    is_unsure = ((low[:-1] <= v[:, None]) & (v[:, None] <= high[:-1])).any(axis=1)
    is_marked = entries >= mark
    assert (entries[~is_marked] == place[~is_marked]).all()
    assert is_marked[is_unsure].all(), "the error bound does not decide these"
    assert (entries[is_marked] - mark <= place[is_marked]).all()
    assert not is_marked.all()
