"""Effects and their intervals against plain loops, and verdicts on data that were made to decide them."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from scipy.stats import norm

from ray_backfill.engine import statistics as stats
from reproduction.effects import DRAWS, FAILS, HOLDS, LEAST_EFFECT, UNTOLD, Effect, difference, effect_of, verdict_of
from reproduction.effects import verdict_of_all as of_all
from reproduction.queries import PerQuery
from reproduction.runs import Case, Floats, Runs

ONE, OTHER = Case("rm", "random"), Case("fct", "random")
E = LEAST_EFFECT
# (400, 100) weights of 100 queries in 400 draws.
DRAWN = stats.resamples(100, 0, 400) / 100


def runs_with(*gaps: Floats | None, weights: Floats | None = None) -> Runs:
    """A seed for each array: what ``ONE`` has more of than ``OTHER``, query by query; None: the seed lacks ``ONE``."""
    noise = np.random.default_rng(9)
    per_query = []
    for gap in gaps:
        common = noise.random(100 if gap is None else len(gap))
        values = {("fct", "random", "auc"): common}
        if gap is not None:
            values["rm", "random", "auc"] = common + gap
        per_query.append(PerQuery(values, weights))
    return cast(Runs, SimpleNamespace(seeds=tuple(range(len(gaps))), per_query=tuple(per_query)))


def effect(*gaps: Floats | None, weights: Floats | None = None) -> Effect:
    found = difference(runs_with(*gaps, weights=weights), ONE, OTHER, "auc")[1]
    assert found is not None
    return found


def gaps(mean: float, spread: float, seeds: int = 3, queries: int = 1000) -> list[Floats]:
    rng = np.random.default_rng(0)
    return [mean + spread * rng.standard_normal(queries) for _ in range(seeds)]


@pytest.mark.parametrize("is_weighted", [False, True])
def test_an_interval_is_that_of_a_plain_loop(is_weighted: bool) -> None:
    """Draw queries for all seeds alike; add Student's t of the seeds' means, as squares."""
    differences = gaps(0.01, 0.1, seeds=3, queries=7)
    weights = np.array([1.0, 0.5, 0.25, 1.0, 1.0, 0.1, 0.9]) if is_weighted else None
    counts = stats.resamples(7, 0, DRAWS)
    draws = []
    for draw in range(DRAWS):
        rows = [query for query in range(7) for _ in range(counts[draw, query])]
        own = [1.0 if weights is None else weights[query] for query in rows]
        means = [sum(w * d[q] for w, q in zip(own, rows, strict=True)) / sum(own) for d in differences]
        draws.append(sum(means) / 3)
    means = [float(np.average(d, weights=weights)) for d in differences]
    found, of_seeds = effect(*differences, weights=weights), 4.302653 * np.std(means, ddof=1) / 3**0.5
    expanded = float(norm.cdf(-2.446912 * (7 / 6) ** 0.5))  # Student's t of 7 queries
    low, high = (abs(np.quantile(draws, q) - np.mean(means)) for q in (expanded, 1 - expanded))
    assert found.size == pytest.approx(np.mean(means))
    assert found.size - found.low == pytest.approx((low**2 + of_seeds**2) ** 0.5)
    assert found.high - found.size == pytest.approx((high**2 + of_seeds**2) ** 0.5)


@pytest.mark.parametrize(("of_seeds", "of_queries"), [(0.01, 0.0), (0.01, 0.05), (0.0, 0.1)])
def test_without_an_effect_intervals_contain_0_and_few_claims_hold(of_seeds: float, of_queries: float) -> None:
    """Three seeds and 100 queries, 1,000 times; a bootstrap that resampled the seeds covered 71 % of the first case."""
    rng, covered, held = np.random.default_rng(5), [], []
    for _ in range(1000):
        means = of_seeds * rng.standard_normal(3)
        common = of_queries * rng.standard_normal(100)
        draws = [mean + DRAWN @ common for mean in means]
        found = effect_of(means + common.mean(), draws, 100)
        covered.append(found.low <= 0 <= found.high)
        held.append(verdict_of(found, strict=True) == HOLDS)
    assert np.mean(covered) >= 0.93
    assert np.mean(held) <= 0.035


def test_pairing_removes_what_queries_have_in_common() -> None:
    """Values of 0 to 1 vary by 0.29; their differences do not at all."""
    found = effect(*[np.full(50, 0.02)] * 3)
    assert found == pytest.approx((0.02, 0.02, 0.02))


def test_queries_that_all_seeds_share_are_not_counted_three_times() -> None:
    of_queries = 0.1 * np.random.default_rng(3).standard_normal(400)
    alone, together = effect(of_queries), effect(of_queries, of_queries, of_queries)
    assert together.high - together.low == pytest.approx(alone.high - alone.low)
    assert alone.high - alone.low == pytest.approx(2 * 1.96 * of_queries.std() / 20, rel=0.1)


def test_seeds_that_differ_widen_the_interval() -> None:
    same, apart = effect(*[np.full(50, 0.02)] * 3), effect(*(np.full(50, x) for x in (0.0, 0.02, 0.04)))
    assert same.high - same.low < 1e-12
    assert (apart.low, apart.high) == pytest.approx((0.02 - 0.049683, 0.02 + 0.049683), abs=1e-6)


@pytest.mark.parametrize(
    ("differences", "better", "no_worse"),
    [
        (gaps(0.04, 0.1), HOLDS, HOLDS),  # a clear effect
        (gaps(0.0, 0.01), FAILS, HOLDS),  # none, and surely less than e
        (gaps(0.0, 0.5), UNTOLD, UNTOLD),  # none that these queries can show
        (gaps(0.002, 0.001), FAILS, HOLDS),  # tiny but certain
        (gaps(0.006, 0.1), UNTOLD, HOLDS),  # above e, but perhaps by chance
        (gaps(-0.002, 0.001), FAILS, HOLDS),
        (gaps(-0.04, 0.1), FAILS, FAILS),  # the reverse
        (gaps(0.04, 0.1, seeds=1), HOLDS, HOLDS),
        ([np.full(9, x) for x in (0.04, 0.04, -0.01)], UNTOLD, UNTOLD),  # seeds that disagree
    ],
)
def test_verdicts(differences: list[Floats], better: str, no_worse: str) -> None:
    found = effect(*differences)
    assert (verdict_of(found, strict=True), verdict_of(found, strict=False)) == (better, no_worse)


@pytest.mark.parametrize(
    ("size", "low", "high", "better", "no_worse"),
    [
        (E, 0.0001, 0.01, HOLDS, HOLDS),
        (0.9 * E, 0.0001, 0.01, UNTOLD, HOLDS),
        (2 * E, 0.0, 0.02, UNTOLD, HOLDS),
        (0.001, -0.001, 0.99 * E, FAILS, HOLDS),
        (0.001, -0.001, E, UNTOLD, HOLDS),
        (0.0, -E, E, UNTOLD, UNTOLD),
        (0.0, -0.99 * E, 0.02, UNTOLD, HOLDS),
        (-E, -0.01, -0.0001, FAILS, FAILS),
        (-0.9 * E, -0.01, -0.0001, FAILS, UNTOLD),
        (-E, -0.01, 0.0, FAILS, UNTOLD),
        (0.02, float("nan"), float("nan"), UNTOLD, UNTOLD),  # one query has no interval
    ],
)
def test_the_rule(size: float, low: float, high: float, better: str, no_worse: str) -> None:
    found = Effect(size, low, high)
    assert (verdict_of(found, strict=True), verdict_of(found, strict=False)) == (better, no_worse)


def test_not_better_is_that_the_other_is_no_worse() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        low, high = sorted(0.02 * rng.standard_normal(2))
        found = Effect(rng.uniform(low, high), low, high)
        reverse = Effect(-found.size, -high, -low)
        assert (verdict_of(found, True) == FAILS) == (verdict_of(reverse, False) == HOLDS)
        assert (verdict_of(found, True) == HOLDS) == (verdict_of(reverse, False) == FAILS)


def test_a_claim_about_several_needs_each() -> None:
    yes, no, perhaps = Effect(0.02, 0.01, 0.03), Effect(-0.02, -0.03, -0.01), Effect(0.0, -0.02, 0.02)
    assert of_all([yes, yes], True) == HOLDS
    assert of_all([yes, perhaps], True) == UNTOLD
    assert of_all([yes, perhaps, no], True) == FAILS


def test_a_seed_that_lacks_a_method_has_no_margin() -> None:
    margin_S, found = difference(runs_with(np.full(4, 0.02), None), ONE, OTHER, "auc")
    assert margin_S.tolist() == pytest.approx([0.02, np.nan], nan_ok=True)
    assert found == pytest.approx((0.02, 0.02, 0.02))
    assert difference(runs_with(None, None), ONE, OTHER, "auc")[1] is None


def test_words() -> None:
    assert Effect(0.038, 0.029, 0.046).words == "+3.8 points [2.9, 4.6]"
    assert Effect(-0.002, -0.011, 0.007).words == "−0.2 points [−1.1, 0.7]"
