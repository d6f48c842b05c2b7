"""Baselines that a reviewer asks for, each recomputed by hand."""

from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.merges import fit_merge
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Embeddings, Method, find_methods
from ray_backfill.learn.methods.local import closest, clustered
from ray_backfill.learn.models.apply import transform, unit
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings
from tests.learn.fits import fit_of, fitted


def pairs(n: int = 400, p: int = 6, q: int = 8, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    old = rng.normal(size=(n, p)).astype(np.float32)
    new = (old @ rng.normal(size=(p, q)) + 0.3 * rng.normal(size=(n, q)) + 1).astype(np.float32)
    return old, new


def fitted_on(name: str, old: Any, new: Any, label: Any = None, distance: str = "cosine") -> tuple[Method, Any]:
    (method,) = find_methods((name,))
    return method, fitted(name, TrainSet({"old": old, "new": new}, label), distance=distance)


def test_queries_minus_their_mean_drift() -> None:
    old, new = pairs(q=6)
    method, network = fitted_on("qdc", old, new)
    drift = (unit(new) - unit(old)).mean(0)
    pair = method.pair(Embeddings({"old": old, "new": new}, {"old": old, "new": new}), network)
    np.testing.assert_allclose(pair.backward.query, unit(new) - drift, atol=1e-6)
    assert pair.backward.gallery is old
    wider = fitted_on("qdc", old, np.hstack([new, new]))[1]
    assert transform(wider, np.hstack([new, new])).shape == (400, 6)


def test_the_first_dimensions_of_both() -> None:
    old, new = pairs()
    (method,) = find_methods(("common_prefix",))
    pair = method.pair(Embeddings({"new": new}, {"old": old, "new": new}), None)
    np.testing.assert_array_equal(pair.backward.query, new[:, :6])
    np.testing.assert_array_equal(pair.backward.gallery, old)


def test_a_weighted_mean_of_two_similarities() -> None:
    old, new = pairs()
    method, network = fitted_on("convex", old, new)
    pair = method.pair(Embeddings({"old": old, "new": new}, {"old": old, "new": new}), network)
    both = (unit(old) @ unit(old).T + unit(new) @ unit(new).T) / 2
    np.testing.assert_allclose(unit(pair.forward.query) @ unit(pair.forward.gallery).T, both, atol=1e-6)
    rng = np.random.default_rng(1)
    label = rng.integers(0, 20, 400)
    centre = rng.normal(size=(20, 8))
    good = (centre[label] + 0.3 * rng.normal(size=(400, 8))).astype(np.float32)
    noise = rng.normal(size=(400, 6)).astype(np.float32)
    assert fitted_on("convex", noise, good, label)[1].alpha_1[0] >= 0.9, "the old model knows nothing"
    assert "cosine" in fit_of("convex").distance_problem(FitSettings(), "l2")


def test_each_cluster_has_its_own_map() -> None:
    """Two halves of space with other maps: one map cannot follow, local ones do."""
    rng = np.random.default_rng(0)
    side = rng.integers(0, 2, 1_000)
    old = rng.normal(size=(1_000, 5)) + np.where(side, 6, -6)[:, None] * np.eye(5)[0]
    ways = rng.normal(size=(2, 5, 4))
    new = np.einsum("np,npq->nq", old, ways[side])
    old, new = old.astype(np.float32), new.astype(np.float32)
    errors = {}
    for name in ("relaxed_gallery", "local_gallery"):
        network = fitted_on(name, old, new, distance="l2")[1]
        errors[name] = float(((transform(network, old) - new) ** 2).mean() / new.var())
    assert errors["local_gallery"] < 0.2 * errors["relaxed_gallery"]
    cluster = closest(old.astype(np.float64), clustered(old.astype(np.float64), 2))
    assert (cluster == cluster[0]).sum() == (side == side[0]).sum()


def test_few_items_have_one_map() -> None:
    old, new = pairs(n=11)
    network = fitted_on("local_gallery", old, new)[1]
    assert network.shape["clusters"] == 1


def test_the_products_of_local_maps_are_counted() -> None:
    old, new = pairs()
    network = fitted_on("local_gallery", old, new)[1]
    assert network.shape["clusters"] == 16
    assert network.macs == 16 * 6 + 6 * 8, "an item's distances to 16 centres, and its own map"


def test_distances_minus_their_mean_by_their_spread() -> None:
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=(40, 5)).astype(np.float32), 3 + rng.normal(size=(40, 7)).astype(np.float32)
    train = UpgradePair(RetrievalSystem(old, old), RetrievalSystem(new, new))
    merge = fit_merge("zscore", train, None, "l2")
    apart = ~np.eye(40, dtype=bool)
    for vectors, score_map in ((old, merge.backward), (new, merge.forward)):
        far = ((vectors[:, None].astype(np.float64) - vectors[None]) ** 2).sum(2)[apart]
        assert score_map is not None
        for given in (far, np.sqrt(far)):  # squared or not: the replay's own form of l2
            found = score_map(given.astype(np.float32))
            if abs(found.mean()) < 1e-4:
                np.testing.assert_allclose(found, (given - given.mean()) / given.std(), atol=1e-4)
                break
        else:
            raise AssertionError("neither has mean 0")
    with pytest.raises(InputError, match="needs train embeddings"):
        fit_merge("zscore", None, None, "l2")
