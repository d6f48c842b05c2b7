"""The contract of every metric: names, range, order of rankings, and equality with ir_measures (trec_eval)."""

from collections.abc import Mapping
from dataclasses import replace

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, RR, R, Success, nDCG
from numpy.typing import NDArray
from sklearn.metrics import ndcg_score

import ray_backfill as rb
from ray_backfill.engine.distances import exact_distances
from ray_backfill.engine.metrics import (
    KINDS,
    GradedAnswers,
    MetricKind,
    Rankings,
    measure,
    metric_codes,
    metric_forms,
    parse_metric,
)
from tests.engine.replay.cases import gains_of, random_pair, random_truth

# Name -> the same measure of ir_measures.
ORACLES = {"mAP": AP, "CMC": Success, "recall": R, "MRR": RR, "nDCG": nDCG}
OF_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
CUTS = (1, 2, 5, 20, 1000)


def names_of(kind: MetricKind) -> list[str]:
    return [form.replace("@k", f"@{k}") for form in kind.forms for k in (CUTS if "@" in form else (0,))]


def measured(ranks: NDArray[np.int64], name: str, n_right: int, grades: np.ndarray) -> float:
    """The metric of one ranking, in which the right answers are found in their order."""
    values, top1 = np.empty((1, 1, 1)), np.empty((1, 1), np.bool_)
    places = np.arange(len(ranks), dtype=np.int32)
    rankings = Rankings(ranks - places - 1, np.array([0, len(ranks)]), places)
    measure(rankings, GradedAnswers(np.array([0, n_right]), grades), metric_codes([parse_metric(name)]), values, top1)
    return float(values[0, 0, 0])


@OF_KIND
def test_names_are_parsed_as_they_are_listed(kind: MetricKind) -> None:
    assert set(kind.forms) <= set(metric_forms())
    for name in names_of(kind):
        metric = parse_metric(name)
        assert (metric.name, metric.kind, metric.uses_grades) == (name, kind.name, kind.uses_grades)
        assert name == (kind.name if metric.k is None else f"{kind.name}@{metric.k}")
    assert kind.meaning.endswith(".")
    assert kind.source


@OF_KIND
def test_values_are_between_0_and_1_and_better_rankings_are_not_worse(kind: MetricKind) -> None:
    rng = np.random.default_rng(0)
    for name in names_of(kind):
        for n_right in (1, 2, 7):
            ranks = np.sort(rng.choice(np.arange(2, 40), n_right, replace=False)).astype(np.int64)
            grades = rng.uniform(0.5, 3, n_right) if kind.uses_grades else np.empty(0)
            value = measured(ranks, name, n_right, grades)
            assert 0 <= value <= 1
            assert value <= measured(ranks - 1, name, n_right, grades)
            # Whoever computes cut metrics may leave out what is beyond the cut-off.
            k = parse_metric(name).k or 1000
            assert measured(ranks[ranks <= k], name, n_right, grades) == value


@OF_KIND
def test_the_perfect_ranking_is_worth_1_if_the_cut_has_room_for_it(kind: MetricKind) -> None:
    for name in names_of(kind):
        if (parse_metric(name).k or 1000) >= 4:
            for grades in (np.empty(0), np.array([3.0, 2.0, 2.0, 0.5])):
                assert measured(np.arange(1, 5), name, 4, grades) == pytest.approx(1, abs=1e-15)


@OF_KIND
def test_every_metric_is_computed_by_its_own_kernel(kind: MetricKind) -> None:
    """The number of a metric in ``KINDS`` and in ``_value`` is the same."""
    ranks, grades = np.array([2, 3, 9], np.int64), np.array([1.0, 4.0, 2.0])
    ideal = kind.value(np.arange(1, 4), 3, 5, np.array([4.0, 2.0, 1.0]), 1.0) if kind.uses_grades else 1.0
    name = kind.forms[-1].replace("@k", "@5")
    assert measured(ranks, name, 3, grades) == kind.value(ranks, 3, 5, grades, ideal)


def theirs(kind: MetricKind, k: int | None, gains_QN: np.ndarray, ranked_QN: np.ndarray) -> list[float]:
    """ir_measures' values of the queries that have a right answer, from rankings without the ignored items."""
    oracle = ORACLES[kind.name]
    asked = oracle if k is None else oracle @ k
    qrels, run, n_right = [], [], {}
    for q, (gains, ranked) in enumerate(zip(gains_QN, ranked_QN, strict=True)):
        qrels += [ir_measures.Qrel(str(q), str(item), int(gains[item])) for item in np.flatnonzero(gains > 0)]
        kept = [item for item in ranked if not np.isnan(gains[item])]
        run += [ir_measures.ScoredDoc(str(q), str(item), -float(rank)) for rank, item in enumerate(kept)]
        n_right[str(q)] = int((gains > 0).sum())
    found: Mapping[str, float] = {each.query_id: each.value for each in ir_measures.iter_calc([asked], qrels, run)}
    if kind.name == "mAP" and k is not None:  # trec_eval divides by the number of all right answers
        found = {query: value * n_right[query] / min(n_right[query], k) for query, value in found.items()}
    return [found[str(q)] for q, gains in enumerate(gains_QN) if (gains > 0).any()]


@OF_KIND
@pytest.mark.parametrize("graded", [False, True])
def test_equals_ir_measures(kind: MetricKind, graded: bool) -> None:
    """At both ends of a backfill, with ties, ignored items, and queries without a right answer."""
    assert kind.name in ORACLES, "name the same measure of ir_measures or of another library"
    rng = np.random.default_rng(5)
    pair, truth = random_pair(rng, 12, 60, tied=True), random_truth(rng, 12, 60, graded)
    truth = truth.without(np.full(60, 7), np.arange(60))  # query 7 ignores every item
    names = names_of(kind)
    curve = rb.replay(pair, truth, rng.permutation(60), 2, names)
    for point, system in enumerate((pair.backward, pair.forward)):
        # Equal distances go to the earlier position.
        ranked_QN = np.argsort(exact_distances(system.query, system.gallery, "cosine"), axis=1, kind="stable")
        for name in names:
            expected = theirs(kind, parse_metric(name).k, gains_of(truth), ranked_QN)
            np.testing.assert_allclose(curve.per_query[name][:, point], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("k", [1, 3, 10, None])
def test_graded_gain_equals_scikit_learn(k: int | None) -> None:
    rng = np.random.default_rng(6)
    pair = random_pair(rng, 20, 50, tied=False)
    truth = rb.GroundTruth.from_labels(rng.integers(0, 4, 20), rng.integers(0, 4, 50))
    truth = replace(truth, grades=rng.uniform(0.1, 5, len(truth.positives)))
    name = "nDCG" if k is None else f"nDCG@{k}"
    curve = rb.replay(pair, truth, np.arange(50), 2, name)
    for point, system in enumerate((pair.backward, pair.forward)):
        scores = -exact_distances(system.query, system.gallery, "cosine")
        expected = [
            ndcg_score(gains[None], own[None], k=k, ignore_ties=True)
            for gains, own in zip(gains_of(truth), scores, strict=True)
        ]
        np.testing.assert_allclose(curve.per_query[name][:, point], expected, rtol=0, atol=1e-12)
