"""Losses of transformations against plain loops."""

import math

import numpy as np
import pytest
import torch
from pytorch_metric_learning.losses import ArcFaceLoss

from ray_backfill.data.folder import Classifier
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.papers.fastfill import disc_losses, log_variances, transform_loss
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.training.fit import class_rows
from ray_backfill.learn.training.settings import TransformSettings


def looped(fit: TransformFit, settings: TransformSettings, h, s, target, logits, classes) -> float:  # type: ignore[no-untyped-def]
    """Equations 3 to 5, one item at a time, and relative losses in units of log C."""
    total = 0.0
    for i in range(len(h)):
        loss = 0.0
        if fit.l2:
            loss += sum((a - b) ** 2 for a, b in zip(h[i].tolist(), target[i].tolist(), strict=True)) / h.shape[1]
        if fit.disc and classes[i] >= 0:
            exps = [math.exp(z) for z in logits[i].tolist()]
            log_p = [math.log(e / sum(exps)) for e in exps]
            smooth, n = settings.label_smoothing, len(exps)
            cross = -(1 - smooth) * log_p[classes[i]] - smooth * sum(log_p) / n
            loss += settings.disc_weight * (cross / math.log(n) if settings.relative else cross)
        if fit.uncertainty:
            loss = 0.5 * math.exp(-float(s[i])) * loss + settings.uncertainty_weight * float(s[i])
        total += loss
    return total / len(h)


@pytest.mark.parametrize("l2", [True, False])
@pytest.mark.parametrize("disc", [True, False])
@pytest.mark.parametrize("uncertainty", [True, False])
@pytest.mark.parametrize("relative", [True, False])
def test_the_loss_equals_plain_loops(l2: bool, disc: bool, uncertainty: bool, relative: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    h, target, weight = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (7, 7, 4))
    bias = torch.randn(4, generator=generator, dtype=torch.float64)
    s = torch.randn(7, generator=generator, dtype=torch.float64)
    classes = torch.tensor([0, 3, -1, 2, 2, 1, -1])
    fit = TransformFit(l2=l2, disc=disc, uncertainty=uncertainty)
    settings = TransformSettings(disc_weight=0.7, uncertainty_weight=0.4, relative=relative)
    disc_b = disc_losses(h, classes, weight, bias, settings) if disc else None
    found = transform_loss(fit, settings, h, s if uncertainty else None, target, disc_b)
    logits = h @ weight.T + bias
    assert float(found) == pytest.approx(looped(fit, settings, h, s, target, logits, classes.tolist()), rel=1e-12)


def test_for_faces_the_classification_loss_is_arcface() -> None:
    torch.manual_seed(0)
    h, classes = torch.randn(7, 5), torch.tensor([0, 3, 1, 2, 2, 1, 0])
    oracle = ArcFaceLoss(num_classes=4, embedding_size=5, margin=28.6479, scale=30)  # 0.5 radians
    settings = TransformSettings(classification="arcface", arcface_scale=30, relative=False)
    found = disc_losses(h, classes, oracle.W.detach().T, torch.ones(4), settings)
    assert float(found.mean()) == pytest.approx(float(oracle(h, classes).detach()), rel=1e-4)


def test_labels_find_their_rows_in_any_order() -> None:
    classifier = Classifier(np.array([7, 3, 9]), np.zeros((3, 2), np.float32), np.zeros(3, np.float32))
    assert class_rows(classifier, np.array([3, 9, 1, 7, 10])).tolist() == [1, 2, -1, 0, -1]
    named = Classifier(np.array(["b", "a"]), np.zeros((2, 2), np.float32), np.zeros(2, np.float32))
    assert class_rows(named, np.array(["a", "c", "b"])).tolist() == [1, -1, 0]


def test_uncertainty_needs_only_what_is_stored() -> None:
    network = Transform((4,), 6, hidden=8, uncertainty=True).eval()
    old = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    found = log_variances(transform(network, old), network)
    with torch.no_grad():
        h = network(torch.from_numpy(old))
        np.testing.assert_allclose(found, network.log_variance(h).numpy(), rtol=1e-4, atol=1e-6)


def test_without_side_information_both_branches_see_the_old_embedding() -> None:
    torch.manual_seed(0)
    network = Transform((4,), 6, hidden=8).eval()
    old = torch.randn(3, 4)
    with torch.no_grad():
        branches = [network.branches[0](old), network.branches[1](old)]
        assert not torch.equal(*branches)
        torch.testing.assert_close(network(old), network.mixer(torch.cat(branches, 1)))
