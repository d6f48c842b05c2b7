"""AdvBCT's three losses against plain loops, what is reversed and what stands still, two workers against one."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from ray_backfill.learn.papers.advbct import (
    AdversarialCompatible,
    adversarial,
    class_radii,
    outside_boundary,
    reverse_gradient,
)
from ray_backfill.learn.training.objective import ClassSpread, OldModel
from ray_backfill.learn.training.settings import CompatibleLosses, ObjectiveSettings
from tests.learn.methods.objectives import frozen, objective_of
from tests.learn.training._workers import average, on_two_workers

TARGET = torch.tensor([0, 1, 2, 3, 3, -1, 1, 0])
# The first class has no boundary: one old embedding says nothing about its spread.
RADIUS = torch.tensor([math.nan, 0.3, 0.9, 1.4], dtype=torch.float64)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """New embeddings, centres and elastic weights."""
    generator = torch.Generator().manual_seed(0)
    new, centre, elastic = (torch.randn(*size, generator=generator).double() for size in ((8, 4), (4, 4), (4,)))
    return new, 0.4 * centre, elastic


def outside_by_hand(new: torch.Tensor, centre: torch.Tensor, elastic: torch.Tensor, limit: float) -> list[float]:
    found = []
    for i, answer in enumerate(TARGET.tolist()):
        if answer <= 0:  # unreadable, or of the class without a boundary
            found.append(0.0)
            continue
        unit = [x / math.hypot(*new[i].tolist()) for x in new[i].tolist()]
        distance = math.sqrt(sum((a - b) ** 2 for a, b in zip(unit, centre[answer].tolist(), strict=True)))
        r, share = float(RADIUS[answer]), 1 / (1 + math.exp(-float(elastic[answer])))
        # The authors' two cases: it grows to the limit from below, and shrinks to it from above.
        boundary = r + abs(r - limit) * share if r < limit else r - abs(r - limit) * share
        found.append(max(distance - boundary, 0.0))
    return found


@pytest.mark.parametrize("limit", [0.5, 1.0])
def test_the_boundary_is_the_formula(limit: float) -> None:
    new, centre, elastic = inputs()
    losses = outside_boundary(new, TARGET, centre, RADIUS, elastic, limit)
    by_hand = outside_by_hand(new, centre, elastic, limit)
    outside = [x for x in by_hand if x > 0]
    assert 0 < len(outside) < 6
    assert losses.mean().item() == pytest.approx(sum(outside) / len(outside), rel=1e-9)
    assert losses.tolist() == pytest.approx([x * 8 / len(outside) for x in by_hand], rel=1e-9)


def test_the_boundary_pulls_at_embeddings_and_at_its_own_width() -> None:
    new, centre, elastic = inputs()
    assert torch.autograd.gradcheck(
        lambda x, w: outside_boundary(x, TARGET, centre, RADIUS, w, 1.0),
        (new.requires_grad_(), elastic.requires_grad_()),
    )
    # Nothing is outside: no loss, but gradients that DDP waits for.
    outside_boundary(new, TARGET, centre, RADIUS + 9, elastic, 9.0).sum().backward()
    assert new.grad is not None
    assert not new.grad.any()


def test_radii_leave_out_outliers_and_single_images() -> None:
    distances = {0: [0.5], 1: [0.1, 0.3], 2: [0.2, 0.22, 0.24, 0.26, 0.9], 3: [0.1, 0.2, 0.3, 0.4]}
    pairs = [(d, c) for c, members in distances.items() for d in members][::-1]
    spread = ClassSpread(torch.zeros(5, 4), torch.tensor([c for _, c in pairs]), torch.tensor([d for d, _ in pairs]))
    # Class 2: quartiles 0.22 and 0.26, so that 0.9 lies beyond 0.26 + 1.5 * 0.04. Class 4 has no image.
    torch.testing.assert_close(
        class_radii(spread), torch.tensor([math.nan, 0.3, 0.26, 0.4, math.nan]), equal_nan=True, rtol=1e-6, atol=1e-6
    )


def discriminator() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)).double()


def test_the_discriminator_tells_new_from_old() -> None:
    new, old, judge = inputs()[0], torch.randn(8, 4).double(), discriminator()
    losses = adversarial(judge, new, old, 0.4)
    told_new, told_old = judge(new).tolist(), judge(old).tolist()
    for i in range(8):
        expected = 0.0
        for (as_new, as_old), answer in ((told_new[i], 0), (told_old[i], 1)):
            expected -= (as_new, as_old)[answer] - math.log(math.exp(as_new) + math.exp(as_old))
        assert losses[i].item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("progress", [0.0, 0.1, 1.0])
def test_the_backbone_gets_the_reversed_gradient_and_the_discriminator_its_own(progress: float) -> None:
    old, factor = torch.randn(8, 4).double(), 2 / (1 + math.exp(-10 * progress)) - 1
    plain, reversed_ = inputs()[0].requires_grad_(), inputs()[0].requires_grad_()
    judges = discriminator(), discriminator()
    target = torch.zeros(8, dtype=torch.long), torch.ones(8, dtype=torch.long)
    loss = nn.functional.cross_entropy
    (loss(judges[0](plain), target[0]) + loss(judges[0](old), target[1])).backward()
    adversarial(judges[1], reversed_, old, progress).mean().backward()
    torch.testing.assert_close(reverse_gradient(plain, progress), plain)
    assert plain.grad is not None
    torch.testing.assert_close(reversed_.grad, -factor * plain.grad)
    for first, second in zip(judges[0].parameters(), judges[1].parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad)


def objective(weights: CompatibleLosses, means: torch.Tensor | None = None) -> tuple[AdversarialCompatible, OldModel]:
    spread = ClassSpread(0.1 * torch.ones(4, 4), torch.arange(8) % 4, torch.full((8,), 0.2))
    old = frozen(means=means, spread=lambda: spread)
    return objective_of("advbct", old, ObjectiveSettings(compatible=weights)), old


def test_the_loss_is_classification_plus_both_weighted_parts() -> None:
    pixels, none = torch.rand(8, 1, 8, 8), CompatibleLosses(adversarial=0, boundary=0)
    made, old = objective(none)
    made.eval()
    base, right = made([pixels], TARGET)
    embedding, logits = made.backbone(pixels)
    assert right.tolist() == (logits.argmax(1) == TARGET).tolist()
    assert base[5] == 0
    new = embedding[:, :4]
    bounded, _ = objective(replace(none, boundary=2.0))
    radius = torch.tensor([math.nan, 0.2, math.nan, 0.2])  # the old classifier knows 3 and 7, not 1 and 4
    expected = outside_boundary(new, TARGET, torch.full((4, 4), 0.1), radius, made.elastic_C, 1.0)
    torch.testing.assert_close(bounded.eval()([pixels], TARGET)[0] - base, 2 * expected, rtol=1e-4, atol=1e-5)
    judged, _ = objective(replace(none, adversarial=3.0))
    judged.progress = 0.25
    told = adversarial(made.discriminator, new, old.embed(pixels), 0.25) * (TARGET >= 0)
    torch.testing.assert_close(judged.eval()([pixels], TARGET)[0] - base, 3 * 0.75 * told, rtol=1e-4, atol=1e-5)


def test_every_class_has_a_boundary_where_the_old_classifier_knows_none() -> None:
    made, _ = objective(CompatibleLosses(), means=torch.zeros(4, 4))
    assert not made._radius_C.isnan().any()
    made, _ = objective(CompatibleLosses())
    assert made._radius_C.isnan().tolist() == [True, False, True, False]


def one_step(rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean boundary loss and its mean gradient on these rows of the batch, over whoever takes part."""
    new, centre, elastic = inputs()
    elastic.requires_grad_()
    loss = outside_boundary(new[rows], TARGET[rows], centre, RADIUS, elastic, 1.0).mean()
    loss.backward()
    value, gradient = loss.detach().clone(), elastic.grad
    assert gradient is not None
    average((value, gradient))
    return value, gradient


def _half(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    return one_step(slice(rank * 4, rank * 4 + 4))


@pytest.mark.full
def test_two_workers_count_the_images_outside_together(tmp_path: Path) -> None:
    for found, expected in zip(on_two_workers(_half, tmp_path)[0], one_step(slice(0, 8)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
