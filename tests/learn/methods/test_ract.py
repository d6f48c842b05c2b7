"""InfoNCE of RACT against plain loops, and two workers against one with the doubled batch."""

import math
from pathlib import Path

import pytest
import torch

from ray_backfill.learn.papers.ract import contrast
from ray_backfill.learn.papers.simclr import nt_xent
from ray_backfill.learn.training.settings import CompatibleLosses, ObjectiveSettings
from tests.learn.methods.objectives import NEW, frozen, objective_of
from tests.learn.training._workers import average, on_two_workers

TARGET = torch.tensor([0, 1, 0, 2, -1, 1, 3, 2])


def embeddings(old_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    new, old = torch.randn(8, 6, generator=generator), torch.randn(8, old_dim, generator=generator)
    return new.double(), old.double()


def cosine(a: list[float], b: list[float]) -> float:
    width = max(len(a), len(b))
    a, b = a + [0.0] * (width - len(a)), b + [0.0] * (width - len(b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def by_hand(new: torch.Tensor, old: torch.Tensor, i: int, tau: float, hardest: int) -> float:
    """The formula for one anchor; an unreadable image (4) costs nothing and is nobody's negative."""
    if TARGET[i] < 0:
        return 0.0
    width = old.shape[1]
    anchor, cut = new[i].tolist(), new[i].tolist()[:width]
    others = [k for k in range(8) if TARGET[k] >= 0 and TARGET[k] != TARGET[i]]
    to_old = sorted((math.exp(cosine(cut, old[k].tolist()) / tau) for k in others), reverse=True)[:hardest]
    to_new = sorted((math.exp(cosine(anchor, new[k].tolist()) / tau) for k in others), reverse=True)[:hardest]
    positive = math.exp(cosine(cut, old[i].tolist()) / tau)
    return -math.log(positive / (positive + sum(to_old) + sum(to_new)))


@pytest.mark.parametrize(("old_dim", "tau", "hardest"), [(6, 0.5, None), (4, 0.1, None), (9, 0.5, 2), (6, 0.01, 50)])
def test_contrast_is_the_formula(old_dim: int, tau: float, hardest: int | None) -> None:
    new, old = embeddings(old_dim)
    losses = contrast(new, old, TARGET, tau, hardest)
    expected = [by_hand(new, old, i, tau, hardest or 8) for i in range(8)]
    assert losses.tolist() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("hardest", [None, 2])
def test_gradients_are_those_of_the_loss(hardest: int | None) -> None:
    """By differences; also as another image's negative an embedding is pulled at."""
    new, old = embeddings(4)
    assert torch.autograd.gradcheck(lambda x: contrast(x, old, TARGET, 0.5, hardest), (new.requires_grad_(),))
    assert torch.autograd.gradcheck(lambda x: nt_xent(x, x.flip(1), TARGET >= 0, 0.5)[0], (new,))


@pytest.mark.parametrize(("name", "hardest"), [("ract", None), ("ract_hard", 2)])
def test_the_loss_is_classification_plus_weighted_contrast_on_the_same_view(name: str, hardest: int | None) -> None:
    old, weights = frozen(NEW), {}
    pixels = torch.rand(8, 1, 8, 8)
    for weight in (0.0, 2.0):
        settings = ObjectiveSettings(compatible=CompatibleLosses(ract_weight=weight, hard_negatives=2))
        made = objective_of(name, old, settings).eval()
        weights[weight], _ = made([pixels], TARGET)
    expected = 2 * contrast(made.backbone.embed(pixels), old.network.embed(pixels), TARGET, 0.5, hardest)
    torch.testing.assert_close(weights[2.0] - weights[0.0], expected, rtol=1e-4, atol=1e-5)


def one_step(name: str, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean loss and mean gradient of a linear map on these rows of the batch, gathered over whoever takes part."""
    inputs, old = embeddings(4)
    torch.manual_seed(0)
    network = torch.nn.Linear(6, 5).double()
    mine = network(inputs[rows])
    if name == "nt_xent":
        losses, _ = nt_xent(mine, network(inputs[rows].flip(1)), TARGET[rows] >= 0, 0.2)
    else:
        losses = contrast(mine, old[rows], TARGET[rows], 0.5, 2 if name == "ract_hard" else None)
    loss = losses.sum() / len(losses)
    loss.backward()
    value, gradient = loss.detach().clone(), network.weight.grad
    assert gradient is not None
    average((value, gradient))
    return value, gradient


def _half(rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    return {name: one_step(name, slice(rank * 4, rank * 4 + 4)) for name in ("ract", "ract_hard", "nt_xent")}


@pytest.mark.full
def test_two_workers_give_loss_and_gradient_of_one_with_the_doubled_batch(tmp_path: Path) -> None:
    for name, (loss, gradient) in on_two_workers(_half, tmp_path)[0].items():
        expected_loss, expected = one_step(name, slice(0, 8))
        torch.testing.assert_close(loss, expected_loss, rtol=1e-12, atol=0)
        torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-12)
