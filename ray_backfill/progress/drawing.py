"""Rows on a terminal, drawn by rich."""

import sys
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from ray_backfill.progress.stages import Stage

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

    def draw(self, stages: Sequence[Stage]) -> None:
        """Replace all rows by those of these stages, outermost first."""
        rows = Table.grid(
            Column(), Column(no_wrap=True), Column(), Column(no_wrap=True, overflow="ellipsis", ratio=1), padding=(0, 1)
        )
        for depth, stage in enumerate(stages):
            bar = ProgressBar(stage.total or 1, min(stage.done, stage.total or 1), _BAR_WIDTH) if stage.total else ""
            title, status = Text("  " * depth + stage.title), Text(stage.status(), style="dim")
            rows.add_row(self._spinner, title, bar, status)
        self._live.update(rows, refresh=True)

    def print_above(self, line: str) -> None:
        """Print a line that stays."""
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the rows, and give the terminal back."""
        self._live.stop()
