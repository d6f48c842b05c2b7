"""How often the 95 % intervals of a report contain the true value, by simulation on values of real queries.

    python -m benchmarks.coverage FOLDER[:QRELS]:METRIC ... [--repetitions 2000]
    python -m benchmarks.coverage --milestones [--repetitions 300]

Each folder holds embeddings of both models. Its queries, with their values at every moment of a real backfill by rank
merge, are the population, so the true means are known. A repetition draws queries with replacement and computes the
intervals as a report does. The upgrade is set to a number of standard errors of its difference by how often a query is
drawn: its weight is exp(c (new - old)), with the c that fits.

The best of many: 40 methods that differ from a given one by noise only, as strong as the difference between the two
models; how often is the best of them said to be better than it.

Milestones: from when on made curves stay above their target. The limits of a report are compared with percentiles of
the milestones of the draws.

Shapes: Q queries of the population, n drawn ones, T moments.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq

import ray_backfill as rb
from ray_backfill.data.truth import find_truth
from ray_backfill.engine import statistics as stats

Floats = NDArray[np.float64]
NUMBERS, EFFECTS, METHODS = (30, 200, 2000), (0.0, 1.0, 2.0, 3.0), 40
# Moments at which the curves are known; their falls take most of the time and are judged in every fourth repetition.
MOMENTS, EVERY = 21, 4


class Population(NamedTuple):
    """table_QK: area of rank merge, old, new, and the curve of rank merge at the moments t. weight_Q: of a draw."""

    t: Floats
    table_QK: Floats
    weight_Q: Floats

    @property
    def apart(self) -> Floats:
        """(Q,) new minus old."""
        return np.asarray(self.table_QK[:, 2] - self.table_QK[:, 1])

    def with_upgrade(self, errors: float, n: int) -> "Population":
        """The population whose upgrade is this many standard errors of a mean over n queries."""

        def missing(c: float) -> float:
            weight_Q = _tilted(c * self.apart)
            mean = float(weight_Q @ self.apart)
            return mean - errors * float(np.sqrt(weight_Q @ (self.apart - mean) ** 2 / n))

        return self._replace(weight_Q=_tilted(brentq(missing, -20, 20) * self.apart))

    def drawn(self, n: int, rng: np.random.Generator) -> Floats:
        """n rows of the table."""
        return np.asarray(self.table_QK[rng.choice(len(self.table_QK), size=n, p=self.weight_Q)])


def _tilted(exponent_Q: Floats) -> Floats:
    weight_Q = np.exp(exponent_Q - exponent_Q.max())
    return np.asarray(weight_Q / weight_Q.sum())


def population(folder: str, qrels: str, metric: str) -> Population:
    found = rb.read_folder(folder)
    truth = find_truth(found, ("qrels", qrels) if qrels else ()).ground
    queries = found.queries or found.gallery
    old, new = (rb.RetrievalSystem(queries.vectors[model], found.gallery.vectors[model]) for model in ("old", "new"))
    curve = rb.replay(rb.UpgradePair(old, new), truth, "random", points=MOMENTS, metrics=metric)
    values = curve.per_query[metric]
    table = np.column_stack([stats.auc_draws(curve.t, values), values[:, [0, -1]], values])
    return Population(curve.t, table, np.full(len(table), 1 / len(table)))


def limits_of(sample: Floats, with_fall: bool) -> dict[str, tuple[float, float]]:
    """Interval by name, as ``compare.tabulate`` computes them. sample: n rows of a population's table."""
    n, draws = len(sample), stats.bootstrap_means(sample)
    area, old, new, curve = draws[:, 0], draws[:, 1], draws[:, 2], draws[:, 3:]
    wanted = {
        "average": area, "value at half": curve[:, MOMENTS // 2], "average - old": area - old, "upgrade": new - old
    }  # fmt: skip
    intervals = {name: stats.interval(each, n) for name, each in wanted.items()}
    found = {name: (float(low), float(high)) for name, (low, high) in intervals.items()}
    if np.isfinite(gain := stats.gain_limits(area, old, new, n)).all():
        found["gain"] = gain
    return found | ({"largest fall": stats.fall_limits(curve, sample[:, 3:].mean(axis=0))} if with_fall else {})


def truth_of(of: Population) -> dict[str, float]:
    area, old, new, *curve = of.weight_Q @ of.table_QK
    return {
        "average": area, "value at half": curve[MOMENTS // 2], "average - old": area - old, "upgrade": new - old,
        "gain": stats.gain(area, old, new), "largest fall": stats.largest_fall(np.array(curve)).size,
    }  # fmt: skip


def coverage(of: Population, n: int, effect: float, repetitions: int) -> dict[str, str]:
    """Name -> share of the intervals that contain the truth, in per cent; of gains, with the share that is printed."""
    of, rng, hits = of.with_upgrade(effect, n), np.random.default_rng(1), defaultdict[str, list[bool]](list)
    true = truth_of(of)
    for repetition in range(repetitions):
        found = limits_of(of.drawn(n, rng), repetition % EVERY == 0)
        for name, (low, high) in found.items():
            hits[name].append(low <= true[name] <= high)
    shown = {name: f"{100 * np.mean(each):.1f}" for name, each in hits.items()}
    shown["gain"] = f"{shown.get('gain', '-')} of {100 * len(hits['gain']) / repetitions:.0f}" if effect else "-"
    return shown


def best_of_many(of: Population, n: int, repetitions: int) -> dict[str, str]:
    """How often the best of ``METHODS`` equal methods is said to be better than a given one, in per cent."""
    apart_Q, rng = of.apart - of.apart.mean(), np.random.default_rng(2)
    each_alone, at_once = 0, 0
    for _ in range(repetitions):
        sample = apart_Q[rng.integers(len(apart_Q), size=(n, METHODS))]
        draws = stats.bootstrap_means(sample)
        best = int(sample.mean(axis=0).argmax())
        each_alone += bool(stats.interval(draws[:, best], n)[0] > 0)
        width = stats.simultaneous_width(draws.T, n)
        at_once += bool(sample[:, best].mean() - width * draws[:, best].std() > 0)
    return {"each alone": f"{100 * each_alone / repetitions:.1f}", "at once": f"{100 * at_once / repetitions:.1f}"}


# Mean of a curve minus its target, of the moments t: it crosses the target, or stays close to it.
MADE: Mapping[str, Callable[[Floats], Floats]] = {
    "rises by 25 points through it": lambda t: -0.05 + 0.25 * t,
    "rises by 4 points through it": lambda t: -0.01 + 0.04 * t,
    "dips below it": lambda t: -0.12 * np.sin(np.pi * np.clip(t / 0.6, 0, 1)) + 0.3 * np.clip(t - 0.3, 0, 1),
    "is 0.1 points above it": lambda t: np.full(len(t), 0.001),
    "is on it until the middle, then rises": lambda t: 0.4 * np.clip(t - 0.5, 0, 1),
}


def of_draws(means: Floats, n: int) -> tuple[float, float]:
    """Percentiles of the index from which on each draw is above 0; infinite for never."""
    below, last = means < -stats.ROUNDING, means.shape[1]
    found = np.where(below.any(axis=1), last - below[:, ::-1].argmax(axis=1), 0).astype(np.float64)
    found[found == last] = np.inf
    tail = (1 - stats.LEVEL) / 2
    return float(np.quantile(found, tail, method="lower")), float(np.quantile(found, 1 - tail, method="higher"))


def milestones(kind: str, n: int, repetitions: int) -> dict[str, str]:
    """How often both kinds of limits contain the true milestone, in per cent; queries turn at random moments."""
    t = np.linspace(0, 1, 101)
    curve, rng, hits = MADE[kind](t), np.random.default_rng(3), np.zeros(2)
    index = stats.settles(curve, -stats.ROUNDING)
    true = np.inf if index is None else index
    for _ in range(repetitions):
        start, middle = 0.25 * rng.normal(size=(n, 1)), 0.6 * rng.normal(size=(n, 1))
        turns = ((t >= rng.random((n, 1))) - t) * rng.choice([-0.5, 0.5], size=(n, 1))
        means = stats.bootstrap_means(curve + start * (1 - t) + middle * t * (1 - t) + turns)
        both = (stats.settle_limits(means, n), of_draws(means, n))
        hits += [low <= true <= high for low, high in both]
    report, draws = (f"{100 * each / repetitions:.1f}" for each in hits)
    return {"curve": kind, "queries": str(n), "limits of a report": report, "percentiles of draws": draws}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("populations", nargs="*", metavar="FOLDER[:QRELS]:METRIC")
    parser.add_argument("--milestones", action="store_true")
    parser.add_argument("--repetitions", type=int, default=2000)
    given = parser.parse_args()
    if given.milestones:
        lines = [milestones(kind, n, given.repetitions) for kind in MADE for n in (30, 200, 1000)]
        print(pd.DataFrame(lines).to_string(index=False), flush=True)
    for each in given.populations:
        folder, *qrels, metric = each.split(":")
        of = population(folder, "".join(qrels), metric)
        print(f"\n{folder}, {metric}: {len(of.table_QK)} queries, per cent\n")
        rows = [
            {"queries": n, "upgrade / standard error": f"{effect:g}"} | coverage(of, n, effect, given.repetitions)
            for n in NUMBERS
            for effect in EFFECTS
        ]
        print(pd.DataFrame(rows).to_string(index=False), flush=True)
        print(f"\nThe best of {METHODS} equal methods is said to be better than a given one\n")
        many = [{"queries": n} | best_of_many(of, n, given.repetitions) for n in NUMBERS]
        print(pd.DataFrame(many).to_string(index=False), flush=True)


if __name__ == "__main__":
    main()
