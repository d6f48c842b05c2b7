"""What a page shows, as values: tables, and sections of paragraphs, lists, tables and charts. Draws nothing.

The macro ``section`` of parts.html.jinja turns a ``Section`` into HTML.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from ray_backfill.page.charts import Chart
from ray_backfill.page.numbers import interval, percent


class Head(NamedTuple):
    """The head of a column."""

    label: str
    css: str = ""


class Cell(NamedTuple):
    """A cell. sort: what its column is sorted by, None: its text. width: of a bar behind the text, in per cent.

    mark: a verdict, which is shown as a tick, a cross or a question mark; mark_words: on what.
    shade: opacity of a background that shows the value.
    """

    text: str
    sort: str | None = None
    css: str = ""
    width: float = 0.0
    mark: str = ""
    mark_words: str = ""
    shade: float = 0.0


class TableRow(NamedTuple):
    """A row; its first cell is its name."""

    css: str
    cells: list[Cell]


class PageTable(NamedTuple):
    """A table. label: for screen readers."""

    label: str
    heads: list[Head]
    rows: list[TableRow]
    css: str = ""


# A line of a table: the head and the cell of each column.
TableLine = Sequence[tuple[str, Cell]]


def table_of(label: str, lines: Sequence[TableLine], css: str = "sortable", row_css: Sequence[str] = ()) -> PageTable:
    """A table of at least one line. A column of words has the head of one. row_css: of each line, if they differ."""
    heads = [Head(name, "name" if i == 0 or cell.css == "name" else "") for i, (name, cell) in enumerate(lines[0])]
    css_of = row_css or [""] * len(lines)
    rows = [TableRow(of, [cell for _, cell in line]) for of, line in zip(css_of, lines, strict=True)]
    return PageTable(label, heads, rows, css)


def text_table(label: str, names: Sequence[str], rows: Sequence[Sequence[str]], css: str = "") -> PageTable:
    """A table of texts; the first column names the rows."""
    heads = [Head(name, "name" if index == 0 else "") for index, name in enumerate(names)]
    return PageTable(label, heads, [TableRow("", [Cell(text) for text in row]) for row in rows], css)


def number(text: str, value: float, css: str = "") -> Cell:
    """A cell that is sorted by its value; by nothing where there is none."""
    return Cell(text, f"{value:.6g}" if math.isfinite(value) else "", css)


def share(value: float) -> Cell:
    """A share in per cent."""
    return number(percent(value), value)


def limits(low: float, high: float) -> Cell:
    """An interval of shares in per cent."""
    return number(interval(low, high), low, "range")


def word(text: str) -> Cell:
    """A name or another word, left-aligned."""
    return Cell(text, css="name")


class Note(NamedTuple):
    """A paragraph in small print."""

    text: str | Markup


class Title(NamedTuple):
    """A heading inside a section."""

    text: str


class Sentences(NamedTuple):
    """A list of sentences."""

    sentences: Sequence[str]


class Charts(NamedTuple):
    """Charts of one kind. name: unique in the page."""

    charts: Sequence[Chart]
    name: str


class Folded(NamedTuple):
    """Parts that a reader unfolds."""

    summary: str
    parts: "Sequence[Part]"
    is_open: bool = False


# What a section consists of. A plain text is a paragraph. ``Markup`` is HTML; its maker escapes what comes from users.
Part = str | Markup | Note | Title | Sentences | Charts | Folded | PageTable


class Printed(NamedTuple):
    """A table for the terminal, with notes below it. kept: number of its first columns, which always stay.

    said: sentences; notes: small print; elsewhere: the file that has the other columns.
    """

    table: PageTable
    said: Sequence[str]
    notes: Sequence[str]
    kept: int
    elsewhere: str


@dataclass(frozen=True)
class Section:
    """A section of a report.

    parts: on the page, below the title. has_images: whether one of them has images, as data URIs. said: sentences for
    the terminal. printed: a further table there.
    """

    title: str
    parts: Sequence[Part]
    has_images: bool = False
    said: Sequence[str] = ()
    printed: Printed | None = None
