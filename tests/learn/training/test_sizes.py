"""How long a training is by default: by the dimensions and the number of items, and never by the machine."""

import numpy as np
import pytest

from ray_backfill.learn.training.fit import MOST_FLOPS, TrainSet, sized
from ray_backfill.learn.training.settings import FitSettings
from tests.learn.fits import fit_of


def items(number: int, dims: int) -> TrainSet:
    vectors = {model: np.zeros((number, dims), np.float32) for model in ("old", "new")}
    return TrainSet(vectors, np.arange(number) % 10, None, {})


@pytest.mark.parametrize("name", ["fct", "fastfill", "rm", "mcl", "fct_rho"])
@pytest.mark.parametrize(("number", "dims"), [(2_000, 64), (2_700, 1_280), (50_000, 384)])
def test_a_training_takes_ten_trillion_operations_at_most(name: str, number: int, dims: int) -> None:
    fit = fit_of(name)
    settings = sized(fit, FitSettings.of_folder(), items(number, dims), "cosine")
    cost = fit.cost({"old": dims, "new": dims}, number, 10, settings, "cosine", 1)
    assert cost.flops <= MOST_FLOPS <= 1e13
    group = settings.heads if fit.option == "heads" else settings.transforms
    assert 1 <= group.epochs <= (50 if fit.option == "heads" else 40)
    assert settings.transforms.warmup_epochs <= settings.transforms.epochs / 4 or fit.option == "heads"
    if dims == 64:
        assert group.epochs == (50 if fit.option == "heads" else 40), "a small training is not shortened"


def test_what_was_given_stays() -> None:
    given = FitSettings()
    assert sized(fit_of("fct"), given, items(100_000, 1_280), "cosine") == given
    of_folder = FitSettings.of_folder()
    assert sized(fit_of("ridge_gallery"), of_folder, items(100, 8), "cosine") == of_folder
