"""Tables keep their names in every width, lose the last columns first, and say which."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ray_backfill.compare.report import print_table, read_results
from ray_backfill.compare.report.terminal import MOST_COLUMNS, overview
from ray_backfill.drill.report import print_live_table
from ray_backfill.page.layout import fit, show
from tests.compare.report.folder import METHODS, printed, write_results
from tests.drill.report.folder import write_drill

ORDERS = ("classifier_score", "class_mean_distance", "oracle_loss")
TITLE = "relaxed Procrustes, centred, of the gallery"
LONG = METHODS | {"rm": (TITLE, *METHODS["rm"][1:])}
FEW = ("old", "new", "rm_naive", "rm")  # of more methods, each would be shown in its best order and merge only
SEVERAL = {"orders": ORDERS, "merges": ("raw", "quantile", "calibrated")}
MORE = "More columns ("


def lines_of(print_it: Callable[[Console], None], width: int) -> list[str]:
    return printed(print_it, width).splitlines()


def left_out(lines: list[str]) -> list[str]:
    """The columns that the note below the table names."""
    text = " ".join(" ".join(lines).split())
    return text.split(MORE)[1].split(")")[0].split(", ") if MORE in text else []


def cells(line: str) -> list[str]:
    return line.replace("│", " ").split()


@pytest.mark.parametrize("width", [60, 80, 100, 140])
@pytest.mark.parametrize(
    "made",
    [
        {},
        {"methods": {name: METHODS[name] for name in FEW}} | SEVERAL,
        {"methods": LONG},
        {"methods": {name: LONG[name] for name in FEW}} | SEVERAL,
    ],
    ids=["one order", "3 orders, 3 merges", "long title", "all of it"],
)
def test_the_table_of_a_comparison(made: Mapping[str, Any], width: int, tmp_path: Path) -> None:
    write_results(tmp_path, **made)
    lines = lines_of(lambda console: print_table(tmp_path, console), width)
    assert max(map(len, lines)) <= width
    columns = list(overview(read_results(tmp_path)).columns)
    names = [column for column in columns if column in ("method", "order", "merge")]
    dropped = left_out(lines)
    assert dropped == columns[len(columns) - len(dropped) :], "the last columns go first"
    assert len(dropped) < len(columns) - len(names), "one figure stays"
    assert dropped or not made or width > 60
    text = " ".join(" ".join(lines).split())
    assert ("a wider terminal, report.html or summary.parquet" in text) == (len(dropped) > len(columns[MOST_COLUMNS:]))
    whole = [line for line in map(cells, lines) if line[:2] == ["RM", "naive"]]
    assert len(whole) == (9 if "orders" in made else 1)
    assert "34.0" in whole[0]
    if "order" in names and width > 60:
        assert [row[2] for row in whole] == [order for order in ORDERS for _ in range(3)], "no name is cut"
    if made.get("methods", METHODS)["rm"][0] == TITLE:
        assert all(word in text for word in TITLE.split())


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_the_table_of_a_drill(width: int, tmp_path: Path) -> None:
    write_drill(tmp_path)
    lines = lines_of(lambda console: print_live_table(tmp_path, console), width)
    assert max(map(len, lines)) <= width
    assert any(cells(line)[:3] == ["100", "%", "50.0"] for line in lines)
    assert bool(left_out(lines)) == (width < 80)
    assert left_out(lines)[-1:] == (["unanswered"] if width < 80 else [])


def made_table() -> Table:
    """Narrow, its columns take 12 + 7 + 4 + 8 characters, with one between them and one at both ends."""
    table = Table()
    table.add_column(Text("method"), overflow="fold")
    for heading in ("AUC mAP@100", "gain", "95 % interval"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    table.add_row("low-rank, 12", "53.0", "99 %", "1 to 2")
    return table


@pytest.mark.parametrize(
    ("width", "dropped"),
    [(60, []), (40, []), (36, []), (35, ["95 % interval"]), (27, ["95 % interval"]), (26, ["gain", "95 % interval"])],
)
def test_no_more_columns_go_than_must(width: int, dropped: list[str]) -> None:
    assert fit(made_table(), width, kept=2) == dropped


@pytest.mark.parametrize("width", range(16, 60))
def test_names_and_the_first_figure_stay_in_every_width(width: int) -> None:
    lines = lines_of(lambda console: show(console, made_table(), [], kept=2, elsewhere="elsewhere"), width)
    table = "".join("".join(line for line in lines if "col" not in line).split())
    assert "53.0" in table
    assert all(letter in table for letter in "low-rank,12")
    assert "…" not in table


def test_a_pipe_gets_whole_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    title = ", ".join([TITLE] * 4)
    write_results(tmp_path, METHODS | {"rm": (title, *METHODS["rm"][1:])})
    print_table(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    row = next(line for line in lines if f"│ {title} │" in line)
    assert row.count("│") == 1 + MOST_COLUMNS
    assert "More columns (average CMC@1): report.html" in " ".join(lines)


@pytest.mark.parametrize("width", range(24, 60))
def test_no_line_begins_with_a_per_cent_sign(width: int) -> None:
    note = Text("Full RM reaches 58 % of the gain, starts at 28.4 % (old service: 23.7 %) and ends at 53.6 %.")
    lines = lines_of(lambda console: show(console, Table("method"), [note], kept=1, elsewhere=""), width)
    assert not [line for line in lines if line.strip().startswith("%")]
    assert "58 %" in " ".join(lines), "found by who searches for it"
