"""The sample: within its budget, nested, with the probabilities that it states."""

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray, RetrievalSystem
from ray_backfill.forecast.sample import ANSWER, CLOSE, PER_QUERY, PILOT, closest_stand_ins, draw_sample, groups_of
from tests.forecast.galleries import gallery

LABELS = np.repeat(np.arange(50), 40)
TRUTH = GroundTruth.from_labels(np.arange(60) % 50, LABELS)


def nothing_close(queries: IntArray, taken_N: np.ndarray) -> IntArray:
    return np.flatnonzero(~taken_N)


def test_budget_is_spent_on_distinct_items() -> None:
    sample = gallery().sample(400)
    assert len(sample) == len(np.unique(sample.position)) == 400
    counts = np.bincount(sample.reason, minlength=3)
    assert counts[PILOT] == 80
    assert 240 - PER_QUERY <= counts[ANSWER] <= 240
    assert (sample.probability[sample.reason == CLOSE] == 1).all()


def test_each_chosen_query_has_its_right_answers() -> None:
    sample = gallery().sample(400)
    truth = gallery().truth
    for query in sample.queries.tolist():
        answers = truth.positives_of(query)
        assert np.isin(answers, sample.position[sample.weight > 0]).sum() >= min(PER_QUERY, len(answers))


def test_queries_with_the_same_right_answers_are_chosen_together() -> None:
    groups = groups_of(TRUTH)
    assert sorted(len(group) for group in groups) == [1] * 40 + [2] * 10
    sample = draw_sample(TRUTH, 300, nothing_close, 3)
    assert sample.n_groups == 50
    chosen = set(sample.queries.tolist())
    for group in groups:
        assert len(chosen & set(group.tolist())) in (0, len(group))


def test_a_larger_sample_contains_the_random_part_of_a_smaller_one() -> None:
    small, large = (draw_sample(TRUTH, budget, nothing_close, 5) for budget in (200, 900))
    drawn, more = (each.position[each.weight > 0].tolist() for each in (small, large))
    assert set(drawn) <= set(more)
    assert set(small.queries.tolist()) <= set(large.queries.tolist())


@pytest.mark.parametrize("budget", [120, 300, 600])
def test_stated_probabilities_hold_on_average(budget: int) -> None:
    drawn = np.zeros(len(LABELS))
    stated = np.zeros(len(LABELS))
    for seed in range(400):
        sample = draw_sample(TRUTH, budget, nothing_close, seed)
        random = sample.reason != CLOSE
        drawn[sample.position[random]] += 1
        stated[sample.position[random]] += 1 / sample.probability[random]
    # Horvitz and Thompson: 1 / probability adds up to the number of items.
    assert stated.sum() / 400 == pytest.approx(len(LABELS), rel=0.02)


def test_whole_gallery() -> None:
    sample = draw_sample(TRUTH, len(LABELS), nothing_close)
    assert len(sample) == len(LABELS)


@pytest.mark.parametrize(("budget", "words"), [(4, "covers 0 of 50 different lists"), (2001, "more than all")])
def test_impossible_budgets(budget: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        draw_sample(TRUTH, budget, nothing_close)


def test_close_items_are_those_that_a_query_can_find() -> None:
    """Two tenants, of which one has five items; the stand-ins of the other tenant's are closer to all queries."""
    rng = np.random.default_rng(0)
    of_item = np.arange(300) >= 5
    vectors = rng.standard_normal((300, 4)).astype(np.float32) + 9 * of_item[:, None]
    queries = np.full((2, 4), 9, np.float32) + rng.standard_normal((2, 4)).astype(np.float32)
    form = ProductForm.of(RetrievalSystem(queries, vectors), "cosine")
    truth = GroundTruth.from_positives([[0], [7]], n_gallery=300)
    truth = truth.with_filter(Filter(np.array([0, 1]), of_item.astype(np.int64)))
    nothing = np.zeros(300, np.bool_)
    assert sorted(closest_stand_ins(form, truth)(np.array([0]), nothing)[:4].tolist()) == [1, 2, 3, 4]
    assert 7 not in (close := closest_stand_ins(form, truth)(np.array([1]), nothing))[:200]
    assert (close[:200] >= 5).all()
