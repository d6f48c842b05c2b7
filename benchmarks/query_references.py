"""CSLS and z-scores fitted on queries instead of items, beside what ``best`` serves, on finished comparisons.

    python -m benchmarks.query_references RUN ...    # a minute each; runs of simulate with the merge best

Merges are fitted on one half of the queries, without their right answers, and judged on the other half; then the halves
change places. So every query judges, and none judges a merge that has seen it. ``csls by all queries`` has seen them.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from ray_backfill.compare.reopen import reopened
from ray_backfill.compare.report import read_data
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.results import Variant
from ray_backfill.engine.merges import Merge, fit_merge
from ray_backfill.engine.replay import replay
from ray_backfill.engine.systems import IntArray, RetrievalSystem, UpgradePair
from ray_backfill.learn.methods import Method


def of_run(run: Path) -> list[dict[str, float | str]]:
    """For each method of a run the area with each merge, by queries that the merge has not seen."""
    finished = read_data(run)
    distance = finished.evaluation["distance"]
    comparison = reopened(finished, run / "results", Variant("random", "best"))
    rows: list[dict[str, float | str]] = []
    for method in comparison.methods:
        items = comparison.merges.items
        if method.is_reference or not method.is_merged or method.recalls or items is None:
            continue
        pair, train = comparison.pair(method), method.pair(items, comparison.maps.of(method))

        def by(merge: str, asked: IntArray, pair: UpgradePair = pair, train: UpgradePair = train) -> Merge:
            """As many queries as items, because only csls takes them in any number."""
            repeated = asked if merge == "csls" else np.resize(asked, train.n_gallery)
            queries = UpgradePair(
                RetrievalSystem(pair.backward.query[repeated], train.backward.gallery),
                RetrievalSystem(pair.forward.query[repeated], train.forward.gallery),
            )
            return fit_merge(merge, queries, None, distance, 0)

        every = np.arange(pair.n_queries)
        halves = np.array_split(np.random.default_rng(0).permutation(pair.n_queries), 2)
        known = {"raw": fit_merge("raw", None, None, distance), "rrf": fit_merge("rrf", None, None, distance)}
        known |= comparison.merges_of(method) | {"csls by all queries": by("csls", every)}
        for name in ("csls", "zscore", "quantile"):
            known[name] = fit_merge(name, train, None, distance)
        areas = _areas(comparison, method, pair, known, every, finished.primary)
        for asked, judged in (halves, halves[::-1]):
            half = {f"{name} by queries": by(name, asked) for name in ("csls", "zscore", "quantile")}
            for name, area in _areas(comparison, method, pair, half, judged, finished.primary).items():
                areas[name] = areas.get(name, 0.0) + area * len(judged) / pair.n_queries
        rows.append({"run": run.name, "method": method.name} | areas)
        print(rows[-1], flush=True)
    return rows


def _areas(
    comparison: Comparison,
    method: Method,
    pair: UpgradePair,
    merges: Mapping[str, Merge],
    judged: IntArray,
    metric: str,
) -> dict[str, float]:
    (order,) = comparison.orders_of(method, pair).values()
    areas = {}
    for name, merge in merges.items():
        curve = replay(pair, comparison.truth, order, 11, metric, merge=merge)
        seen = np.isin(curve.scored, judged)
        areas[name] = 100 * float(np.trapezoid(curve.per_query[metric][seen].mean(axis=0), curve.t))
    return areas


def main() -> None:
    """Print one table of maps, and one of rank merge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    table = pd.DataFrame([row for run in parser.parse_args().runs for row in of_run(run)])
    for title, rows in (
        ("maps", table[table["method"] != "rm_naive"]),
        ("rank merge", table[table["method"] == "rm_naive"]),
    ):
        areas = rows.drop(columns=["run", "method"])
        print(
            f"\n| {title} | mean above raw | mean regret | within 0.5 of the best | more than 0.3 below raw | lowest |"
        )
        print("|---|---|---|---|---|---|")
        for name in areas:
            above, regret = areas[name] - areas["raw"], areas.max(axis=1) - areas[name]
            print(
                f"| {name} | {above.mean():.2f} | {regret.mean():.2f} | {100 * (regret < 0.5).mean():.0f} % | "
                f"{100 * (above < -0.3).mean():.0f} % | {above.min():.1f} |"
            )


if __name__ == "__main__":
    main()
