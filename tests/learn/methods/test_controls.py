"""Controls: rho without the old model, h towards its results, and who takes part in "all"."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.learn.methods import CONTROLS, Embeddings, Method, all_methods
from ray_backfill.learn.methods.fct import TransformFit
from ray_backfill.learn.methods.rank_merge import TowardsRhoFit
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.papers.fastfill import log_variances
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining
from tests.learn.fits import fit_of, fitted

SETTINGS = FitSettings(
    heads=HeadTraining(epochs=5, classes=5, items=4, lr=1e-2),
    transforms=TransformTraining(epochs=60, batch=40, lr=1e-2, warmup_epochs=1, hidden=16),
)


def control(name: str) -> Method:
    return all_methods()[name]


def train_set(old_seed: int = 1) -> TrainSet:
    rng = np.random.default_rng(0)
    label = np.arange(80) % 5
    new = (rng.normal(size=(5, 6))[label] + 0.5 * rng.normal(size=(80, 6))).astype(np.float32)
    old = new[:, :4] + 0.1 * np.random.default_rng(old_seed).normal(size=(80, 4)).astype(np.float32)
    return TrainSet({"old": old.astype(np.float32), "new": new}, label)


def test_they_take_part_only_if_asked_for() -> None:
    of_family = {m.name for m in all_methods().values() if m.family == CONTROLS}
    assert of_family == {"rho_alone", "fct_rho", "fastfill_rho"}

    def found(*names: str) -> set[str]:
        return {m.name for m in Evaluation(methods=names).named.methods}

    assert found("all") == (set(all_methods()) - of_family) | {"rho_alone"}
    assert found("controls") == {"old", "new"} | of_family
    assert found("fct") == {"old", "new", "fct"}


def test_the_head_alone_stands_beside_new_wherever_rho_takes_part() -> None:
    def found(*names: str) -> list[str]:
        return [method.name for method in Evaluation(methods=names).named.methods]

    assert found("fct", "rm", "old") == ["old", "new", "rho_alone", "fct", "rm"]
    assert found("rm", "rho_alone") == ["old", "new", "rho_alone", "rm"]
    assert found("rqt_rho") == ["old", "new", "rho_alone", "rqt_rho"]
    assert found("fct_rho") == ["old", "new", "rho_alone", "fct_rho"]
    assert found("mcl", "fastfill") == ["old", "new", "mcl", "fastfill"]
    assert [m.name for m in Evaluation(methods=("rm",)).named.asked] == ["old", "new", "rm"]


def test_two_models_are_those_that_train_no_further_backbone() -> None:
    two = {m.name for m in Evaluation(methods=("two_models",)).named.methods}
    assert {"rm", "fct", "fastfill", "least_squares_gallery"} < two
    assert two.isdisjoint({"bct", "bict", "ract", "fct_side", "dsimplex", "fct_rho"})


def test_rho_alone_does_not_depend_on_the_old_model() -> None:
    """Full RM's rho does."""
    for name, is_same in (("rho_alone", True), ("rm", False)):
        one, other = (fitted(name, train_set(seed), SETTINGS) for seed in (1, 2))
        pairs = zip(one.rho.parameters(), other.rho.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == is_same


def test_rho_alone_serves_rho_from_the_start() -> None:
    data = train_set()
    network = fitted("rho_alone", data, SETTINGS)
    pair = control("rho_alone").pair(Embeddings(data.vectors, data.vectors), network)
    assert pair.backward is pair.forward
    with torch.no_grad():
        expected = network.rho(torch.from_numpy(data.vectors["new"])).numpy()
    np.testing.assert_allclose(pair.forward.query, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(pair.forward.gallery, expected, rtol=1e-4, atol=1e-5)


def with_views(data: TrainSet) -> TrainSet:
    rng = np.random.default_rng(5)
    views = {
        name: np.stack([x + 0.1 * rng.normal(size=x.shape) for _ in range(2)]).astype(np.float32)
        for name, x in data.vectors.items()
    }
    return replace(data, views=views)


@pytest.mark.parametrize("data", [train_set(), with_views(train_set())], ids=["one view", "three views"])
@pytest.mark.parametrize("name", ["fct_rho", "fastfill_rho"])
def test_h_is_what_it_would_be_with_rho_as_the_new_model(name: str, data: TrainSet) -> None:
    """Both steps by hand: rho alone, then FCT or FastFill on its results."""
    network, rho = fitted(name, data, SETTINGS), fitted("rho_alone", data, SETTINGS)
    for ours, theirs in zip(network.rho.parameters(), rho.rho.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    rho.rho.double()
    with torch.no_grad():
        moved, *of_views = (
            rho.rho(torch.from_numpy(x).double()).float().numpy()
            for x in (data.vectors["new"], *data.views.get("new", ()))
        )
    views = {"old": data.views["old"], "new": np.stack(of_views)} if of_views else {}
    by_hand = replace(data, vectors={"old": data.vectors["old"], "new": moved}, views=views)
    alone = fitted(name.removesuffix("_rho"), by_hand, SETTINGS)
    for ours, theirs in zip(network.h.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    pair = control(name).pair(Embeddings(data.vectors, data.vectors), network)
    np.testing.assert_allclose(pair.forward.gallery, moved, rtol=1e-4, atol=1e-4)
    assert pair.backward.query is pair.forward.query
    error = np.square(pair.backward.gallery - moved).mean() / moved.var()
    assert error < (0.3 if name == "fct_rho" else 1.0), "h has learned rho(new)"


def test_uncertainty_is_that_of_h() -> None:
    data = train_set()
    assert control("fastfill_rho").has_sigma
    assert not control("fct_rho").has_sigma
    network = fitted("fastfill_rho", data, SETTINGS)
    with torch.no_grad():
        expected = network.h.log_variance(network.h(torch.from_numpy(data.vectors["old"])))
    found = log_variances(transform(network.h, data.vectors["old"]), network.h)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-4)


def test_a_cost_is_that_of_both_steps() -> None:
    fit = fit_of("fct_rho")
    assert isinstance(fit, TowardsRhoFit)
    dims = {"old": 4, "new": 6}
    rho = fit.rho.cost(dims, 80, 5, SETTINGS, "cosine", 1)
    h = TransformFit().cost(dims, 80, 5, SETTINGS, "cosine", 1)
    both = fit.cost(dims, 80, 5, SETTINGS, "cosine", 1)
    assert both.steps == rho.steps + h.steps
    assert both.flops == pytest.approx(rho.flops + h.flops)


def test_a_diverged_rho_is_seen_in_the_loss_of_h() -> None:
    data, losses = train_set(), list[float]()
    data = replace(data, vectors={"old": data.vectors["old"], "new": data.vectors["new"] * np.float32(np.nan)})
    fit_of("fct_rho").fit(data, SETTINGS, "cosine", on_epoch=lambda _, loss: losses.append(loss))
    assert len(losses) == 60
    assert np.isnan(losses[-1])
