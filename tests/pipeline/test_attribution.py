"""What each stage changes: against separate runs of services that have some of the stages only."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, t

import ray_backfill as rb
from ray_backfill.compare.analyses.attribution import by_vectors_alone
from ray_backfill.compare.report.verdict import advised, find_situation
from ray_backfill.compare.results import ResultsData
from tests.pipeline.test_simulate import folder_of

SERVICES = {
    "plain": "",
    "lists": "retrieve: 15",
    "fused": "retrieve: 15\nhybrid: {list: bm25, retrieve: 30, cut: 20}",
    "unfused": "retrieve: 15\nrerank: {top: 10, scores: scores.csv}",
    "full": "retrieve: 15\nhybrid: {list: bm25, retrieve: 30, cut: 20}\nrerank: {top: 10, scores: scores.csv}",
}
KEY = ["method", "order", "merge", "metric"]
# What each (kind, stage) of a method is: its values in one run, minus those in another one; or those of old and new.
LADDER = {
    ("ladder", "old model"): (("plain", "old"), None),
    ("ladder", "model"): (("plain", "new"), ("plain", "old")),
    ("ladder", "merge"): (("plain", ""), ("plain", "new")),
}
EXPECTED: Mapping[str, Any] = {
    "lists": {
        ("ladder", "cut"): (("lists", ""), ("plain", "")),
        ("without", "cut"): (("lists", ""), ("plain", "")),
    },
    "fused": {
        ("ladder", "cut"): (("lists", ""), ("plain", "")),
        ("ladder", "fusion"): (("fused", ""), ("lists", "")),
        ("without", "fusion"): (("fused", ""), ("lists", "")),
    },
    "unfused": {
        ("ladder", "cut"): (("lists", ""), ("plain", "")),
        ("ladder", "re-ranker"): (("unfused", ""), ("lists", "")),
        ("without", "re-ranker"): (("unfused", ""), ("lists", "")),
    },
    "full": {
        ("ladder", "cut"): (("lists", ""), ("plain", "")),
        ("ladder", "fusion"): (("fused", ""), ("lists", "")),
        ("ladder", "re-ranker"): (("full", ""), ("fused", "")),
        ("without", "fusion"): (("full", ""), ("unfused", "")),
        ("without", "re-ranker"): (("full", ""), ("fused", "")),
    },
}


# What the program takes for the results without the service; one for each run behind one.
ALONE: list[ResultsData] = []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[rb.Results, Path]]:
    """One comparison behind each service, without reports."""
    path = tmp_path_factory.mktemp("attribution")
    folder, found = folder_of(path / "data"), {}

    def kept(*of: Any) -> ResultsData:
        ALONE.append(by_vectors_alone(*of))
        return ALONE[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray_backfill.compare.write.write_report", lambda _: None)
        patch.setattr("ray_backfill.compare.analyses.attribution.by_vectors_alone", kept)
        for name, service in SERVICES.items():
            (path / "service.yaml").write_text(service)
            how: dict[str, Any] = {"service": path / "service.yaml"} if service else {}
            results = rb.simulate(
                folder, out=path / name, methods=["rm_naive", "ridge_gallery", "offline"], merges=["raw", "rrf"],
                metrics=["nDCG@10", "recall@15"], points=3, permutations=2, orders="random", **how,
            )  # fmt: skip
            found[name] = results, path / name / "results"
    return found


def values_of(results: rb.Results) -> dict[tuple[str, ...], np.ndarray]:
    """Key -> values at the reported points, then the average."""
    lines = {row: results.line(row) for row in results.rows}
    return {
        (row.method, *row.variant, row.metric): np.append(line.value, row.auc) for row, line in lines.items() if line
    }


@pytest.mark.parametrize("service", EXPECTED)
def test_every_figure_is_the_difference_of_two_runs(service: str, runs: Mapping[str, tuple[rb.Results, Path]]) -> None:
    values = {name: values_of(results) for name, (results, _) in runs.items()}
    ends: Any = {("without", "model"): "old", ("without", "merge"): "new"}
    ends = {of: ((service, ""), (service, end)) for of, end in ends.items()}
    expected = LADDER | EXPECTED[service] | ends
    table = runs[service][0].tables.frame("attribution")
    assert set(values[service]) == set(table.groupby(KEY).groups)
    for key in values[service]:
        rows = table[(table[KEY] == list(key)).all(axis=1)]

        def value(run: str, of: str, key: tuple[str, ...] = key) -> np.ndarray:
            return values[run][(of, key[1], "raw", key[3]) if of else key]

        by_stage = {
            of: rows["value"].to_numpy() for of, rows in rows[rows["kind"] != "upgrade"].groupby(["kind", "stage"])
        }
        assert set(by_stage) == set(expected)
        for of, (one, other) in expected.items():
            by_hand = value(*one) - (value(*other) if other else 0.0)
            np.testing.assert_allclose(by_stage[of], by_hand, atol=1e-12, err_msg=f"{key} {of}")
        ladder = sum(by_stage[of] for of in by_stage if of[0] == "ladder")
        np.testing.assert_allclose(ladder, values[service][key], atol=1e-12)
        upgrade = rows[rows["kind"] == "upgrade"]
        assert upgrade.empty == (key[0] != "new")
        if key[0] == "new":
            worth = {str(stage): of["value"].to_numpy() for stage, of in upgrade.groupby("stage")}
            total = value(service, "new") - value(service, "old")
            np.testing.assert_allclose(worth.pop("service"), total, atol=1e-12)
            np.testing.assert_allclose(worth.pop("stages"), total - worth["model"], atol=1e-12)
            np.testing.assert_allclose(sum(worth.values()), total, atol=1e-12)


def test_intervals_are_paired(runs: Mapping[str, tuple[rb.Results, Path]]) -> None:
    """Against a bootstrap by hand of each query's difference between two runs."""
    per_query = {}
    for name in ("full", "fused", "plain"):
        rows = pd.read_parquet(runs[name][1] / "query_values.parquet").query("quantity == 'auc'")
        per_query[name] = {row.method: np.asarray(row["values"], np.float64) for _, row in rows.iterrows()}
    differences = {
        ("ladder", "re-ranker"): per_query["full"]["rm_naive"] - per_query["fused"]["rm_naive"],
        ("ladder", "merge"): per_query["plain"]["rm_naive"] - per_query["plain"]["new"],
        ("without", "merge"): per_query["full"]["rm_naive"] - per_query["full"]["new"],
    }
    table = runs["full"][0].tables.frame("attribution")
    table = table[(table["method"] == "rm_naive") & (table["merge"] == "raw") & (table["metric"] == "nDCG@10")]
    table = table[table["t"].isna()].set_index(["kind", "stage"])
    for of, values in differences.items():
        rng, n = np.random.default_rng(0), len(values)
        means = [values[rng.integers(n, size=n)].mean() for _ in range(1000)]
        level = norm.cdf(t.ppf(0.025, n - 1) * np.sqrt(n / (n - 1)))
        expected = np.quantile(means, [level, 1 - level])
        np.testing.assert_allclose(table.loc[of, ["low", "high"]].to_numpy(float), expected, atol=1e-6)


@pytest.mark.parametrize("service", EXPECTED)
def test_what_the_vectors_alone_would_have_advised(service: str, runs: Mapping[str, tuple[rb.Results, Path]]) -> None:
    plain, results = runs["plain"][0], runs[service][0]
    (advice,) = results.table_of("plain_advice")
    would, best = plain.best(), results.best()
    assert would is not None
    assert best is not None
    assert advice.advice == advised(plain)
    assert (advice.method, advice.order, advice.merge) == (would.method, *would.variant)
    there = results.row(would.method, would.variant, would.metric)
    assert there is not None
    assert advice.difference == pytest.approx(there.auc - best.auc, abs=1e-12)
    assert advice.low <= advice.difference <= advice.high
    # As wide as one interval, or wider: it allows for the choice of the best.
    if (single := results.difference(there, best)) is not None:
        assert advice.high - advice.low > 0.99 * (single.high - single.low)


def test_the_results_by_the_vectors_alone_are_those_of_a_run_without_a_service(
    runs: Mapping[str, tuple[rb.Results, Path]],
) -> None:
    plain = runs["plain"][0]
    assert len(ALONE) == len(SERVICES) - 1
    for alone in ALONE:
        assert find_situation(alone) is find_situation(plain)
        assert alone.differences.keys() == plain.differences.keys()
        for one, other in ((alone.differences, plain.differences), (alone.at_once, plain.at_once)):
            np.testing.assert_allclose([*one.values()], [*other.values()], atol=1e-12)
        for row in plain.rows:
            same = alone.row(row.method, row.variant, row.metric)
            assert same is not None
            for column in ("auc", "auc_low", "gain", "gain_low", "gain_high", "old_auc", "new_auc", "start", "end"):
                np.testing.assert_allclose(getattr(same, column), getattr(row, column), atol=1e-12)


def test_without_a_service_there_is_no_table(runs: Mapping[str, tuple[rb.Results, Path]]) -> None:
    results, folder = runs["plain"]
    assert not {"attribution", "plain_advice"} & set(results.tables)
    assert not (folder / "attribution.parquet").exists()
