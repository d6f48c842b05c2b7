"""The random order: the mean over permutations, against replays of each permutation on its own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Curves, Permutation, by_order, groups_in_memory, permutation_seeds, replay_here
from ray_backfill.compare.tabulate import tabulate
from ray_backfill.compare.write import Facts, write_results
from ray_backfill.core.errors import InputError
from ray_backfill.drill.run import check_drill
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.engine.replay import Curve
from ray_backfill.learn.methods import find_methods
from tests.compare.folder import resolved

SEVERAL = Evaluation(
    methods=("rm_naive", "offline"), orders=("random", "classifier_score"), points=5, order_seed=3, permutations=4
)


def replayed(folder: Path, evaluation: Evaluation) -> Curves:
    return replay_here(resolved(folder, evaluation))


@pytest.fixture
def alone(folder: Path) -> list[Curve]:
    """RM naive's curve of each permutation, replayed on its own."""
    found = []
    for seed in permutation_seeds(3, 4):
        one = replace(SEVERAL, permutations=1, order_seed=seed)
        found.append(replayed(folder, one)["rm_naive", "random", "raw"].curve)
    return found


def test_what_a_name_says_makes_no_permutation() -> None:
    curves = {"mine": 1, "mine permutation 2": 2, "random": 3, "random permutation 2": 4}
    further = {"random permutation 2": Permutation("random", np.arange(3))}
    assert by_order(curves, further) == {"mine": [1], "mine permutation 2": [2], "random": [3, 4]}


def test_the_curve_is_the_mean_of_every_query_over_permutations(folder: Path, alone: list[Curve]) -> None:
    curves = replayed(folder, SEVERAL)
    found = curves["rm_naive", "random", "raw"]
    for metric in ("mAP", "CMC@1"):
        expected = sum(curve.per_query[metric] for curve in alone) / 4
        np.testing.assert_allclose(found.curve.per_query[metric], expected, atol=1e-15)
        assert found.curve.auc(metric) == pytest.approx(np.mean([curve.auc(metric) for curve in alone]))
        np.testing.assert_allclose(found.permutation_aucs[metric], [curve.auc(metric) for curve in alone])
    assert len({curve.auc("mAP") for curve in alone}) == 4
    np.testing.assert_allclose(found.curve.negative_flips(), np.mean([c.negative_flips() for c in alone], axis=0))
    np.testing.assert_allclose(found.curve.positive_flips(), np.mean([c.positive_flips() for c in alone], axis=0))
    assert set(np.unique(found.curve.top1_correct)) > {0, 1}  # some items are right in some permutations only
    for key in (("rm_naive", "classifier_score", "raw"), ("offline", "random", "raw"), ("old", "random", "raw")):
        assert curves[key].permutation_aucs == {}
        np.testing.assert_array_equal(
            curves[key].curve.per_query["mAP"],
            replayed(folder, replace(SEVERAL, permutations=1))[key].curve.per_query["mAP"],
        )


def test_more_permutations_keep_the_first_ones() -> None:
    assert permutation_seeds(3, 1) == [3]
    assert permutation_seeds(3, 10)[:4] == permutation_seeds(3, 4)
    assert len(set(permutation_seeds(3, 10)) | set(permutation_seeds(4, 10))) == 20
    with pytest.raises(InputError, match="--permutations must be at least 1, got 0"):
        replace(SEVERAL, permutations=0).check()


def test_differences_and_flips_in_the_tables_are_those_of_the_mean(folder: Path, alone: list[Curve]) -> None:
    comparison = resolved(folder, SEVERAL)
    curves = replay_here(comparison)
    tables = tabulate(comparison.methods, curves, SEVERAL)
    of_mean = curves["rm_naive", "classifier_score", "raw"].curve
    expected = of_mean.difference(curves["rm_naive", "random", "raw"].curve, "mAP")
    table = tables["differences"]
    (row,) = table[
        (table.method == "rm_naive") & (table.order == "classifier_score") & (table.metric == "mAP")
        & (table.other_method == "rm_naive")
    ].itertuples()  # fmt: skip
    assert (row.difference, row.low, row.high) == pytest.approx(tuple(expected)[:3])
    assert row.difference == pytest.approx(of_mean.auc("mAP") - np.mean([curve.auc("mAP") for curve in alone]))
    points = tables["curves"]
    points = points[(points.method == "rm_naive") & (points.order == "random")]
    for name in ("negative_flips", "positive_flips"):
        expected_T = np.mean([getattr(curve, name)() for curve in alone], axis=0)
        np.testing.assert_allclose(points[points.metric == name].value, expected_T)


def test_the_spread_over_permutations_is_a_table(folder: Path, tmp_path: Path, alone: list[Curve]) -> None:
    comparison = resolved(folder, SEVERAL)
    out = write_results(comparison, tmp_path / "several", Facts(command="test"))
    table = pd.read_parquet(out / "permutations.parquet")
    aucs = [curve.auc("mAP") for curve in alone]
    (row,) = table[table.metric == "mAP"].itertuples()
    assert (row.method, row.order, row.merge) == ("rm_naive", "random", "raw")
    assert len(table) == 2  # one for each metric: references and other orders have none
    found = np.array([row.permutations, row.auc_std, row.auc_min, row.auc_max], float)
    np.testing.assert_allclose(found, np.array([4, np.std(aucs, ddof=1), min(aucs), max(aucs)], float))
    before = (out / "manifest.json").stat().st_mtime_ns
    assert write_results(comparison, out, Facts(command="test")) == out
    assert (out / "manifest.json").stat().st_mtime_ns == before  # nothing was computed again
    one = resolved(folder, replace(SEVERAL, permutations=1))
    assert not (write_results(one, tmp_path / "one", Facts(command="test")) / "permutations.parquet").exists()


@pytest.mark.parametrize(("permutations", "groups"), [(1, 1), (4, 4)])
def test_methods_are_grouped_by_the_memory_of_all_permutations(folder: Path, permutations: int, groups: int) -> None:
    comparison = resolved(folder, replace(SEVERAL, permutations=permutations))
    # 4 methods of 12 queries, 101 moments, 2 metrics and 2 or 5 orders, 9 bytes each
    assert len(list(groups_in_memory(comparison, 200_000))) == groups


def test_a_drill_backfills_in_the_first_permutation(folder: Path) -> None:
    _, evaluation = check_drill(replace(SEVERAL, orders=("random",)), LiveSettings(method="rm_naive"))
    assert evaluation.permutations == 1
    several, one = (resolved(folder, each) for each in (SEVERAL, evaluation))
    (naive,) = find_methods(("rm_naive",))
    assert several.orders_of(naive)["random"].tolist() == one.orders_of(naive)["random"].tolist()
