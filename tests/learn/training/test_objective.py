"""Classification as an objective: ArcFace against pytorch-metric-learning, unreadable images, widths."""

import math

import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

from ray_backfill.learn.models.backbones import BackboneInfo, class_logits
from ray_backfill.learn.training.objective import Classification, classification_losses, fit_width
from ray_backfill.learn.training.settings import BackboneSettings, ObjectiveSettings

ARCFACE = ObjectiveSettings(classification="arcface")


def test_arcface_is_that_of_pytorch_metric_learning() -> None:
    """Also where angle + margin exceeds pi: the first embedding points away from its class."""
    torch.manual_seed(0)
    embedding, target = torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % 5
    weight = torch.randn(5, 6, dtype=torch.float64)
    embedding[0] = -weight[0] + 0.01 * torch.randn(6, dtype=torch.float64)
    # It takes degrees, and sums up by the mean.
    oracle = ArcFaceLoss(5, 6, margin=math.degrees(0.5), scale=64).double()
    oracle.W.data = weight.T.clone()
    mine, theirs = embedding.clone().requires_grad_(), embedding.clone().requires_grad_()
    losses = classification_losses(class_logits(mine, weight, None, 64.0), target, ARCFACE, 64.0)
    expected = oracle(theirs, target)
    torch.testing.assert_close(losses.mean(), expected, rtol=1e-6, atol=1e-9)
    losses.mean().backward()
    expected.backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-5, atol=1e-8)


def test_an_embedding_on_its_class_has_a_gradient() -> None:
    """acos is infinitely steep there."""
    weight = torch.eye(3)
    embedding = weight.clone().requires_grad_()
    losses = classification_losses(class_logits(embedding, weight, None, 64.0), torch.arange(3), ARCFACE, 64.0)
    losses.sum().backward()
    assert embedding.grad is not None
    assert embedding.grad.isfinite().all()


def test_softmax_is_smoothed_cross_entropy_by_hand() -> None:
    torch.manual_seed(0)
    logits, target = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, -1, 1])
    losses = classification_losses(logits, target, ObjectiveSettings(label_smoothing=0.2), None)
    for i in range(6):
        log_p = logits[i] - logits[i].exp().sum().log()
        expected = 0.0 if target[i] < 0 else -(0.8 * log_p[target[i]] + 0.2 * log_p.mean())
        assert losses[i].item() == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    "settings", [ObjectiveSettings(), ObjectiveSettings("arcface", arcface_scale=4.0)], ids=["softmax", "arcface"]
)
def test_unreadable_images_cost_nothing(settings: ObjectiveSettings) -> None:
    info = BackboneInfo(BackboneSettings(dim=6, width=2), 1, 8, [0, 1, 2], cosine_scale=settings.cosine_scale)
    losses, right = Classification(info.build().eval(), info, settings, None)(
        [torch.rand(4, 1, 8, 8)], torch.tensor([0, -1, 2, -1])
    )
    assert (losses > 0).tolist() == [True, False, True, False]
    assert not right[[1, 3]].any()


def test_widths_are_cut_or_filled_up() -> None:
    vectors = torch.arange(6.0).view(2, 3)
    assert fit_width(vectors, 2).tolist() == [[0, 1], [3, 4]]
    assert fit_width(vectors, 3).tolist() == vectors.tolist()
    assert fit_width(vectors, 5).tolist() == [[0, 1, 2, 0, 0], [3, 4, 5, 0, 0]]
