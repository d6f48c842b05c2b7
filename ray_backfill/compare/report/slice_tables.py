"""Who gains and who loses: groups of queries as tables of a page. Computes nothing."""

from ray_backfill.compare.report.page_tables import number
from ray_backfill.compare.report.results import Results
from ray_backfill.compare.report.slices import TOO_FEW, slice_rows
from ray_backfill.compare.tables.slices import FEWEST_QUERIES, SliceRow
from ray_backfill.core.schema import NO, YES
from ray_backfill.page.numbers import interval, percent, percent_sign
from ray_backfill.page.parts import Cell, Head, PageTable, TableRow


def slice_tables(results: Results) -> list[tuple[str, PageTable]]:
    """Column and a line for each of its groups, of the best method in the primary metric; [] without slices."""
    best = results.best()
    rows = slice_rows(results, best) if best else []
    columns = dict.fromkeys(row.slice for row in rows)
    return [(column, _table(column, [row for row in rows if row.slice == column])) for column in columns]


def _table(column: str, rows: list[SliceRow]) -> PageTable:
    heads = [Head(column, "name"), Head("queries"), Head("old service"), Head("start"), Head("end")]
    heads += [Head("end minus start"), Head("95 % interval"), Head("lowest against old"), Head("95 % interval")]
    heads += [Head("at"), Head("below old?", "name")]
    return PageTable(
        f"What the upgrade does to the queries by {column}", heads, [_line(row) for row in rows], "sortable"
    )


def _line(row: SliceRow) -> TableRow:
    is_small = row.queries < FEWEST_QUERIES
    cells = [Cell(row.group), number(f"{row.queries:,}", row.queries)]
    cells += [number(percent(value), value) for value in (row.old, row.start, row.end, row.change)]
    cells.append(number(interval(row.change_low, row.change_high), row.change_low, "range"))
    cells.append(number(percent(row.lowest_vs_old), row.lowest_vs_old))
    cells.append(number(interval(row.lowest_vs_old_low, row.lowest_vs_old_high), row.lowest_vs_old_low, "range"))
    cells.append(number(percent_sign(row.lowest_at, 0), row.lowest_at))
    verdict = TOO_FEW if is_small else {NO: "yes", YES: "no"}.get(row.stays_at_old, "not decided")
    return TableRow("", [*cells, Cell(verdict, css="name")])
