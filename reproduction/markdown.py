"""Tables as Markdown."""

from dataclasses import dataclass


@dataclass(frozen=True)
class PageTable:
    """A table whose cells are text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def table_lines(table: PageTable) -> str:
    """The lines of a Markdown table, without a line break at the end."""
    lines = [table.header, *table.rows]
    head, *rows = [f"| {' | '.join(map(cell, line))} |" for line in lines]
    return "\n".join([head, "|" + "---|" * len(table.header), *rows])


def cell(text: object) -> str:
    """The text on one line, with pipes escaped, for a cell of a Markdown table."""
    return " ".join(str(text).split()).replace("|", "\\|")
