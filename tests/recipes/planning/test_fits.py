"""What fits are planned to compute, beside what they count when they run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ray_backfill.data.folder import Classifier
from ray_backfill.learn.methods import all_methods
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, LossSettings, TransformTraining
from tests.recipes.planning.test_plan import count_steps

DIMS = {"old": 6, "new": 10, "side": 6, "bct": 10}
SETTINGS = FitSettings(
    heads=HeadTraining(epochs=2, classes=4, items=12), transforms=TransformTraining(epochs=3, batch=48, hidden=16)
)
# One of each network and kind of loss.
TRAINED = (
    *("rqt", "cl_m", "rm", "fct_side", "bict", "fastfill", "fastfill_disc_u", "residual_mlp_query"),
    *("drift_mlp", "orthogonal", "lambda_orthogonal", "cl_s_rho", "mcl", "rho_alone", "fct_rho"),
)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("name", TRAINED)
def test_a_fit_does_what_was_planned(name: str, distance: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of 48 items: torch does not count distances of fewer than 26."""
    method, loss = all_methods()[name], LossSettings(distance=distance)
    settings = replace(SETTINGS, heads=replace(SETTINGS.heads, loss=loss))
    rng = np.random.default_rng(0)
    n_items, n_classes = 110, 5
    dims = {model: DIMS[model] for model in method.models}
    assert method.fit is not None
    cost = method.fit.cost(dims, n_items, n_classes, settings, distance, workers=1)
    data = TrainSet(
        {model: rng.normal(size=(n_items, dim)).astype(np.float32) for model, dim in dims.items()},
        rng.permutation(np.arange(n_items) % n_classes),
        Classifier(np.arange(n_classes), np.zeros((n_classes, 10), np.float32), np.zeros(n_classes, np.float32)),
    )
    steps = count_steps(torch.optim.Adam, monkeypatch)
    fitted = method.fit.fit(data, settings, distance)
    assert cost.steps == len(steps)
    assert cost.flops == pytest.approx(fitted.flops, rel=1e-9)


def test_workers_share_batches() -> None:
    rm, fct = all_methods()["rm"].fit, all_methods()["fct"].fit
    assert rm is not None
    assert fct is not None
    # 4 classes x 12 items by 2 workers; 48 items by 5 workers are 9 each.
    assert rm.cost(DIMS, 110, 5, SETTINGS, "cosine", workers=2).steps == 110 // 48 * 2
    assert fct.cost(DIMS, 110, 5, SETTINGS, "cosine", workers=5).steps == 110 // 45 * 3


def test_a_formula_has_no_steps() -> None:
    fit = all_methods()["least_squares_gallery"].fit
    assert fit is not None
    cost = fit.cost(DIMS, 110, 5, SETTINGS, "cosine", workers=2)
    assert (cost.epochs, cost.steps, cost.flops) == (1, 0, 0.0)
