"""Markdown: tables, and templates of pages."""

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


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


def markdown_environment(folder: Path) -> Environment:
    """Templates of a folder, without autoescape. Filters: ``table`` writes a ``PageTable``, ``cell`` escapes a text."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"cell": cell, "table": table_lines}
    return environment
