"""The selection among many rows, against plain loops over all of them."""

from pathlib import Path

import pytest

from ray_backfill.compare import selection
from ray_backfill.compare.report import Results, read_results
from ray_backfill.compare.results import Variant
from tests.compare.report.folder import METHODS, many_methods, write_results

ORDERS = ("oracle_loss", "score", "random")  # the oracle has the highest AUC of all


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("many")
    return read_results(write_results(folder, many_methods(12), ORDERS, merges=("raw", "csls")))


def test_each_method_once_in_its_best_order_and_merge(many: Results) -> None:
    shown = selection.best_per_method(many, "mAP")
    assert [row.method for row in shown[:2]] == ["old", "new"]
    assert [row.method for row in shown[2:]] == ["rm", "bct", "rm_naive", *(f"m{i}" for i in range(12))]
    for row in shown[2:]:
        own = [r for r in many.rows if (r.method, r.metric) == (row.method, "mAP") and "oracle" not in r.variant.order]
        assert row.auc == max(r.auc for r in own)
        assert row.variant == Variant("score", "raw")


def test_an_oracle_order_stands_in_only_for_a_method_without_another(tmp_path: Path) -> None:
    results = read_results(write_results(tmp_path, many_methods(30), ("oracle_loss",)))
    assert results.best() is None
    shown = selection.best_per_method(results, "mAP")
    assert len(shown) == 35
    assert all(row.is_bound for row in shown[2:])
    assert not any(row.is_bound for row in shown[:2])  # old and new are the same in any order


def test_few_rows_stay_as_they_are(tmp_path: Path, many: Results) -> None:
    small = read_results(write_results(tmp_path, many_methods(20)))
    assert len(small.table("mAP")) == selection.MANY_ROWS
    assert not selection.is_large(small)
    assert selection.shown_rows(small, "mAP") == small.table("mAP")
    assert selection.is_large(many)
    assert len(many.table("mAP")) == 2 + 15 * 3 * 2
    assert len(selection.shown_rows(many, "mAP")) == 2 + 15


def test_the_best_and_the_baseline_are_drawn(tmp_path: Path) -> None:
    weak = (*METHODS["rm_naive"][:2], 0.301, *METHODS["rm_naive"][3:])
    results = read_results(write_results(tmp_path, many_methods(30) | {"rm_naive": weak}))
    panel = results.panel("mAP", results.variants[0])
    drawn = [row.method for row in selection.drawn_rows(panel)]
    assert drawn == ["old", "new", "rm_naive", "rm", "bct", *(f"m{i}" for i in range(6))]
    assert selection.drawn_in_words(panel) == ["the 8 best of 33 methods", "and RM naive, the baseline"]
    assert selection.drawn_in_words(panel[:9]) == []
    assert selection.drawn_rows(panel[:9]) == panel[:9]


def test_the_words_name_the_baseline_only_where_it_is_not_among_the_best(many: Results) -> None:
    panel = many.panel("mAP", Variant("score", "raw"))
    assert selection.drawn_in_words(panel) == ["the 8 best of 15 methods"]
    assert len(selection.drawn_rows(panel)) == 2 + 8


def test_of_many_orders_one_oracle_stays(tmp_path: Path) -> None:
    orders, merges = ("oracle_loss", *"abcd"), ("raw", "csls")
    results = read_results(write_results(tmp_path, orders=orders, merges=merges))
    rows = selection.compared_variants(results, "rm")
    found = [tuple(r.variant) for r in rows]
    assert found[0] == ("oracle_loss", "raw")
    assert found[1:] == [(order, merge) for order in "abcd" for merge in merges][:7]
    few = read_results(write_results(tmp_path / "few", orders=orders[:3], merges=merges))
    assert len(selection.compared_variants(few, "rm")) == 6


def test_rivals_are_other_methods_once_and_the_own_other_variants(many: Results) -> None:
    best = many.best()
    assert best is not None
    rivals = selection.rivals(many, best)
    others = [row for row, _ in rivals if row.method != "rm"]
    assert sorted(row.method for row in others) == sorted(set(many.methods) - {"rm"})
    assert {row.variant for row in others if row.method not in ("old", "new")} == {Variant("score", "raw")}
    own = [(*row.variant, round(100 * found.value, 6)) for row, found in rivals if row.method == "rm"]
    assert own == [("score", "csls", 0.4), ("random", "raw", 1.0)]  # the closest first, and no oracle
