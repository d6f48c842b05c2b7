"""Losses against plain loops over the formulas, and the pairs that methods make."""

import math

import numpy as np
import pytest
import torch

from ray_backfill.core.errors import InputError
from ray_backfill.learn.methods import Embeddings, all_methods, find_methods
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.papers.rank_merge import HeadLoss, Heads, LossBatch, cl_m, cl_s, mcl, rqt, within_new
from ray_backfill.learn.training.settings import LossSettings


def distance(a: torch.Tensor, b: torch.Tensor, kind: str) -> float:
    if kind == "l2":
        return math.sqrt(sum((x - y) ** 2 for x, y in zip(a.tolist(), b.tolist(), strict=True)))
    dot = sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
    return 1 - dot / math.sqrt(sum(x * x for x in a.tolist()) * sum(y * y for y in b.tolist()))


def harder_half(distances: list[float], farthest: bool) -> list[float]:
    return sorted(distances, reverse=farthest)[: math.ceil(len(distances) / 2)]


def looped_loss(name: str, batch: LossBatch, settings: LossSettings) -> float:
    """Equations 9, 10, 14 and 11, one anchor and one item at a time."""
    total = 0.0
    anchors, items = len(batch.reverse_bd), len(batch.old_Bd)
    for i in range(anchors):
        me = batch.first + i
        label = batch.label_B[me]
        if name == "rqt":
            total += distance(batch.reverse_bd[i], batch.old_Bd[me], settings.distance)
            continue
        sums = {}
        for system, query, gallery in [
            ("old", batch.reverse_bd, batch.old_Bd),
            ("new", batch.forward_bd, batch.forward_Bd),
        ]:
            d = [distance(query[i], gallery[k], settings.distance) for k in range(items)]
            positives = [d[k] for k in range(items) if batch.label_B[k] == label and not (system == "new" and k == me)]
            negatives = [d[k] for k in range(items) if batch.label_B[k] != label]
            if settings.hard_mining:
                positives, negatives = harder_half(positives, True), harder_half(negatives, False)
            sums["P", system] = sum(math.exp(-x / settings.tau) for x in positives)
            sums["N", system] = sum(math.exp(-x / settings.tau) for x in negatives)
        p_old, n_old, p_new, n_new = (sums[k] for k in [("P", "old"), ("N", "old"), ("P", "new"), ("N", "new")])
        cross = {"cl_s": 0.0, "cl_m": 0.0, "within_new": 0.0, "mcl": 1.0}[name]
        if name != "within_new":
            total += -math.log(p_old / (p_old + n_old + cross * n_new))
        if name != "cl_s":
            total += -math.log(p_new / (p_new + n_new + cross * n_old))
    return total / anchors


def random_batch(seed: int = 0, first: int = 4) -> LossBatch:
    """12 items of 3 classes and uneven sizes, of which 6 are this worker's anchors."""
    generator = torch.Generator().manual_seed(seed)
    old, new, reverse = (torch.randn(12, d, generator=generator, dtype=torch.float64) for d in (5, 7, 5))
    label = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 1, 0, 2])
    own = slice(first, first + 6)
    return LossBatch(reverse[own], new[own], old, new, label, first)


@pytest.mark.parametrize("loss", [rqt, cl_s, cl_m, within_new, mcl])
@pytest.mark.parametrize("kind", ["cosine", "l2"])
@pytest.mark.parametrize("tau", [1.0, 0.1])
@pytest.mark.parametrize("hard_mining", [True, False])
def test_losses_equal_plain_loops(loss: HeadLoss, kind: str, tau: float, hard_mining: bool) -> None:
    settings = LossSettings(distance=kind, tau=tau, hard_mining=hard_mining)
    batch = random_batch()
    expected = looped_loss(loss.__name__, batch, settings)
    assert loss(batch, settings).item() == pytest.approx(expected, rel=1e-9)


def test_an_anchor_alone_in_its_class_has_no_new_term() -> None:
    """Its own old embedding is a positive of the old system; the new system has none to pull."""
    batch = random_batch()
    alone = LossBatch(batch.reverse_bd, batch.forward_bd, batch.old_Bd, batch.forward_Bd, torch.arange(12), batch.first)
    settings = LossSettings(hard_mining=False)
    assert cl_m(alone, settings).item() == pytest.approx(cl_s(alone, settings).item())


@pytest.mark.parametrize("loss", [rqt, cl_s, cl_m, within_new, mcl])
def test_gradients_are_right(loss: HeadLoss) -> None:
    batch = random_batch()

    def of_anchors(reverse: torch.Tensor, forward: torch.Tensor) -> torch.Tensor:
        everyone = torch.cat([batch.forward_Bd[: batch.first], forward, batch.forward_Bd[batch.first + 6 :]])
        changed = LossBatch(reverse, forward, batch.old_Bd, everyone, batch.label_B, batch.first)
        return loss(changed, LossSettings())

    inputs = (batch.reverse_bd.clone().requires_grad_(), batch.forward_bd.clone().requires_grad_())
    assert torch.autograd.gradcheck(of_anchors, inputs, atol=1e-6)


def test_unknown_distances_and_methods_list_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"--heads\.loss\.distance must be cosine or l2"):
        LossSettings(distance="inner_product")
    with pytest.raises(InputError, match=r"--heads\.loss\.tau must be greater than 0, got 0"):
        LossSettings(tau=0)
    with pytest.raises(InputError, match=r"unknown method 'magic'; known: old, new, offline, instant, procrustes"):
        find_methods(("magic",))


@pytest.mark.parametrize(
    ("name", "similar"), [("lesat_squares", "least_squares_"), ("ridg", "ridge_gallery or ridge_")]
)
def test_a_misspelt_method_is_answered_by_similar_ones_alone(name: str, similar: str) -> None:
    with pytest.raises(InputError, match=rf"^unknown method '{name}'; did you mean {similar}[a-z_ ]+\?$"):
        find_methods((name,))


def test_full_rm_serves_what_the_paper_says() -> None:
    """{psi(rho(new)), old} and {rho(new), rho(new)}."""
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(rows, d)).astype(np.float32) for rows, d in [(3, 4), (3, 6), (9, 4), (9, 6)]]
    e = Embeddings({"old": arrays[0], "new": arrays[1]}, {"old": arrays[2], "new": arrays[3]})
    heads = Heads(4, 6, learn_new=True).eval()
    pair = all_methods()["rm"].pair(e, heads)
    with torch.no_grad():
        rho_query = heads.rho(torch.from_numpy(e.query["new"]))
        np.testing.assert_allclose(pair.backward.query, heads.psi(rho_query).numpy(), rtol=1e-5)
        np.testing.assert_allclose(pair.forward.query, rho_query.numpy(), rtol=1e-5)
        np.testing.assert_allclose(
            pair.forward.gallery, heads.rho(torch.from_numpy(e.gallery["new"])).numpy(), rtol=1e-5, atol=1e-6
        )
    assert pair.backward.gallery is e.gallery["old"]


def test_without_rho_the_new_embedding_stays_as_it_is() -> None:
    new = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    e = Embeddings({"old": new, "new": new}, {"old": new, "new": new})
    heads = Heads(6, 6).eval()
    assert all_methods()["mcl"].pair(e, heads).forward.gallery is new


def test_a_transformed_vector_does_not_depend_on_what_it_stands_among() -> None:
    new = np.random.default_rng(0).normal(size=(500, 24)).astype(np.float32)
    rho = Heads(24, 24, learn_new=True).eval().rho
    alone = np.concatenate([transform(rho, new[i : i + 1]) for i in range(500)])
    np.testing.assert_array_equal(transform(rho, new), alone)
