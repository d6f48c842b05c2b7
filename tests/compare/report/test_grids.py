"""Heat map tables: the right cells, and only if there is something to compare."""

import math
from pathlib import Path

import pandas as pd

from ray_backfill.compare.report import read_results
from ray_backfill.compare.report.grids import DARKEST, grids
from tests.compare.report.folder import METHODS, write_results


def test_none_without_orders_or_merges(tmp_path: Path) -> None:
    assert grids(read_results(write_results(tmp_path))) == []


def test_orders_at_the_first_merge_and_merges_at_the_first_real_order(tmp_path: Path) -> None:
    folder = write_results(tmp_path, orders=("oracle_loss", "score", "random"), merges=("raw", "csls"))
    by_order, by_merge = grids(read_results(folder))
    assert (by_order.what, by_order.fixed, by_order.columns) == (
        *("order", "raw merge"),
        ("oracle_loss †", "score", "random"),
    )
    assert (by_merge.what, by_merge.fixed, by_merge.columns) == ("merge", "score order", ("raw", "csls"))
    assert [title for title, _ in by_order.rows] == ["full RM", "BCT", "RM naive"]
    cells = dict(by_order.rows)["full RM"]
    assert [round(c.auc, 6) for c in cells] == [0.53, 0.52, 0.51]
    assert [c.is_best for c in cells] == [False, True, False]  # the oracle's is higher
    assert [round(c.auc, 6) for c in dict(by_merge.rows)["BCT"]] == [0.34, 0.336]
    assert [c.is_best for c in dict(by_merge.rows)["BCT"]] == [True, False]


def test_only_what_there_are_several_of(tmp_path: Path) -> None:
    (only,) = grids(read_results(write_results(tmp_path, merges=("raw", "csls"))))
    assert (only.what, only.fixed) == ("merge", "")


def test_from_white_for_the_old_service_to_the_darkest_for_the_best(tmp_path: Path) -> None:
    poor = (*METHODS["bct"][:2], 0.2, *METHODS["bct"][3:])
    (grid,) = grids(read_results(write_results(tmp_path, METHODS | {"bct": poor}, orders=("a", "b"))))
    shades = {title: [cell.shade for cell in cells] for title, cells in grid.rows}
    assert shades["BCT"] == [0, 0]  # below old's 30 %
    assert shades["full RM"] == [DARKEST, round(DARKEST * 0.22 / 0.23, 3)]


def test_a_method_that_was_not_run_so_has_an_empty_cell(tmp_path: Path) -> None:
    folder = write_results(tmp_path, orders=("a", "b"))
    summary = pd.read_parquet(folder / "summary.parquet")
    summary[(summary["method"] != "bct") | (summary["order"] != "b")].to_parquet(folder / "summary.parquet")
    (grid,) = grids(read_results(folder))
    missing = dict(grid.rows)["BCT"][1]
    assert math.isnan(missing.auc)
    assert (missing.shade, missing.is_best) == (0, False)
