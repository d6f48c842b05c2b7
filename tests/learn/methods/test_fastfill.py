"""What FastFill's uncertainty is measured by."""

import numpy as np
import pytest
import torch

from ray_backfill.data.folder import Classifier
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.papers.fastfill import disc_losses, item_losses, transform_loss
from ray_backfill.learn.papers.fct import Transform
from ray_backfill.learn.training.fit import class_rows
from ray_backfill.learn.training.settings import TransformSettings


@pytest.mark.parametrize("relative", [True, False])
def test_what_sigma_should_foretell_is_the_loss_of_each_item(relative: bool) -> None:
    torch.manual_seed(0)
    network = Transform((4,), 5, hidden=8, uncertainty=True).eval()
    old, new = torch.randn(7, 4), torch.randn(7, 5)
    classifier = Classifier(np.array([3, 1]), np.full((2, 5), 2, np.float32), np.ones(2, np.float32))
    label, settings = np.array([1, 3, 1, 9, 3, 3, 1]), TransformSettings(disc_weight=0.5, relative=relative)
    found = item_losses(network, classifier, old.numpy(), new.numpy(), label, settings)
    weight, bias = torch.from_numpy(classifier.weight), torch.from_numpy(classifier.bias)
    scale = float(new.double().var(0, unbiased=False).mean().sqrt()) if relative else 1.0
    with torch.no_grad():
        for i in range(7):
            h = network(old[i : i + 1])
            disc = disc_losses(h, torch.from_numpy(class_rows(classifier, label[i : i + 1])), weight, bias, settings)
            one = transform_loss(TransformFit(disc=True), settings, h / scale, None, new[i : i + 1] / scale, disc)
            assert found[i] == pytest.approx(float(one) if label[i] != 9 else float("nan"), rel=1e-5, nan_ok=True)
