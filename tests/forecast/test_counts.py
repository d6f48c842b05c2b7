"""Histograms of a gallery, beside counting by brute force."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import Filter, RetrievalSystem
from ray_backfill.forecast.counts import Forms, QueryBlock, ShardSetup, ThreadShards, find_starts
from ray_backfill.forecast.models import CELLS, Cells

POINTS = 4


def systems(seed: int, items: int = 9000) -> RetrievalSystem:
    rng = np.random.default_rng(seed)
    return RetrievalSystem(rng.standard_normal((5, 8)).astype(np.float32), rng.standard_normal((items, 8)))


def distances(system: RetrievalSystem, query: int) -> np.ndarray:
    q = system.query[query]
    return 1 - system.gallery @ q / np.linalg.norm(q) / np.linalg.norm(system.gallery, axis=1)


@pytest.mark.parametrize(("number", "n_parts"), [(1, 0), (3, 0), (3, 4)])
def test_histograms(number: int, n_parts: int) -> None:
    """n_parts: of a filter, or none."""
    forward, old, before = (systems(seed) for seed in range(3))
    rng = np.random.default_rng(9)
    moment_ON = rng.integers(0, POINTS + 1, (2, len(old.gallery))).astype(np.int16)
    known = np.sort(rng.permutation(len(old.gallery))[:300])
    cells = Cells(np.array([0.1, 0.5, 0.3, 0.2], np.float32), 0.2, 0.01)
    queries, left_out = np.array([0, 3]), [np.array([5, 4097]), np.array([8000])]
    at = np.sort(rng.uniform(0.3, 1.5, (2, 6)).astype(np.float32), axis=1)
    at[1, 4:] = np.inf
    parts = Filter(np.arange(5) % n_parts, rng.integers(0, n_parts, len(old.gallery))) if n_parts else None
    with ThreadPoolExecutor(number) as pool:
        shards = ThreadShards(Forms(*(ProductForm.of(each, "cosine") for each in (forward, old, before))), pool, number)
        shards.begin(ShardSetup(moment_ON, POINTS, known, cells, parts))
        found = shards.count(QueryBlock(queries, at, left_out))
        near = shards.distances(queries, left_out)
    for row, query in enumerate(queries):
        kept = np.ones(len(old.gallery), bool)
        kept[left_out[row]] = False
        if parts is not None:
            kept &= parts.of_item == parts.of_query[query]
        s, o, b = (distances(system, query) for system in (forward, old, before))
        assert near[row] == pytest.approx(np.stack([s, b])[:, left_out[row]], abs=1e-6)
        cell = cells.of(cells.predict(s.astype(np.float32), o.astype(np.float32)))
        hidden = kept.copy()
        hidden[known] = False
        thresholds = at[row][np.isfinite(at[row])]
        for order in range(2):
            for moment in range(POINTS + 1):
                now = moment_ON[order] == moment
                place = np.searchsorted(thresholds, b[kept & now], side="right")
                places = np.bincount(place, minlength=len(thresholds) + 1)[: len(thresholds)]
                # float32 products may put an item into the neighbouring cell or on the other side of a threshold.
                assert found.places[row, order, : len(thresholds), moment] == pytest.approx(places, abs=1)
                true = np.bincount(cell[hidden & now], minlength=CELLS)
                assert abs(found.cells[row, order, :, moment] - true).sum() <= 4
                assert found.cells[row, order, :, moment].sum() == true.sum()


def test_more_thresholds_than_a_small_integer_holds() -> None:
    found = find_starts(np.linspace(0, 1, 40_000, dtype=np.float32)[None]).starts
    assert (np.diff(found[0]) >= 0).all()
    assert found[0, -1] > 39_000


def test_thresholds_that_none_or_all_reach_do_not_spoil_the_search() -> None:
    far = np.finfo(np.float32).max
    inner = np.linspace(0, 1, 500, dtype=np.float32)
    (plain,), (ended,) = (find_starts(each[None]).starts for each in (inner, np.r_[-far, inner, far]))
    assert np.array_equal(ended, plain + 1)
    assert find_starts(np.array([[-far, far]], np.float32)).starts.min() == 1
