"""Heat map tables: the right cells, and only if there is something to compare."""

from pathlib import Path

import pandas as pd

from ray_backfill.compare.report import read_results
from ray_backfill.compare.report.html import DARKEST, heat_tables
from ray_backfill.page.sections import Cell, PageTable
from tests.compare.report.folder import METHODS, write_results


def cells_of(table: PageTable) -> dict[str, list[Cell]]:
    """Title of the method -> its cells."""
    return {row.cells[0].text: row.cells[1:] for row in table.rows}


def test_none_without_orders_or_merges(tmp_path: Path) -> None:
    assert heat_tables(read_results(write_results(tmp_path))) == []


def test_orders_at_the_first_merge_and_merges_at_the_first_real_order(tmp_path: Path) -> None:
    folder = write_results(tmp_path, orders=("oracle_loss", "score", "random"), merges=("raw", "csls"))
    (by_order, orders), (by_merge, merges) = heat_tables(read_results(folder))
    assert (by_order, by_merge) == ("By order, raw merge", "By merge, score order")
    assert [head.label for head in orders.heads] == ["average mAP", "oracle_loss †", "score", "random"]
    assert [head.label for head in merges.heads] == ["average mAP", "raw", "csls"]
    cells = cells_of(orders)
    assert list(cells) == ["full RM", "BCT", "RM naive"]
    assert [cell.text for cell in cells["full RM"]] == ["53.0", "52.0", "51.0"]
    assert [cell.css for cell in cells["full RM"]] == ["", "top", ""]  # the oracle's is higher
    assert [cell.text for cell in cells_of(merges)["BCT"]] == ["34.0", "33.6"]
    assert [cell.css for cell in cells_of(merges)["BCT"]] == ["top", ""]


def test_only_what_there_are_several_of(tmp_path: Path) -> None:
    ((title, _),) = heat_tables(read_results(write_results(tmp_path, merges=("raw", "csls"))))
    assert title == "By merge"


def test_from_white_for_the_old_service_to_the_darkest_for_the_best(tmp_path: Path) -> None:
    poor = (*METHODS["bct"][:2], 0.2, *METHODS["bct"][3:])
    ((_, table),) = heat_tables(read_results(write_results(tmp_path, METHODS | {"bct": poor}, orders=("a", "b"))))
    shades = {title: [cell.shade for cell in cells] for title, cells in cells_of(table).items()}
    assert shades["BCT"] == [0, 0]  # below old's 30 %
    assert shades["full RM"] == [DARKEST, round(DARKEST * 0.22 / 0.23, 3)]


def test_a_method_that_was_not_run_so_has_an_empty_cell(tmp_path: Path) -> None:
    folder = write_results(tmp_path, orders=("a", "b"))
    summary = pd.read_parquet(folder / "summary.parquet")
    summary[(summary["method"] != "bct") | (summary["order"] != "b")].to_parquet(folder / "summary.parquet")
    ((_, table),) = heat_tables(read_results(folder))
    missing = cells_of(table)["BCT"][1]
    assert (missing.text, missing.shade, missing.css) == ("–", 0, "")
