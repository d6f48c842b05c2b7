"""The contract of every metric: names, range, order of rankings, and equality with ir_measures (trec_eval)."""

from collections.abc import Callable
from dataclasses import replace

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from ir_measures import AP, RR, P, R, Success, nDCG
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
    same_metric,
)
from tests.engine.replay.cases import gains_of, random_pair, random_truth

# Name -> the same measure of ir_measures.
ORACLES = {"mAP": AP, "AP": AP, "CMC": Success, "recall": R, "MRR": RR, "P": P, "nDCG": nDCG}
OF_KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
CUTS = (1, 2, 5, 20, 1000)


def names_of(kind: MetricKind) -> list[str]:
    return [form.replace("@k", f"@{k}") for form in kind.forms for k in (CUTS if "@" in form else (0,))]


def measured(ranks: NDArray[np.int64], name: str, n_right: int, grades: np.ndarray) -> float:
    """The metric of one ranking, in which the right answers are found in their order."""
    values, top1 = np.empty((1, 1, 1)), np.empty((1, 1), np.bool_)
    places = np.arange(len(ranks), dtype=np.int32)
    rankings = Rankings(ranks - places - 1, np.array([0, len(ranks)]), places)
    right = GradedAnswers.graded(np.array([0, n_right]), grades)
    measure(rankings, right, metric_codes([parse_metric(name)]), values, top1)
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
                best = 4 / (parse_metric(name).k or 4) if kind.name == "P" else 1
                assert measured(np.arange(1, 5), name, 4, grades) == pytest.approx(best, abs=1e-15)


@OF_KIND
def test_every_metric_is_computed_by_its_own_kernel(kind: MetricKind) -> None:
    """The number of a metric in ``KINDS`` and in ``_value`` is the same."""
    ranks, grades = np.array([2, 3, 9], np.int64), np.array([1.0, 4.0, 2.0])
    ideal = kind.value(np.arange(1, 4), 3, 5, np.array([4.0, 2.0, 1.0]), 1.0) if kind.uses_grades else 1.0
    name = kind.forms[-1].replace("@k", "@5")
    assert measured(ranks, name, 3, grades) == kind.value(ranks, 3, 5, grades, ideal)


Judged = tuple[list[ir_measures.Qrel], list[ir_measures.ScoredDoc]]


def as_trec(gains_QN: np.ndarray, ranked_QN: np.ndarray) -> Judged:
    """Judgements and rankings, without the ignored items."""
    qrels, run = [], []
    for q, (gains, ranked) in enumerate(zip(gains_QN, ranked_QN, strict=True)):
        qrels += [ir_measures.Qrel(str(q), str(item), int(gains[item])) for item in np.flatnonzero(gains > 0)]
        kept = [item for item in ranked if not np.isnan(gains[item])]
        run += [ir_measures.ScoredDoc(str(q), str(item), -float(rank)) for rank, item in enumerate(kept)]
    return qrels, run


def theirs(kind: MetricKind, k: int | None, gains_QN: np.ndarray, ranked_QN: np.ndarray) -> list[float]:
    """ir_measures' values of the queries that have a right answer."""
    oracle, n_right = ORACLES[kind.name], (gains_QN > 0).sum(1)
    values = ir_measures.iter_calc([oracle if k is None else oracle @ k], *as_trec(gains_QN, ranked_QN))
    value_of: dict[int, float] = {int(each.query_id): each.value for each in values}
    if kind.name == "mAP" and k is not None:  # trec_eval divides by the number of all right answers
        value_of = {query: value * n_right[query] / min(n_right[query], k) for query, value in value_of.items()}
    return [value_of[int(query)] for query in np.flatnonzero(n_right)]


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


def by_ir_measures(name: str, judged: Judged) -> dict[str, float]:
    return {value.query_id: value.value for value in ir_measures.iter_calc([ir_measures.parse_measure(name)], *judged)}


def by_trec_eval(name: str, judged: Judged) -> dict[str, float]:
    """The value of each query. name: of trec_eval, or the name that MTEB gives the same measure."""
    qrels, run = (
        {q: {row.doc_id: row for row in rows if row.query_id == q} for q in map(str, range(12))} for rows in judged
    )
    judgements = {q: {item: row.relevance for item, row in rows.items()} for q, rows in qrels.items() if rows}
    scores = {q: {item: row.score for item, row in rows.items()} for q, rows in run.items() if q in judgements}
    asked = {"ndcg_at_5": "ndcg_cut_5", "map_at_5": "map_cut_5", "precision_at_5": "P_5", "recall_at_5": "recall_5"}
    asked |= {"hit_rate_at_5": "success_5"}
    asked_name = asked.get(name, name)
    base, _, k = asked_name.rpartition("_")
    words = f"{base}.{k}" if k.isdigit() else asked_name
    return {
        q: own[asked_name] for q, own in pytrec_eval.RelevanceEvaluator(judgements, {words}).evaluate(scores).items()
    }


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        *((name, by_ir_measures) for name in ("AP", "AP@5", "RR", "RR@5", "R@5", "Success@5", "P@5", "nDCG@5", "nDCG")),
        *((name, by_trec_eval) for name in ("map", "map_cut_5", "recip_rank", "recall_5", "success_5", "P_5", "ndcg")),
        *((name, by_trec_eval) for name in ("ndcg_cut_5", "ndcg_at_5", "map_at_5", "precision_at_5", "recall_at_5")),
        ("hit_rate_at_5", by_trec_eval),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_name_of_another_library_gives_its_figures(
    name: str, oracle: Callable[[str, Judged], dict[str, float]]
) -> None:
    rng = np.random.default_rng(7)
    pair, truth = random_pair(rng, 12, 60, tied=True), random_truth(rng, 12, 60, True)
    curve = rb.replay(pair, truth, rng.permutation(60), 2, name)
    gains_QN = gains_of(truth)
    for point, system in enumerate((pair.backward, pair.forward)):
        ranked_QN = np.argsort(exact_distances(system.query, system.gallery, "cosine"), axis=1, kind="stable")
        expected = oracle(name, as_trec(gains_QN, ranked_QN))
        assert curve.per_query[name].shape[0] == len(expected)
        ordered = [expected[str(query)] for query in np.flatnonzero((gains_QN > 0).any(1))]
        np.testing.assert_allclose(curve.per_query[name][:, point], ordered, rtol=0, atol=1e-9)


def test_names_of_other_libraries_are_read_in_any_case_and_keep_the_users_word() -> None:
    for name, own in (
        ("NDCG@10", "nDCG@10"),
        ("Recall@10", "recall@10"),
        ("hit_rate@10", "CMC@10"),
        ("map@10", "AP@10"),
        ("MAP@10", "AP@10"),
        ("mAP@10", "mAP@10"),
        ("MAP", "mAP"),
        ("mrr_at_10", "MRR@10"),
    ):
        assert (parse_metric(name).name, parse_metric(name).own_name) == (name, own)
        assert same_metric(name, own)


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
