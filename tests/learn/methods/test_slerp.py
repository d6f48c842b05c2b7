"""SLERP against the padded formula of its paper, its two ends, the chosen point, and what needs no labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg

from ray_backfill.compare.resolve import check_distances_agree
from ray_backfill.core.errors import InputError
from ray_backfill.learn.methods import Embeddings, all_methods
from ray_backfill.learn.methods.slerp import ALPHAS, Slerp, recalls_at_1
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings
from tests.learn.fits import fitted

METHOD = all_methods()["slerp"]
RNG = np.random.default_rng(5)


def embeddings(old_dim: int, new_dim: int, n: int = 60, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Items of 6 classes; the new model has less noise."""
    rng, label = np.random.default_rng(seed), np.arange(n) % 6
    centres = np.random.default_rng(9).normal(size=(6, max(old_dim, new_dim)))[label]
    noisy = {"old": (old_dim, 1.0), "new": (new_dim, 0.3)}
    return {m: (centres[:, :d] + s * rng.normal(size=(n, d))).astype(np.float32) for m, (d, s) in noisy.items()}, label


@pytest.mark.parametrize(("old_dim", "new_dim"), [(5, 5), (4, 7), (7, 4)])
def test_it_is_the_papers_formula_in_the_padded_space(old_dim: int, new_dim: int) -> None:
    """There old embeddings are filled up with zeros and the rotation is square; the gallery is zero where we cut."""
    train, _ = embeddings(old_dim, new_dim)
    width = max(old_dim, new_dim)
    unit = {m: v / np.linalg.norm(v, axis=1, keepdims=True) for m, v in train.items()}
    padded = {m: np.pad(v.astype(np.float64), ((0, 0), (0, width - v.shape[1]))) for m, v in unit.items()}
    turned = padded["new"] @ scipy.linalg.orthogonal_procrustes(padded["new"], padded["old"])[0]
    network = fitted("slerp", TrainSet(train, None))
    assert network.alpha == 0.5
    for alpha in (0.0, 0.3, 1.0):
        found = replace(network, alpha=alpha)(train["old"], train["new"])
        for i in range(60):
            u, v = padded["old"][i].tolist(), turned[i].tolist()
            theta = math.acos(sum(a * b for a, b in zip(u, v, strict=True)))
            first, second = (math.sin(share * theta) / math.sin(theta) for share in (1 - alpha, alpha))
            expected = [first * a + second * b for a, b in zip(u, v, strict=True)]
            assert math.hypot(*expected) == pytest.approx(1)
            np.testing.assert_allclose(found[i], expected[:old_dim], atol=2e-4)


def test_queries_that_agree_stay_where_they_are() -> None:
    """The angle is zero there, and so is its sine."""
    network, same = Slerp(np.eye(3, dtype=np.float32), 0.5), np.array([[1.0, 2.0, 2.0]])
    np.testing.assert_allclose(network(same, 5 * same), same / 3, atol=1e-4, rtol=0)


def plain_recall(query: np.ndarray, gallery: np.ndarray, label: np.ndarray) -> float:
    """By a loop over all pairs."""
    hits = 0
    for i, q in enumerate(query):
        cosines = [float(q @ v) / np.linalg.norm(q) / np.linalg.norm(v) for v in gallery]
        hits += label[max((j for j in range(len(gallery)) if j != i), key=cosines.__getitem__)] == label[i]
    return hits / len(query)


@pytest.mark.parametrize("n_queries", [10, 200])  # more than fit into memory at a time
def test_recall_is_that_of_a_plain_loop(n_queries: int) -> None:
    train, label = embeddings(4, 4, n=250)
    unit = {m: v / np.linalg.norm(v.astype(np.float64), axis=1, keepdims=True) for m, v in train.items()}
    by_query = RNG.random((n_queries, 1))
    found = recalls_at_1(
        (unit["old"][:n_queries], unit["new"][:n_queries]), (unit["old"], unit["old"]),
        [(1, 0), (0.25, 0.75), (by_query, 1 - by_query)], label,
    )  # fmt: skip
    shares = (1.0, 0.25, by_query)
    mixed = [s * unit["old"][:n_queries] + (1 - s) * unit["new"][:n_queries] for s in shares]
    assert found == [plain_recall(each, unit["old"], label) for each in mixed]
    assert 0 < min(found) < max(found) < 1


def test_the_point_with_the_best_recall_is_chosen() -> None:
    train, label = embeddings(6, 6, n=120)
    network = fitted("slerp", TrainSet(train, label))
    drawn = np.random.default_rng(0).permutation(120)
    queries = [replace(network, alpha=alpha)(train["old"], train["new"])[drawn] for alpha in ALPHAS]
    found = [plain_recall(each, train["old"][drawn], label[drawn]) for each in queries]
    assert network.alpha == ALPHAS[found.index(max(found))]
    assert 0 < network.alpha < 1, "a point between is better than both ends on these data"


def test_the_pair_embeds_queries_by_both_models_and_leaves_the_gallery() -> None:
    (query, _), (gallery, _) = embeddings(4, 7, 5, 1), embeddings(4, 7, 8, 2)
    network = fitted("slerp", TrainSet(embeddings(4, 7)[0], None))
    pair = METHOD.pair(Embeddings(query, gallery), network)
    assert pair.backward.gallery is gallery["old"]
    assert pair.forward.query is query["new"]
    np.testing.assert_allclose(pair.backward.query, network(query["old"], query["new"]), atol=1e-6)


def test_it_is_refused_for_other_distances() -> None:
    with pytest.raises(InputError, match="method 'slerp': SLERP is made for the cosine distance, not for l2; leave"):
        check_distances_agree([METHOD], "l2", FitSettings())
