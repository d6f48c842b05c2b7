"""Prints a table and notes in the width of a terminal: what does not fit is left out from the right, and named."""

from collections.abc import Sequence
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

PIPED_WIDTH = 140  # without a terminal rich assumes 80 columns, which would break the notes too often
_UNBOUNDED = 10_000
_NBSP = "\u00a0"


def show(
    console: Console | None,
    table: Table,
    notes: Sequence[Text],
    kept: int,
    elsewhere: str,
    before: Sequence[Text] = (),
    hidden: Sequence[str] = (),
) -> None:
    """Print what comes before a table, the table, and the notes below it, by default to standard output.

    A pipe gets the whole table. On a terminal that is too narrow, the last columns are left out.

    kept: number of the first columns, which always stay. elsewhere: where the other columns are. hidden: columns that
    the table leaves out at any width.
    """
    if console is None:
        console = Console()
        if not console.is_terminal:
            console = Console(width=max(PIPED_WIDTH, _width(table)))
    dropped = fit(table, console.width, kept)
    width = min(console.width, PIPED_WIDTH) - 2
    for note in filter(None, before):
        console.print(Padding(_broken(note, width), (0, 1)))
    console.print(table)
    if dropped or hidden:
        wider = "a wider terminal, " * bool(dropped)
        more = f"More columns ({', '.join([*dropped, *hidden])}): {wider}{elsewhere}"
        notes = [*notes, Text(more, style="dim")]
    for note in notes:
        console.print(Padding(_broken(note, width), (0, 1)))


def fit(table: Table, width: int, kept: int) -> list[str]:
    """Make a table fit, and return the headings of the columns that it has lost.

    The lines between columns go first, and each word of a heading gets a line; then columns go from the right. The
    names in the first ``kept`` columns break into several lines only if these columns alone do not fit.
    """
    if _width(table) <= width:
        return []
    table.box, table.pad_edge, table.padding = box.SIMPLE_HEAD, False, (0, 0)
    for column in table.columns:
        column.header = Text("\n".join(str(column.header).split(" ")))
    dropped: list[str] = []
    while len(table.columns) > kept and _width(table) > width:
        dropped.insert(0, " ".join(str(table.columns.pop().header).split("\n")))
    return dropped


def _width(table: Table) -> int:
    """The width of a table in which no cell breaks."""
    console = Console(width=_UNBOUNDED)
    return Measurement.get(console, console.options, table).maximum


def _broken(note: Text, width: int) -> Text:
    """Break a note into lines, but never between a number and its per cent sign.

    rich breaks at every kind of space, ``textwrap`` not at a no-break space. In the end the spaces are plain again, so
    that "58 %" can be searched for.
    """
    bound = note.plain.replace(" %", f"{_NBSP}%")
    lines = wrap(bound, max(1, width), break_long_words=False, break_on_hyphens=False)
    return Text("\n".join(lines).replace(_NBSP, " "), style=note.style)
