"""The influence loss against a plain loop, known and unknown classes, and where it pulls."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ray_backfill.learn.papers import bct
from ray_backfill.learn.training.objective import ClassSpread
from ray_backfill.learn.training.settings import ObjectiveSettings
from tests.learn.methods.objectives import NEW, OLD, SETTINGS, frozen, objective_of

TARGET = torch.tensor([0, 1, 2, 3, 3, -1, 1])  # classes 1, 3, 4, 7, 7, unreadable, 3


def smoothed(logits: torch.Tensor, answer: int) -> float:
    logits = logits.detach()
    log_p = logits - logits.exp().sum().log()
    return float(-(0.9 * log_p[answer] + 0.1 * log_p.mean()))


@pytest.mark.parametrize("old_dim", [4, 9])
def test_influence_is_the_old_classifiers_loss_by_hand(old_dim: int) -> None:
    """Classes 3 and 7 are known to it, as its second and third; the new embedding is cut or filled up with zeros."""
    old = frozen(replace(OLD, backbone=replace(OLD.backbone, dim=old_dim)))
    embedding = torch.randn(7, 6)
    influence = objective_of("bct", old).influence(embedding, TARGET)
    classifier = old.network.classifier
    answers = [None, 1, None, 2, 2, None, 1]
    for i, answer in enumerate(answers):
        width = min(6, old_dim)
        logits = classifier.weight[:, :width] @ embedding[i, :width] + classifier.bias
        # As in openBCT, the mean over the batch is that over the 4 images of known classes.
        expected = 0.0 if answer is None else smoothed(logits, answer) * 7 / 4
        assert influence[i].item() == pytest.approx(expected, abs=1e-5)
    nobody = objective_of("bct", old).influence(embedding, torch.full((7,), 2))  # class 4
    assert nobody.tolist() == [0.0] * 7


def test_the_images_of_all_workers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other worker has 9 images of unknown classes: this one's images still count as much as one another."""
    embedding, made = torch.randn(7, 6), objective_of("bct", frozen())
    alone = made.influence(embedding, TARGET)
    monkeypatch.setattr(bct, "gather", lambda counts: torch.cat([counts, torch.tensor([[0.0, 9.0]])]))
    together = made.influence(embedding, TARGET)
    assert (together.sum() / (7 + 9)).item() == pytest.approx((alone.sum() / 7).item(), rel=1e-5)


def test_class_means_stand_in_for_an_old_classifier_that_knows_none() -> None:
    means = torch.randn(4, 4)
    embedding = torch.randn(7, 6)
    old = frozen(replace(OLD, classes=[0, 2, 9]), means)
    influence = objective_of("bct", old).influence(embedding, TARGET)
    length = torch.stack([weight.norm() for weight in old.network.classifier.weight]).mean()
    weights = torch.stack([mean / mean.norm() * length for mean in means])
    for i, answer in enumerate(TARGET.tolist()):
        expected = 0.0 if answer < 0 else smoothed(weights @ embedding[i, :4], answer) * 7 / 6
        assert influence[i].item() == pytest.approx(expected, abs=1e-5)


def test_pseudo_weights_are_added_to_an_old_classifier_that_knows_some() -> None:
    """Classes 3 and 7 keep their weights; 1 and 4 have their means, at the mean length and with the mean bias."""
    means, embedding = torch.randn(4, 4), torch.randn(7, 6)
    old = frozen(means=means)
    influence = objective_of("bct", old).influence(embedding, TARGET)
    own, bias = old.network.classifier.weight, old.network.classifier.bias
    length = torch.stack([weight.norm() for weight in own]).mean()
    weights = torch.stack([*own, *(means[i] / means[i].norm() * length for i in (0, 2))])
    biases = torch.stack([*bias, bias.mean(), bias.mean()])
    for i, answer in enumerate([3, 1, 4, 2, 2, None, 1]):
        expected = 0.0 if answer is None else smoothed(weights @ embedding[i, :4] + biases, answer) * 7 / 6
        assert influence[i].item() == pytest.approx(expected, abs=1e-5)


def test_an_arcface_classifier_influences_by_its_own_loss() -> None:
    arcface = ObjectiveSettings(classification="arcface")
    old = frozen(replace(OLD, cosine_scale=64.0))
    embedding = torch.randn(7, 6)
    influence = objective_of("bct", old, arcface, replace(NEW, cosine_scale=64.0)).influence(embedding, TARGET)
    cosine = F.cosine_similarity(embedding[1, None, :4], old.network.classifier.weight)
    logits = cosine.clone()
    logits[1] = (cosine[1].acos() + 0.5).cos()
    assert influence[1].item() == pytest.approx(-float((64 * logits).log_softmax(0)[1]) * 7 / 4, rel=1e-4)


def test_the_loss_is_classification_plus_weighted_influence() -> None:
    pixels = torch.rand(7, 1, 8, 8)
    losses = {}
    for weight in (0.0, 1.0, 3.0):
        compatible = replace(SETTINGS.compatible, influence=weight)
        made = objective_of("bct", frozen(), replace(SETTINGS, compatible=compatible)).eval()
        losses[weight], right = made([pixels], TARGET)
    embedding, logits = made.backbone(pixels)
    torch.testing.assert_close(losses[1.0] - losses[0.0], made.influence(embedding, TARGET))
    torch.testing.assert_close(losses[3.0] - losses[0.0], 3 * made.influence(embedding, TARGET), rtol=1e-4, atol=1e-5)
    for i, answer in enumerate(TARGET.tolist()):
        assert losses[0.0][i].item() == pytest.approx(0.0 if answer < 0 else smoothed(logits[i], answer), abs=1e-5)
    assert right.tolist() == (logits.argmax(1) == TARGET).tolist()


@pytest.mark.parametrize("name", ["bct", "ract", "ract_hard", "advbct", "mixbct"])
def test_the_old_model_is_no_part_of_what_is_trained_or_saved(name: str) -> None:
    """Nor is anything beside the backbone, but AdvBCT's discriminator and boundaries."""
    old = frozen(spread=lambda: ClassSpread(torch.zeros(4, 4), torch.arange(8) % 4, torch.full((8,), 0.2)))
    made = objective_of(name, old).train()
    assert made.backbone.training
    assert not old.network.training
    parts = {"backbone", "discriminator", "elastic_C"} if name == "advbct" else {"backbone"}
    assert {key.split(".")[0] for key in made.state_dict()} == parts
    assert {key.split(".")[0] for key, _ in made.named_parameters()} == parts
    losses, _ = made([torch.rand(7, 1, 8, 8)], TARGET)
    losses.sum().backward()
    assert all(p.grad is None for p in old.network.parameters())
    assert all(p.grad is not None for p in made.parameters())
