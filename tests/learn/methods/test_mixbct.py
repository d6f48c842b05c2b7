"""MixBCT's loss against a plain loop, which old embeddings are mixed in, and where gradients flow."""

import math
from dataclasses import replace

import pytest
import torch

from ray_backfill.learn.papers import mixbct
from ray_backfill.learn.papers.mixbct import MixedCompatible, drawn, trusted_radii
from ray_backfill.learn.training.objective import ClassSpread, OldModel
from ray_backfill.learn.training.settings import CompatibleLosses, ObjectiveSettings
from tests.learn.methods.objectives import NEW, frozen, objective_of

TARGET = torch.tensor([0, 1, 2, 3, 3, -1, 1, 0])
MIXED = torch.tensor([True, False, False, True, False, False, True, False])


def objective(classification: str = "softmax", distances: float = 9.0) -> tuple[MixedCompatible, OldModel]:
    """distances: of all old embeddings to their centres, which are zero; the radius that is trusted."""
    old = frozen(spread=lambda: ClassSpread(torch.zeros(4, 4), torch.arange(4), torch.full((4,), distances)))
    arcface = classification == "arcface"
    settings = ObjectiveSettings("arcface" if arcface else "softmax", compatible=CompatibleLosses(mix_share=0.5))
    info = replace(NEW, cosine_scale=64.0 if arcface else None)
    return objective_of("mixbct", old, settings, info).eval(), old


@pytest.mark.parametrize("classification", ["softmax", "arcface"])
def test_the_loss_is_the_classifiers_on_mixed_embeddings(classification: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixbct, "drawn", lambda allowed, n: MIXED)
    pixels = torch.rand(8, 1, 8, 8)
    made, old = objective(classification)
    losses, right = made([pixels], TARGET)
    new, olds = made.backbone.embed(pixels).tolist(), old.embed(pixels).tolist()
    weight, bias = made.backbone.classifier.weight.tolist(), made.backbone.classifier.bias
    for i, answer in enumerate(TARGET.tolist()):
        vector = olds[i] + [0.0, 0.0] if MIXED[i] else new[i]
        logits = [sum(a * b for a, b in zip(vector, row, strict=True)) for row in weight]
        if classification == "arcface":
            logits = [z / math.hypot(*vector) / math.hypot(*row) for z, row in zip(logits, weight, strict=True)]
            best = logits.index(max(logits))
            if answer >= 0:
                logits[answer] = math.cos(math.acos(logits[answer]) + 0.5)
            logits = [64 * z for z in logits]
        else:
            logits = [z + b for z, b in zip(logits, bias.tolist(), strict=True)]
            best = logits.index(max(logits))
        log_p = [z - math.log(sum(math.exp(x) for x in logits)) for z in logits]
        smooth = 0.1 if classification == "softmax" else 0.0
        expected = -(1 - smooth) * log_p[answer] - smooth * sum(log_p) / 4 if answer >= 0 else 0.0
        assert losses[i].item() == pytest.approx(expected, rel=1e-3, abs=1e-4)
        assert bool(right[i]) == (best == answer)


def test_replaced_images_teach_the_classifier_and_not_the_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = torch.rand(8, 1, 8, 8)
    for mixed, learns in ((torch.ones(8, dtype=torch.bool), False), (MIXED, True)):
        monkeypatch.setattr(mixbct, "drawn", lambda allowed, n, mixed=mixed: mixed)
        made, _ = objective()
        losses, _ = made([pixels], TARGET)
        losses.sum().backward()
        gradient = next(made.backbone.project.parameters()).grad
        assert gradient is not None, "DDP waits for it"
        assert bool(gradient.any()) == learns
        assert made.backbone.classifier.weight.grad is not None


def test_a_share_of_the_trusted_images_is_drawn() -> None:
    allowed = torch.tensor([True, False, True, True, False, True, True, True])
    torch.manual_seed(0)
    counts = torch.zeros(8)
    for _ in range(600):
        one = drawn(allowed, 3)
        assert one.sum() == 3
        counts += one
    assert not counts[~allowed].any()
    torch.testing.assert_close(counts[allowed] / 600, torch.full((6,), 0.5), atol=0.08, rtol=0)
    torch.testing.assert_close(drawn(allowed, 7), allowed)
    assert not drawn(allowed, 0).any()


@pytest.mark.parametrize(("distances", "replaced"), [(9.0, 4), (0.1, 0)])
def test_only_old_embeddings_near_their_class_are_mixed_in(
    distances: float, replaced: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old embeddings have length 1 and their centres are zero: all or none lie within the radius."""
    found = []

    def record(allowed: torch.Tensor, n: int) -> torch.Tensor:
        found.append((allowed, n))
        return drawn(allowed, n)

    monkeypatch.setattr(mixbct, "drawn", record)
    made, _ = objective(distances=distances)
    made([torch.rand(8, 1, 8, 8)], TARGET)
    [(allowed, n)] = found
    assert n == 4
    assert allowed.tolist() == ([t >= 0 for t in TARGET.tolist()] if replaced else [False] * 8)


def test_the_trusted_radius_holds_the_share_of_a_class() -> None:
    spread = ClassSpread(
        torch.zeros(3, 4), torch.tensor([0, 2, 0, 0, 2, 0]), torch.tensor([0.4, 0.7, 0.1, 0.3, 0.5, 0.2])
    )
    # Of 4 and 2 images: 0.7 * 4 is rounded up to 3, 0.7 * 2 to 2.
    assert trusted_radii(spread, 0.7).tolist() == pytest.approx([0.3, 0.0, 0.7])
    assert trusted_radii(spread, 0.5).tolist() == pytest.approx([0.2, 0.0, 0.5])


def test_the_shares_of_trusted_and_mixed_old_embeddings_are_counted() -> None:
    pixels = torch.rand(8, 1, 8, 8)
    for distances, trusted in ((9.0, 7 / 8), (0.0, 0.0)):
        made, _ = objective(distances=distances)
        assert made.shares() == {"old embeddings trusted": 0, "mixed in": 0}
        made([pixels], TARGET)
        made([pixels], TARGET)
        assert made.shares() == {"old embeddings trusted": trusted, "mixed in": 0.5 if trusted else 0}
