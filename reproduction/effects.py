"""Effects with intervals, and verdicts on claims about them.

An effect is the difference of two means of the primary metric, paired by query: area under the curve or M_1 of one side
minus that of the other. Its interval has two parts. That of the queries is a bootstrap of the mean over seeds, whose
draws resample the queries alike for all seeds: where seeds have the same queries, a query that favours one side does
so in every seed. That of the seeds is Student's t of the seeds' means, because three seeds are too few to be resampled.
The distances of both from the effect are added as squares, which is exact if one of them is 0 and otherwise too wide,
since both contain what a query does in one seed only. Source: Zou and Donner, "Construction of confidence limits about
effect measures", 2008.

The rule is that of trials for superiority and non-inferiority with a margin, the least effect e. It judges a claim by
the effect d and its 95 % interval:

=====================  ===========================  ============================
claim                  holds                        does not hold
=====================  ===========================  ============================
better, above, below   interval above 0, d >= e     interval below e
no worse, not below    interval above -e            interval below 0, d <= -e
=====================  ===========================  ============================

Otherwise the claim is not distinguishable. "A is better than B" does not hold exactly if "B is no worse than A" holds.

Shapes: S seeds, Q queries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ray_backfill.engine.statistics import bootstrap_means, interval, mean
from ray_backfill.page.numbers import percent
from reproduction.markdown import PageTable
from reproduction.runs import Case, Floats, Runs
from reproduction.spread import seeds_interval, signed

HOLDS, FAILS, UNTOLD, UNMEASURED = "holds", "**does not hold**", "not distinguishable", "not measured"
# Half a point: what reports count as no loss (the default of --margin), so less is no reason to prefer a method either.
LEAST_EFFECT = 0.005
# What ``statistics`` draws suffices for the intervals of one run; verdicts depend on the ends of these.
DRAWS = 2000

# The rule for the page.
RULE = PageTable(
    ("claim", "holds", "does not hold"),
    (
        ("better, above, below", "interval above 0, and effect at least e", "interval below e"),
        ("no worse, not below", "interval above -e", "interval below 0, and effect at most -e"),
        ("best, worst", "better than each of the others", "not better than one of them, by the first line"),
        ("does not fall, follows, closes the gap", "true in every seed", "reversed in every seed"),
    ),
)


class Effect(NamedTuple):
    """A difference of means over queries and seeds, and its 95 % interval, as shares."""

    size: float
    low: float
    high: float

    @property
    def words(self) -> str:
        """ "+3.8 points [2.9, 4.6]"."""
        return f"{signed(self.size)} points [{percent(self.low)}, {percent(self.high)}]"


def difference(runs: Runs, one: Case, other: Case, quantity: str) -> tuple[Floats, Effect | None]:
    """(S,) a quantity of one side minus that of the other by seed, and the effect; None if no seed has both sides.

    The effect is over the seeds that have both.
    """
    means_S, draws_S, n_queries = np.full(len(runs.seeds), np.nan), list[Floats](), 0
    for seed, queries in enumerate(runs.per_query):
        sides = [queries.of(case.method, case.order, quantity) for case in (one, other)]
        if sides[0] is None or sides[1] is None:
            continue
        values_Q1 = (sides[0] - sides[1])[:, None]
        n_queries = len(values_Q1)
        means_S[seed] = mean(values_Q1, queries.weights)[0]
        draws_S.append(bootstrap_means(values_Q1, queries.weights, draws=DRAWS)[:, 0])
    return means_S, effect_of(means_S[np.isfinite(means_S)], draws_S, n_queries) if draws_S else None


def effect_of(means_S: Floats, draws_S: Sequence[Floats], n_queries: int) -> Effect:
    """The effect of several seeds.

    means_S: the difference of each seed. draws_S: (DRAWS,) differences of each seed, from the same draws of queries.
    With one seed the interval is that over queries.
    """
    size = float(np.mean(means_S))
    low, high = interval(np.mean(draws_S, axis=0), n_queries)
    of_seeds = size - seeds_interval(means_S)[0] if len(means_S) > 1 else 0.0
    return Effect(size, size - float(np.hypot(of_seeds, size - low)), size + float(np.hypot(of_seeds, high - size)))


def verdict_of(effect: Effect, strict: bool) -> str:
    """The verdict on "better" (strict) or on "no worse"; see above."""
    if not strict:
        reverse = verdict_of(Effect(-effect.size, -effect.high, -effect.low), strict=True)
        return {HOLDS: FAILS, FAILS: HOLDS}.get(reverse, reverse)
    if effect.low > 0 and effect.size >= LEAST_EFFECT:
        return HOLDS
    return FAILS if effect.high < LEAST_EFFECT else UNTOLD


def verdict_of_all(effects: Sequence[Effect], strict: bool) -> str:
    """The verdict on a claim about several pairs: it holds if it does for each pair, and fails if it does for one."""
    found = {verdict_of(effect, strict) for effect in effects}
    return FAILS if FAILS in found else UNTOLD if UNTOLD in found else HOLDS
