"""What sampled items stand for, and what a disagreement with the sample costs."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import Filter, RetrievalSystem
from ray_backfill.forecast.counts import structural_error
from ray_backfill.forecast.models import (
    AnswerModel,
    Checked,
    KnownForms,
    KnownItems,
    calibrate,
    draw_entries,
    fit_models,
    jackknife_parts,
)
from tests.forecast.galleries import gallery, known_of


def test_what_the_backfill_has_done_stands_for_others_only_where_nothing_else_does() -> None:
    nobody = np.empty(0, np.int64)
    weight, done = np.array([4.0, 4.0, 0.0, 4.0]), np.array([True, False, False, True])
    known = KnownItems(np.arange(4), weight, weight > 0, nobody, nobody, 0, done)
    assert known.at_random.tolist() == [False, True, False, False]
    assert known.standing(np.array([0, 1, 2])).tolist() == [False, True, False]
    assert known.standing(np.array([0, 2, 3])).tolist() == [True, False, True]


def checked_with(
    effects: tuple[float, float], queries: int, rng: np.random.Generator, items: int = 200
) -> list[Checked]:
    """Counts of a Poisson distribution, whose mean is that of shifted and scaled normal distances."""
    share = np.array([0.001, 0.01, 0.1])
    quantile = norm.ppf(share)
    mills = norm.pdf(quantile) / share
    true = np.exp(mills * effects[0] - quantile * mills * effects[1])
    rows = [rng.poisson(items * share * true).astype(float) for _ in range(queries)]
    return [Checked(row, items * share, share, np.full(3, 0.01), np.ones(3)) for row in rows]


def test_a_disagreement_with_the_sample_is_corrected_as_far_as_it_is_certain() -> None:
    at, rng = np.array([0.0005, 0.02]), np.random.default_rng(0)
    quantile = norm.ppf(at)
    logarithm = norm.pdf(quantile) / at * (0.05 - 0.1 * quantile)
    found = calibrate(checked_with((0.05, 0.1), 2000, rng), np.arange(2000))
    assert np.log(found.factor(at)) == pytest.approx(logarithm, abs=3 * found.error(at).max())
    assert found.error(at).max() < 0.1
    assert found.ratio > 1.1
    # Of three queries and ten items, little is certain: the factor stays near 1, and its error near that of the prior.
    few = calibrate(checked_with((0.05, 0.1), 3, rng, items=10), np.arange(3))
    prior = 0.1 * norm.pdf(quantile) / at * np.hypot(1, quantile)
    assert (few.error(at) > 0.5 * prior).all()
    assert (few.error(at) <= prior).all()
    assert (np.abs(np.log(few.factor(at))) < prior).all()


def test_the_error_of_the_factor_is_what_it_is_over_many_samples() -> None:
    at, rng = np.array([0.0005, 0.005, 0.05]), np.random.default_rng(1)
    found = [calibrate(checked_with((0.0, 0.0), 60, rng), np.arange(60)) for _ in range(100)]
    off = np.stack([np.log(of.factor(at)) for of in found])
    # The prior draws estimates to 1, which is true here: the error holds more often than it states.
    assert ((np.abs(off) < 2 * np.stack([of.error(at) for of in found])).mean(axis=0) > 0.93).all()
    assert (off.std(axis=0) > 0.3 * np.stack([of.error(at) for of in found]).mean(axis=0)).all()


def test_queries_of_a_group_err_together() -> None:
    checked = checked_with((0.0, 0.0), 60, np.random.default_rng(2))
    at, twice = np.array([0.01]), checked + checked
    alone, in_pairs = (calibrate(twice, group).error(at) for group in (np.arange(120), np.tile(np.arange(60), 2)))
    assert alone < 0.9 * in_pairs


def test_what_is_uncertain_about_the_factor_widens_the_structural_error() -> None:
    assert structural_error(np.array([100.0])) == pytest.approx(4.5)
    assert structural_error(np.array([100.0]), 0.4) == pytest.approx(100 * np.hypot(0.03, 0.4) + 1.5)


@pytest.mark.parametrize("answers", [30, 410])
def test_entries_stand_for_all_answers(answers: int) -> None:
    true = np.full(answers, np.nan)
    true[:10] = 0.5
    model = AnswerModel(0.0, 1.0, 0.01, 0.01, np.zeros(1))
    drawn = draw_entries(model, np.full(answers, 0.5), true, true > 0, np.random.default_rng(0))
    assert drawn.rank_share.sum() == pytest.approx(answers)
    assert drawn.share.sum() == pytest.approx(answers)
    # Of 400 hidden answers, 80 are drawn; each stands for 5, and half of the other four precede it.
    assert drawn.ahead[drawn.sampled < 0] == pytest.approx((max(1, (answers - 10) / 80) - 1) / 2)
    assert not drawn.ahead[drawn.sampled >= 0].any()


def test_the_model_is_checked_on_items_drawn_at_random() -> None:
    """Items that were sampled because they are close would make it look as if it expected too few."""
    of = gallery()
    sample = of.sample(600)
    known, rows = known_of(sample), sample.position
    assert not known.at_random.all()
    systems = (RetrievalSystem(of.new.query, of.new.gallery[rows]), RetrievalSystem(of.old.query, of.old.gallery[rows]))
    after, old = (ProductForm.of(system, "cosine") for system in systems)
    models = fit_models(known, KnownForms(after, old, after), of.truth)
    unit = systems[0].gallery / np.linalg.norm(systems[0].gallery, axis=1, keepdims=True)
    for query, checked in zip(sample.queries.tolist(), models.checked, strict=True):
        answers = np.isin(rows, of.truth.positives_of(query))
        near = -unit @ of.new.query[query]
        at = np.sort(near[answers & known.at_random])
        others = np.sort(near[~answers & known.at_random])
        assert checked.observed.tolist() == np.searchsorted(others, at).tolist()


def test_with_a_filter_models_are_those_of_the_part_as_a_gallery_of_its_own() -> None:
    """All queries are of one part; the other one has items alone, of which some are sampled."""
    of = gallery()
    of_item = np.random.default_rng(3).integers(0, 2, of.truth.n_gallery)
    of_item[of.truth.positives] = 0
    sample = of.sample(600)
    inside = np.flatnonzero(of_item == 0)
    known = known_of(sample)
    is_inside = of_item[known.position] == 0
    assert not is_inside.all()
    own = replace(
        known, position=np.searchsorted(inside, known.position[is_inside]), weight=known.weight[is_inside],
        pilot=known.pilot[is_inside], done=known.done[is_inside],
    )  # fmt: skip
    everyone = np.zeros(of.truth.n_queries, np.int64)
    found = []
    for known_items, rows, truth in (
        (known, sample.position, of.truth.with_filter(Filter(everyone, of_item))),
        (own, sample.position[is_inside], of.truth.part(np.arange(len(everyone)), inside)),
    ):
        after, old = (
            ProductForm.of(RetrievalSystem(each.query, each.gallery[rows]), "cosine") for each in (of.new, of.old)
        )
        found.append(fit_models(known_items, KnownForms(after, old, after), truth))
    filtered, alone = found
    for one, other in zip(filtered.checked, alone.checked, strict=True):
        assert one.observed.tolist() == other.observed.tolist()
        assert one.expected == pytest.approx(other.expected, rel=1e-3)
        assert one.influence == pytest.approx(other.influence, rel=1e-3)
    assert filtered.calibration.effects == pytest.approx(alone.calibration.effects, rel=1e-2, abs=1e-4)


def test_the_jackknife_leaves_out_the_right_answers_of_a_query_together() -> None:
    of = gallery()
    sample = of.sample(600)
    rows_N = np.full(of.truth.n_gallery, -1)
    rows_N[sample.position] = np.arange(len(sample))
    part = jackknife_parts(known_of(sample), of.truth)
    for query in sample.queries.tolist():
        rows = rows_N[of.truth.positives_of(query)]
        assert len(np.unique(part[rows[rows >= 0]])) == 1
