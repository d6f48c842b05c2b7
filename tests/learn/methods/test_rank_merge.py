"""Losses against plain loops over the formulas, pairs that methods make, batches, and two DDP workers against one."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import State, Task
from ray_backfill.learn.methods import Embeddings, all_methods, find_methods
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.methods.rank_merge import HeadFit
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.papers import rank_merge as head_fit
from ray_backfill.learn.papers.rank_merge import (
    HeadLoss,
    Heads,
    LossBatch,
    balanced_batches,
    cl_m,
    cl_s,
    mcl,
    rows_by_class,
    rqt,
    within_new,
)
from ray_backfill.learn.training import map_loop
from ray_backfill.learn.training.fit import Fit, TrainSet, anchors_per_worker
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, LossSettings, TransformTraining
from tests.learn.training._workers import average, on_two_workers


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
    heads.double()
    with torch.no_grad():
        rho_query, rho_gallery = (heads.rho(torch.from_numpy(of["new"]).double()) for of in (e.query, e.gallery))
        psi_query = heads.psi(rho_query.float().double())  # what stands between two maps is rounded
    for vectors, expected in ((pair.forward.query, rho_query), (pair.forward.gallery, rho_gallery)):
        np.testing.assert_allclose(vectors, expected.numpy(), rtol=1e-7)
    np.testing.assert_allclose(pair.backward.query, psi_query.numpy(), rtol=1e-7)
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


FASTFILL = TransformFit(disc=True, uncertainty=True)
LOSSES = {"rqt": rqt, "cl_s": cl_s, "cl_m": cl_m, "mcl": mcl}
RM = HeadFit(mcl, learn_new=True)
SETTINGS = FitSettings(HeadTraining(epochs=2, classes=4, items=4), TransformTraining(epochs=3, batch=24, hidden=8))


def test_batches_hold_so_many_items_of_so_many_classes() -> None:
    label = np.repeat([3, 5, 9, 11], [10, 2, 6, 30])
    batches = list(balanced_batches(rows_by_class(label), classes=2, items=4, rng=np.random.default_rng(0)))
    assert len(batches) == 48 // 8
    seen = []
    for rows in batches:
        names, counts = np.unique(label[rows], return_counts=True)
        assert len(names) == 2
        assert counts.tolist() == [4, 4]
        seen.append(set(names.tolist()))
        for name in names:
            if (label == name).sum() >= 4:
                assert len(set(rows[label[rows] == name])) == 4  # no repeats where there are enough
    for first, second in zip(seen[::2], seen[1::2], strict=True):
        assert first | second == {3, 5, 9, 11}  # every class once before any comes again


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InputError, match="at least 2 classes"):
        anchors_per_worker(np.zeros(9, int), HeadTraining(), 1)
    with pytest.raises(InputError, match="3 classes x 5 items cannot be divided among 2 workers"):
        anchors_per_worker(np.arange(3), HeadTraining(items=5), 2)


def test_the_same_seed_trains_the_same_heads() -> None:
    first, second = (RM.fit(_data(), SETTINGS, "cosine").network.state_dict() for _ in range(2))
    seed_1 = replace(SETTINGS, heads=replace(SETTINGS.heads, seed=1))
    other = RM.fit(_data(), seed_1, "cosine").network
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["psi.0.weight"], other.state_dict()["psi.0.weight"])


@pytest.mark.parametrize(("fit", "steps"), [(RM, 2 * 48 // 16), (FASTFILL, 3 * 48 // 24)], ids=["heads", "transform"])
def test_the_steps_of_all_epochs_are_counted(fit: Fit, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Task] = []

    @contextmanager
    def kept(title: str, total: int, unit: str) -> Iterator[Task]:
        shown.append(Task(State("detail", title, total, unit)))
        yield shown[0]

    monkeypatch.setattr(map_loop, "detail", kept)
    fit.fit(_data(), SETTINGS, "cosine")
    assert [(bar.done, bar.total, bar.unit) for bar in shown] == [(steps, steps, "steps")]


def test_training_follows_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a factor of 0 nothing is learned."""
    monkeypatch.setattr(head_fit, "warmup_cosine", lambda step, steps, warmup: 0.0)
    torch.manual_seed(0)
    start = Heads(4, 5, learn_new=True).state_dict()["rho.0.weight"].clone()
    heads = RM.fit(_data(), SETTINGS, "cosine").network
    torch.testing.assert_close(heads.state_dict()["rho.0.weight"], start, rtol=0, atol=0)


def _data(further_views: int = 0) -> TrainSet:
    rng = np.random.default_rng(1)
    label = np.arange(48) % 6
    vectors = {name: rng.normal(size=(48, d)) + label[:, None] for name, d in (("old", 4), ("new", 5))}
    views = {name: plain + rng.normal(size=(further_views, *plain.shape)) for name, plain in vectors.items()}
    return TrainSet(vectors, label, views=views if further_views else {})


def _one_step(head_loss: HeadLoss, learn_new: bool, rows: slice) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and mean gradients of the heads on these rows of the batch, gathered over whoever takes part."""
    data = _data()
    torch.manual_seed(0)
    heads = Heads(4, 5, learn_new).double()
    mine = torch.from_numpy(data.vectors["new"][rows])
    reverse, forward = heads(mine)
    old, label = torch.from_numpy(data.vectors["old"][:16]), torch.from_numpy(np.asarray(data.label)[:16])
    batch = LossBatch(reverse, forward, old, gather(forward), label, first=rank_and_size()[0] * len(mine))
    loss = head_loss(batch, LossSettings())
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in heads.named_parameters() if p.grad is not None}
    value = loss.detach().clone()
    average((value, *gradients.values()))
    return float(value), gradients


def _half(rank: int) -> Any:
    """Single steps of all losses, and trained networks."""
    results = {}
    for name, loss in LOSSES.items():
        for learn_new in (False, True):
            results[name, learn_new] = _one_step(loss, learn_new, slice(rank * 8, rank * 8 + 8))
    trained, transform = (fit.fit(_data(2), SETTINGS, "cosine").network.state_dict() for fit in (RM, FASTFILL))
    return results, trained, transform


@pytest.mark.full
def test_two_workers_give_loss_and_gradient_of_one_with_the_doubled_batch(tmp_path: Path) -> None:
    results, trained, transform = on_two_workers(_half, tmp_path)[0]
    for (name, learn_new), (loss, gradients) in results.items():
        expected_loss, expected = _one_step(LOSSES[name], learn_new, slice(0, 16))
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert gradients.keys() == expected.keys()
        for parameter, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[parameter], rtol=1e-9, atol=1e-12)
    for name, value in RM.fit(_data(2), SETTINGS, "cosine").network.state_dict().items():
        if name.endswith(("0.bias", "running_mean")):
            continue  # a bias before BatchNorm has no gradient but rounding noise, which Adam scales to full steps
        torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)
    for name, value in FASTFILL.fit(_data(2), SETTINGS, "cosine").network.state_dict().items():
        if re.search(r"(0|3)\.bias|running_mean", name):
            continue  # as above
        torch.testing.assert_close(transform[name], value, rtol=1e-3, atol=1e-4)
