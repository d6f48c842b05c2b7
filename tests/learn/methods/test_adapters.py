"""Adapters against other implementations, and against what each of them minimises."""

import numpy as np
import pytest
import scipy.linalg
from sklearn.linear_model import LinearRegression, Ridge, RidgeCV

from ray_backfill.core.errors import InputError
from ray_backfill.learn.methods.adapters import (
    FORMULAS,
    METHODS,
    STRENGTHS,
    Formula,
    FormulaFit,
    Pairs,
    least_squares,
    low_rank,
    procrustes,
    procrustes_centred,
    rank_of,
    reduced_rank,
    regression,
    relaxed,
    ridge,
    strength_of,
)
from ray_backfill.learn.models.apply import transform
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.learn.training.settings import AdapterSettings, FitSettings

RNG = np.random.default_rng(0)


def pair(p: int, q: int, n: int = 200, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    x = RNG.normal(size=(n, p)) + 1.0
    return x, x @ RNG.normal(size=(p, q)) + 0.5 + noise * RNG.normal(size=(n, q))


def error(formula: Formula, x: np.ndarray, y: np.ndarray, settings: AdapterSettings | None = None) -> float:
    weight, bias = formula(Pairs(x, y), settings or AdapterSettings())
    return float(((x @ weight + bias - y) ** 2).sum())


def test_procrustes_is_scipys() -> None:
    x, y = pair(6, 6)
    np.testing.assert_allclose(Pairs(x, y).rotation, scipy.linalg.orthogonal_procrustes(x, y)[0], atol=1e-12)


@pytest.mark.parametrize(("p", "q"), [(4, 7), (7, 4), (5, 5)])
def test_a_rotation_is_found_again_whatever_the_dimensions(p: int, q: int) -> None:
    true = np.linalg.svd(RNG.normal(size=(p, q)), full_matrices=False)
    w = true[0] @ true[2]
    x = RNG.normal(size=(300, p))
    if p > q:  # only what lies in the row space of w can be found
        x = x @ w @ w.T
    np.testing.assert_allclose(x @ Pairs(x, x @ w).rotation, x @ w, atol=1e-9)


def test_a_centred_rotation_finds_shifted_clouds_that_the_plain_one_misses() -> None:
    x = RNG.normal(size=(300, 5)) + 3.0
    y = (x - 3.0) @ np.linalg.qr(RNG.normal(size=(5, 5)))[0] - 2.0
    assert error(procrustes_centred, x, y) < 1e-18 * len(x) < error(procrustes, x, y)


@pytest.mark.parametrize(("p", "q"), [(4, 7), (7, 4)])
def test_least_squares_is_scikit_learns(p: int, q: int) -> None:
    x, y = pair(p, q)
    weight, bias = least_squares(Pairs(x, y), AdapterSettings())
    oracle = LinearRegression().fit(x, y)
    np.testing.assert_allclose(weight, oracle.coef_.T, atol=1e-9)
    np.testing.assert_allclose(bias, oracle.intercept_, atol=1e-9)


def test_ridge_is_scikit_learns() -> None:
    x, y = pair(6, 4)
    centred = x - x.mean(0)
    weight, bias = ridge(Pairs(x, y), AdapterSettings(ridge=0.7))
    oracle = Ridge(alpha=0.7 * (centred**2).sum() / 6).fit(x, y)
    factor = weight[0, 0] / oracle.coef_[0, 0]
    np.testing.assert_allclose(weight, factor * oracle.coef_.T, atol=1e-9)
    np.testing.assert_allclose(bias, y.mean(0) - x.mean(0) @ weight, atol=1e-9)


def test_ridge_predicts_unseen_items_with_the_spread_of_the_targets() -> None:
    """Wide vectors and few items: without the factor the predictions stay close to their mean."""
    x, y = pair(60, 60, n=500, noise=8.0)
    weight, bias = ridge(Pairs(x[:200], y[:200]), AdapterSettings())
    unseen = x[200:] @ weight + bias
    oracle = RidgeCV([a * 200 for a in STRENGTHS]).fit(x[:200], y[:200]).predict(x[200:])
    spread = y[200:].var(0).sum()
    assert oracle.var(0).sum() < 0.8 * spread
    assert unseen.var(0).sum() == pytest.approx(spread, rel=0.1)


def test_the_penalty_is_what_scikit_learn_finds_by_the_same_parts() -> None:
    x, y = pair(20, 30, n=100, noise=5.0)
    errors = np.zeros(len(STRENGTHS))
    for seen, held_x, held_y in Pairs(x, y).folds:
        scale = (seen.x**2).sum() / 20
        for i, strength in enumerate(STRENGTHS):
            oracle = Ridge(alpha=strength * scale, fit_intercept=False).fit(seen.x, seen.y)
            errors[i] += ((oracle.predict(held_x) - held_y) ** 2).sum()
    assert strength_of(Pairs(x, y)) == STRENGTHS[errors.argmin()] not in (STRENGTHS[0], STRENGTHS[-1])


def test_the_relaxation_is_that_of_least_error_on_held_out_items() -> None:
    x = RNG.normal(size=(100, 20))
    turn = np.linalg.qr(RNG.normal(size=(20, 20)))[0]
    y = x @ (turn + 0.1 * RNG.normal(size=(20, 20))) + 0.5 * RNG.normal(size=(100, 20))
    errors = []
    for strength in STRENGTHS:
        fits = [(fold, regression(fold.pairs, strength, fold.pairs.rotation)) for fold in Pairs(x, y).folds]
        errors.append(sum(((fold.held_x @ weight - fold.held_y) ** 2).sum() for fold, weight in fits))
    assert (
        strength_of(Pairs(x, y), to_rotation=True)
        == STRENGTHS[int(np.argmin(errors))]
        not in (STRENGTHS[0], STRENGTHS[-1])
    )


def test_the_rank_is_that_of_what_can_be_predicted() -> None:
    x = RNG.normal(size=(300, 16))
    true = RNG.normal(size=(16, 4)) @ RNG.normal(size=(4, 24))
    y = x @ true + 2.0 * RNG.normal(size=(300, 24))
    pairs = Pairs(x, y)
    assert rank_of(pairs, strength_of(pairs), None) == 4
    assert np.linalg.matrix_rank(low_rank(pairs, AdapterSettings())[0]) == 4
    assert np.linalg.matrix_rank(low_rank(pairs, AdapterSettings(rank_share=0.5))[0]) == 8


@pytest.mark.parametrize(("n", "expected"), [(10, 5), (999, 5), (1000, 1)])
def test_every_item_is_held_out_once_or_a_fifth_of_many(n: int, expected: int) -> None:
    x, y = RNG.normal(size=(n, 3)), RNG.normal(size=(n, 2))
    folds = Pairs(x, y).folds
    assert len(folds) == expected
    assert {len(seen.x) + len(held_x) for seen, held_x, _ in folds} == {n}
    for seen, _, _ in folds:
        np.testing.assert_allclose(seen.x.mean(0), 0, atol=1e-12)
    if expected == 5:
        assert sum(len(held_x) for _, held_x, _ in folds) == n


@pytest.mark.parametrize("formula", [ridge, relaxed])
def test_recommended_maps_predict_wide_vectors_better_than_least_squares(formula: Formula) -> None:
    """200 items of 150 dimensions, as few as of the wide models of the atlas: least squares learns the noise."""
    x = RNG.normal(size=(2000, 150))
    y = x @ np.linalg.qr(RNG.normal(size=(150, 150)))[0] + 0.7 * RNG.normal(size=(2000, 150))

    def cosine(chosen: Formula) -> float:
        weight, bias = chosen(Pairs(x[:200], y[:200]), AdapterSettings())
        predicted = x[200:] @ weight + bias
        lengths = np.linalg.norm(predicted, axis=1) * np.linalg.norm(y[200:], axis=1)
        return float(((predicted * y[200:]).sum(1) / lengths).mean())

    assert cosine(formula) > cosine(least_squares) + 0.1


def test_recommended_maps_are_of_the_gallery_and_penalised() -> None:
    """Query maps fail between unequal dimensions, plain least squares on wide vectors (docs/results/atlas.md)."""
    assert {m.name for m in METHODS if m.is_recommended} == {"relaxed_gallery", "ridge_gallery"}


def test_least_squares_copes_with_dimensions_that_say_nothing() -> None:
    x, y = pair(4, 3)
    x = np.hstack([x, x[:, :1], np.zeros((len(x), 1))])
    np.testing.assert_allclose(error(least_squares, x, y), error(least_squares, x[:, :4], y), rtol=1e-9)


def test_the_relaxed_map_lies_between_its_two_ends() -> None:
    x, y = pair(5, 5)
    free, tight = (relaxed(Pairs(x, y), AdapterSettings(relaxation=r))[0] for r in (1e-12, 1e12))
    np.testing.assert_allclose(free, least_squares(Pairs(x, y), AdapterSettings())[0], atol=1e-6)
    np.testing.assert_allclose(tight, procrustes_centred(Pairs(x, y), AdapterSettings())[0], atol=1e-6)
    errors = [error(relaxed, x, y, AdapterSettings(relaxation=r)) for r in (0.0, 0.1, 1.0, 10.0)]
    assert errors == sorted(errors)


def test_reduced_rank_is_the_best_of_its_rank() -> None:
    """No small step within maps of that rank makes it better, and random ones of that rank are worse."""
    x, y = pair(6, 5, noise=1.0)
    weight = reduced_rank(Pairs(x, y), 2)
    assert np.linalg.matrix_rank(weight) == 2
    best = ((x @ weight - y) ** 2).sum()
    left, scale, right = np.linalg.svd(weight)
    for _ in range(200):
        a = left[:, :2] * scale[:2] + 1e-2 * RNG.normal(size=(6, 2))
        b = right[:2] + 1e-2 * RNG.normal(size=(2, 5))
        assert ((x @ (a @ b) - y) ** 2).sum() > best
    np.testing.assert_allclose(reduced_rank(Pairs(x, y), 5), regression(Pairs(x, y), 0.0), atol=1e-9)


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_the_network_is_the_formula(formula: Formula, distance: str) -> None:
    x, y = (v.astype(np.float32) for v in pair(4, 6))
    data, unit = TrainSet({"old": x, "new": y}, None), distance == "cosine"
    network = FormulaFit(formula, "old", "new").fit(data, FitSettings(), distance).network
    wide = [v.astype(np.float64) / (np.linalg.norm(v, axis=1, keepdims=True) if unit else 1) for v in (x, y)]
    weight, bias = formula(Pairs(wide[0], wide[1]), AdapterSettings())
    np.testing.assert_allclose(transform(network, x), wide[0] @ weight + bias, rtol=1e-4, atol=1e-5)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(InputError, match=r"--adapters\.ridge must be finite and not negative"):
        AdapterSettings(ridge=-1)
    with pytest.raises(InputError, match="at most 1"):
        AdapterSettings(rank_share=1.5)


@pytest.mark.parametrize(("p", "q"), [(12, 20), (20, 12), (15, 15)])
def test_what_formulas_share_changes_no_bit(p: int, q: int) -> None:
    """Whichever other formulas were fitted before."""
    x, y = pair(p, q, n=60, noise=2.0)
    vectors = {"old": x.astype(np.float32), "new": y.astype(np.float32)}
    fits = [FormulaFit(formula, *ends) for formula in FORMULAS for ends in (("old", "new"), ("new", "old"))]

    def arrays_of(fit: FormulaFit, data: TrainSet) -> list[np.ndarray]:
        network = fit.fit(data, FitSettings(), "cosine").network
        return [getattr(network, name) for name in network.arrays]

    alone = {fit: arrays_of(fit, TrainSet(vectors, None)) for fit in fits}
    for in_order in (fits, fits[::-1]):
        data = TrainSet(vectors, None)
        for fit in (*in_order, *in_order):
            for shared, expected in zip(arrays_of(fit, data), alone[fit], strict=True):
                np.testing.assert_array_equal(shared, expected)
        assert len(data.shared) == 2


def test_ill_conditioned_least_squares_is_numpys() -> None:
    """Below the limit of conditions by decomposition of x itself, above it by x^T x and one step of refinement."""
    u, v = (np.linalg.qr(RNG.normal(size=(n, 30)))[0] for n in (200, 30))
    for smallest in (1e-4, 1e-7):
        x = u * np.geomspace(1, smallest, 30) @ v.T
        y = x @ RNG.normal(size=(30, 5)) + RNG.normal(size=(200, 5))
        expected = np.linalg.lstsq(x, y, rcond=None)[0]
        found = regression(Pairs(x, y), 0.0)
        assert np.linalg.norm(found - expected) < 1e-10 * np.linalg.norm(expected)


def test_what_is_shared_is_of_one_distance() -> None:
    """Under cosine, formulas see vectors of length 1."""
    rng = np.random.default_rng(0)
    data = TrainSet({model: rng.normal(size=(20, 3)).astype(np.float32) for model in ("old", "new")}, np.arange(20))
    scaled, plain = (Pairs.of(data, "old", "new", is_cosine) for is_cosine in (True, False))
    np.testing.assert_allclose(np.linalg.norm(scaled.x, axis=1), 1)
    np.testing.assert_array_equal(plain.x, data.vectors["old"])
    assert Pairs.of(data, "old", "new", True) is scaled
