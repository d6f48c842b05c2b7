"""Analyses of a comparison; one file each, found by module name.

A module defines ``ANALYSES``, a tuple of ``Analysis``. Each says how its table in RUN/results is computed, and what the
report shows of that table.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Any

import pandas as pd

from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.tables import SPINE
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.core.schema import describe, frame
from ray_backfill.page.sections import Section

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves
    from ray_backfill.compare.resolve import Comparison

TableRows = Sequence[Any] | pd.DataFrame


@dataclass(frozen=True)
class Analysis:
    """A question that a comparison answers.

    name: of its table, and of the file.
    row: the table's row type, a frozen dataclass; its columns are annotated with their type and meaning. None for an
        analysis that only shows what other tables have.
    compute: makes the rows from the comparison with its maps, its curves, and the results so far: the summary and the
        tables of ``needs``, without curves. None where the comparison has nothing to tell; then no file is written.
    section: makes the section of the report, from stored results alone. None where they have nothing to show.
    needs: names of the analyses whose tables ``compute`` reads.
    further: name -> row type of tables that are computed in the same pass; then ``compute`` returns them by name.
    is_read: whether reports read the table; False for one that is much larger than the others.
    place: sections of the report are sorted by it.
    """

    name: str
    row: type | None = None
    compute: Callable[["Comparison", "Curves", ResultsData], TableRows | Mapping[str, TableRows] | None] | None = None
    section: Callable[[ResultsData], Section | None] | None = None
    needs: tuple[str, ...] = ()
    further: Mapping[str, type] = field(default_factory=dict)
    is_read: bool = True
    place: int = 100

    @property
    def tables(self) -> dict[str, type]:
        """Table name -> row type."""
        return ({} if self.row is None else {self.name: self.row}) | dict(self.further)

    def computed(self, comparison: "Comparison", curves: "Curves", so_far: ResultsData) -> dict[str, pd.DataFrame]:
        """The tables by name, to be written."""
        made = self.compute(comparison, curves, so_far) if self.compute is not None else None
        by_name = made if isinstance(made, Mapping) else {} if made is None else {self.name: made}
        return {
            name: rows if isinstance(rows, pd.DataFrame) else frame(self.tables[name], rows)
            for name, rows in by_name.items()
        }


@cache
def all_analyses() -> tuple[Analysis, ...]:
    """Every known analysis, each after those that it needs: those of this project, then those of other distributions.

    Raises:
        graphlib.CycleError: Analyses need each other.
    """
    ours = own_rows(sys.modules[__name__], "ANALYSES")
    known: dict[str, Analysis] = {row.name: row for row in (*ours, *rows_from_outside("ANALYSES"))}
    in_order = TopologicalSorter({name: analysis.needs for name, analysis in known.items()}).static_order()
    return tuple(known[name] for name in in_order if name in known)


def sections(results: ResultsData) -> list[Section]:
    """The sections of a report, in their places."""
    in_places = sorted(all_analyses(), key=lambda analysis: analysis.place)
    made = (analysis.section(results) for analysis in in_places if analysis.section)
    return [section for section in made if section is not None]


def all_tables() -> dict[str, type]:
    """Row type of each table that a results folder can have, by the name of its file."""
    return dict(SPINE) | {name: kind for analysis in all_analyses() for name, kind in analysis.tables.items()}


def described() -> dict[str, str]:
    """The columns of each table as Markdown, as docs/results-format.md has them; those of other distributions, too."""
    return {name: describe(kind) for name, kind in all_tables().items()}
