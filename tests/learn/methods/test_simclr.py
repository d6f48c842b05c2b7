"""NT-Xent against a plain loop and pytorch-metric-learning; what is trained and what is kept."""

import math

import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning.losses import NTXentLoss

from ray_backfill.learn.papers.simclr import nt_xent
from tests.learn.methods.objectives import objective_of


def views() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(6, 5, generator=generator).double()
    return first, first + 0.7 * torch.randn(6, 5, generator=generator).double()


def test_nt_xent_is_the_formula_without_unreadable_images() -> None:
    first, second = views()
    readable = torch.tensor([True, True, False, True, True, True])
    losses, right = nt_xent(first, second, readable, 0.3)
    everything, image = torch.cat([first, second]), [*range(6), *range(6)]
    for i in range(6):
        if not readable[i]:
            assert losses[i] == 0
            assert not right[i]
            continue
        terms = []
        for anchor, partner in ((i, i + 6), (i + 6, i)):
            cos = [float(F.cosine_similarity(everything[anchor], everything[k], dim=0)) for k in range(12)]
            others = [k for k in range(12) if k != anchor and readable[image[k]]]
            terms.append(-math.log(math.exp(cos[partner] / 0.3) / sum(math.exp(cos[k] / 0.3) for k in others)))
            if anchor == i:
                assert right[i] == (max(others, key=lambda k: cos[k]) == partner)
        assert losses[i].item() == pytest.approx(sum(terms) / 2, rel=1e-9)


def test_nt_xent_is_that_of_pytorch_metric_learning() -> None:
    first, second = views()
    losses, _ = nt_xent(first, second, torch.ones(6, dtype=torch.bool), 0.1)
    expected = NTXentLoss(temperature=0.1)(torch.cat([first, second]), torch.arange(6).repeat(2))
    torch.testing.assert_close(losses.mean(), expected, rtol=1e-6, atol=1e-9)


def test_a_batch_without_any_readable_image_leaves_gradients_numbers() -> None:
    first, second = (view.requires_grad_() for view in views())
    nt_xent(first, second, torch.zeros(6, dtype=torch.bool), 0.1)[0].sum().backward()
    assert first.grad is not None
    assert not first.grad.any()


def test_every_parameter_that_trains_gets_a_gradient_and_the_classifier_does_not_train() -> None:
    """DDP waits for the gradients of all that have one."""
    made = objective_of("side", None)
    assert made.n_views == 2
    losses, _ = made([torch.rand(4, 1, 8, 8), torch.rand(4, 1, 8, 8)], torch.tensor([0, 1, -1, 0]))
    losses.sum().backward()
    for name, parameter in made.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), name
        assert parameter.requires_grad != name.startswith("backbone.classifier."), name
    assert any(name.startswith("projection.") for name in made.state_dict())
