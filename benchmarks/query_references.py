"""CSLS and z-scores fitted on queries instead of items, beside what ``best`` chose, on finished comparisons.

    python -m benchmarks.query_references RUN ...    # a minute each; runs of simulate with the merge best

One half of the queries, without their right answers, is what merges are fitted on; areas are those of the other half.
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
    """For each fitted method of a run the area with each merge, by the half of the queries that no merge has seen."""
    finished = read_data(run)
    comparison = reopened(finished, run / "results", Variant("random", "best"))
    rows: list[dict[str, float | str]] = []
    for method in comparison.methods:
        items = comparison.merges.items
        if method.is_reference or not method.is_merged or method.fit is None or method.recalls or items is None:
            continue
        pair, train = comparison.pair(method), method.pair(items, comparison.maps.of(method))
        shuffled = np.random.default_rng(0).permutation(pair.n_queries)
        asked, judged = np.array_split(shuffled, 2)
        repeated = np.resize(asked, train.n_gallery)  # a fit takes as many queries as items
        by_queries = UpgradePair(
            RetrievalSystem(pair.backward.query[repeated], train.backward.gallery),
            RetrievalSystem(pair.forward.query[repeated], train.forward.gallery),
        )
        merges: dict[str, Merge] = dict(comparison.merges_of(method)) | {
            "raw": fit_merge("raw", None, None, finished.evaluation["distance"])
        }
        for name in ("csls", "zscore"):
            merges[name] = fit_merge(name, train, None, finished.evaluation["distance"])
            merges[f"{name} by queries"] = fit_merge(name, by_queries, None, finished.evaluation["distance"])
        rows.append(
            {"run": run.name, "method": method.name}
            | _areas(comparison, method, pair, merges, judged, finished.primary)
        )
        print(rows[-1], flush=True)
    return rows


def _areas(
    comparison: Comparison,
    method: Method,
    pair: UpgradePair,
    merges: Mapping[str, Merge],
    judged: IntArray,
    metric: str,
) -> dict[str, float]:  # fmt: skip
    (order,) = comparison.orders_of(method, pair).values()
    areas = {}
    for name, merge in merges.items():
        curve = replay(pair, comparison.truth, order, 11, metric, merge=merge)
        seen = np.isin(curve.scored, judged)
        areas[name] = 100 * float(np.trapezoid(curve.per_query[metric][seen].mean(axis=0), curve.t))
    return areas


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", type=Path, nargs="+")
    table = pd.DataFrame([row for run in parser.parse_args().runs for row in of_run(run)])
    print("| merge | mean above raw | mean regret | within 0.5 of the best | more than 0.3 below raw | lowest |")
    print("|---|---|---|---|---|---|")
    areas = table.drop(columns=["run", "method"])
    for name in areas:
        above, regret = areas[name] - areas["raw"], areas.max(axis=1) - areas[name]
        print(
            f"| {name} | {above.mean():.2f} | {regret.mean():.2f} | {100 * (regret < 0.5).mean():.0f} % | "
            f"{100 * (above < -0.3).mean():.0f} % | {above.min():.1f} |"
        )


if __name__ == "__main__":
    main()
