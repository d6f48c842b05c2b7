"""Rows on a terminal, drawn by rich."""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ray_backfill.core.progress.tasks import Task

_BAR_WIDTH = 16


class Drawing:
    """The live part of a terminal, below what is printed there meanwhile."""

    def __init__(self, stream: TextIO) -> None:
        self._spinner = Spinner("dots")
        self._live = Live(
            console=Console(file=stream),
            auto_refresh=False,  # whoever draws does so a few times a second
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a file must not end up here
        )
        self._live.start()

    def draw(self, stages: Sequence[Task]) -> None:
        """Replace all rows by those of these stages, outermost first."""
        width = self._live.console.width
        bar_width = min(_BAR_WIDTH, width // 5)
        titles = [Text("  " * depth + stage.title) for depth, stage in enumerate(stages)]
        title_width = min(width // 3, max((title.cell_len for title in titles), default=0))
        rows = Table.grid(padding=(0, 1))
        for title, stage in zip(titles, stages, strict=True):
            title.truncate(title_width, overflow="ellipsis", pad=True)
            bar = ProgressBar(stage.total, min(stage.done, stage.total), bar_width) if stage.total else ""
            status = Text(stage.status(), style="dim")
            # The bar's column is there if one of them has a bar.
            used = 2 + title_width + 1 + (bar_width + 1 if any(other.total for other in stages) else 1)
            status.truncate(max(0, width - used), overflow="ellipsis")
            rows.add_row(self._spinner, title, bar, status)
        self._live.update(rows, refresh=True)

    def print_above(self, line: str) -> None:
        """Print a line that stays."""
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the rows, and give the terminal back."""
        self._live.stop()
