"""What fits are planned to compute, beside what they count when they run."""

import numpy as np
import pytest
import torch

from ray_backfill.methods import TrainSet, all_methods
from ray_backfill.runs.planning.fits import fit_cost
from ray_backfill.store import Classifier
from ray_backfill.training.fits import FitSettings, fit
from ray_backfill.training.head_loop import HeadTraining
from ray_backfill.training.transform_loop import TransformTraining
from tests.runs.planning.test_plan import count_steps

DIMS = {"old": 6, "new": 10, "side": 6, "bct": 10}
SETTINGS = FitSettings(
    heads=HeadTraining(epochs=2, classes=4, items=3), transforms=TransformTraining(epochs=3, batch=48, hidden=16)
)
# One of each network and kind of loss.
TRAINED = ("rqt", "cl_m", "rm", "fct_side", "bict", "fastfill", "fastfill_disc_u", "residual_mlp_query")


@pytest.mark.parametrize("name", TRAINED)
def test_a_fit_does_what_was_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = all_methods()[name]
    rng = np.random.default_rng(0)
    n_items, n_classes = 110, 5
    dims = {model: DIMS[model] for model in method.models}
    cost = fit_cost(method, dims, n_items, n_classes, SETTINGS, "cosine", workers=1)
    data = TrainSet(
        {model: rng.normal(size=(n_items, dim)).astype(np.float32) for model, dim in dims.items()},
        rng.permutation(np.arange(n_items) % n_classes),
        Classifier(np.arange(n_classes), np.zeros((n_classes, 10), np.float32), np.zeros(n_classes, np.float32)),
    )
    steps = count_steps(torch.optim.Adam, monkeypatch)
    fitted = fit(method, data, SETTINGS, "cosine")
    assert cost.steps == len(steps)
    assert cost.flops == pytest.approx(fitted.flops, rel=1e-9)
    assert cost.parameters == sum(parameter.numel() for parameter in fitted.network.parameters())


def test_workers_share_batches() -> None:
    rm, fct = all_methods()["rm"], all_methods()["fct"]
    # 4 classes x 3 items by 2 workers; 48 items by 5 workers are 9 each.
    assert fit_cost(rm, DIMS, 110, 5, SETTINGS, "cosine", workers=2).steps == 110 // 12 * 2
    assert fit_cost(fct, DIMS, 110, 5, SETTINGS, "cosine", workers=5).steps == 110 // 45 * 3


def test_a_formula_has_no_steps() -> None:
    cost = fit_cost(all_methods()["least_squares_gallery"], DIMS, 110, 5, SETTINGS, "cosine", workers=2)
    assert (cost.epochs, cost.steps, cost.flops) == (1, 0, 0.0)
