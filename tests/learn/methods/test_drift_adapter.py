"""Drift-Adapter's maps against plain loops over their formulas, what the scaling minimises, and the trained MLP."""

import math

import numpy as np
import pytest
import torch

from ray_backfill.core.errors import InputError
from ray_backfill.learn.methods.adapters import Pairs, reduced_rank
from ray_backfill.learn.methods.drift_adapter import drift_low_rank, drift_procrustes, scaling
from ray_backfill.learn.papers.drift_adapter import ScaledResidual
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings, TransformTraining
from tests.learn.fits import fitted

RNG = np.random.default_rng(0)


def pairs(p: int, q: int, noise: float = 0.3) -> tuple[np.ndarray, np.ndarray]:
    x = RNG.normal(size=(200, p)) + 0.5
    return x, x @ RNG.normal(size=(p, q)) - 0.2 + noise * RNG.normal(size=(200, q))


def error(weight: np.ndarray, bias: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
    return float(((x @ weight + bias - y) ** 2).sum())


@pytest.mark.parametrize(("p", "q"), [(5, 5), (7, 4), (4, 7)])
def test_procrustes_is_rotated_then_scaled(p: int, q: int) -> None:
    x, y = pairs(p, q)
    weight, bias = drift_procrustes(Pairs(x, y), AdapterSettings())
    turned = x @ Pairs(x, y).rotation
    for j in range(q):
        product = sum(turned[i, j] * y[i, j] for i in range(200))
        factor = product / sum(turned[i, j] ** 2 for i in range(200))
        np.testing.assert_allclose(x @ weight[:, j], factor * turned[:, j], atol=1e-9)
    assert not bias.any()
    for step in np.eye(q) * 1e-3:  # no other scaling is better
        assert error(weight * (1 + step), bias, x, y) > error(weight, bias, x, y)
        assert error(weight * (1 - step), bias, x, y) > error(weight, bias, x, y)


def test_a_dimension_that_is_always_zero_is_not_scaled() -> None:
    predicted = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert scaling(predicted, np.array([[3.0, 5.0], [6.0, 5.0]])).tolist() == [3.0, 1.0]


@pytest.mark.parametrize(("p", "q", "rank"), [(6, 5, 2), (3, 7, 64)])
def test_the_low_rank_map_is_the_best_of_its_rank_and_scaling_cannot_mend_it(p: int, q: int, rank: int) -> None:
    x, y = pairs(p, q)
    weight, bias = drift_low_rank(Pairs(x, y), AdapterSettings(drift_rank=rank))
    assert np.linalg.matrix_rank(weight) == min(p, q, rank)
    best = reduced_rank(Pairs(x - x.mean(0), y - y.mean(0)), min(p, q, rank))
    np.testing.assert_allclose(weight, best, atol=1e-9)
    np.testing.assert_allclose(bias, y.mean(0) - x.mean(0) @ best, atol=1e-9)
    np.testing.assert_allclose(scaling(x @ weight + bias, y), np.ones(q), atol=1e-9)


@pytest.mark.parametrize(("input_dim", "output_dim"), [(6, 6), (6, 4), (4, 6)])
@pytest.mark.parametrize("unit", [True, False])
def test_the_mlp_is_the_formula(input_dim: int, output_dim: int, unit: bool) -> None:
    torch.manual_seed(0)
    network = ScaledResidual(input_dim, output_dim, hidden=3, unit=unit)
    x = torch.randn(5, input_dim)
    plain = torch.nn.functional.normalize(x, dim=1) if unit else x
    at_first = (plain.tolist(), network(x).tolist())
    for one, mapped in zip(*at_first, strict=True):
        assert mapped == pytest.approx((one + [0.0] * 6)[:output_dim]), "it starts from the input itself"
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter)
    w1, b1, w2, b2, scale = (
        v.tolist() for v in (network.inner.weight, network.inner.bias, network.outer.weight, network.outer.bias,
                             network.scale_d)
    )  # fmt: skip
    for one, mapped in zip(plain.tolist(), network(x).tolist(), strict=True):
        hidden = [sum(a * b for a, b in zip(row, one, strict=True)) + b for row, b in zip(w1, b1, strict=True)]
        gelu = [0.5 * h * (1 + math.erf(h / math.sqrt(2))) for h in hidden]
        for j in range(output_dim):
            inner = sum(a * b for a, b in zip(w2[j], gelu, strict=True)) + b2[j]
            expected = scale[j] * ((one[j] if j < input_dim else 0.0) + inner)
            assert mapped[j] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_the_mlp_learns_a_rotation_with_a_scaling() -> None:
    x = RNG.normal(size=(400, 6)).astype(np.float32)
    y = (x @ np.linalg.qr(RNG.normal(size=(6, 6)))[0] * np.array([1, 2, 0.5, 1, 1, 3])).astype(np.float32)
    settings = FitSettings(transforms=TransformTraining(epochs=60, batch=50, lr=1e-2))
    network = fitted("drift_mlp", TrainSet({"new": x, "old": y}, None), settings, "l2")
    with torch.no_grad():
        left = (network(torch.from_numpy(x)).numpy() - y).var() / y.var()
    assert left < 0.02
    assert not torch.allclose(network.scale_d, torch.ones(6), atol=0.05)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"--adapters\.drift-rank must be greater than 0, got 0"):
        AdapterSettings(drift_rank=0)
