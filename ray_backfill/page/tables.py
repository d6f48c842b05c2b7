"""Small tables that show themselves, as text in a terminal and as HTML in a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

import pandas as pd


class Difference(NamedTuple):
    """A difference of two AUCs with its paired 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the interval says about the sign: "better", "worse" or "not distinguishable"."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "not distinguishable"


class Compared(NamedTuple):
    """One line of a comparison.

    Attributes:
        names: What is compared with what, by column.
        auc: AUC of the first of the two.
        other_auc: AUC of the other one.
        difference: ``auc`` minus ``other_auc``.
    """

    names: Mapping[str, str]
    auc: float
    other_auc: float
    difference: Difference


@dataclass(frozen=True, repr=False)
class Differences:
    """Paired differences of AUCs with 95 % bootstrap intervals; shows itself in per cent.

    Attributes:
        title: What is compared.
        frame: One row for each comparison: columns that name it, then ``auc``, ``other_auc``, ``difference``, ``low``,
            ``high`` (shares: 0.1 = 10 percentage points) and ``verdict`` ("better", "worse" or "not distinguishable").
    """

    title: str
    frame: pd.DataFrame

    def __repr__(self) -> str:
        return f"{self.title}\n{self._in_percent().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return html_table(self.title, self._in_percent())

    def _in_percent(self) -> pd.DataFrame:
        """The frame as text."""
        numbers = 100 * self.frame[["auc", "other_auc", "difference", "low", "high"]]
        shown = self.frame.drop(columns=[*numbers.columns, "verdict"])
        shown["AUC"] = [f"{auc:.1f}" for auc in numbers["auc"]]
        shown["other AUC"] = [f"{auc:.1f}" for auc in numbers["other_auc"]]
        shown["difference"] = [f"{difference:+.2f}" for difference in numbers["difference"]]
        shown["95 % interval"] = [
            f"{low:+.2f} to {high:+.2f}" for low, high in zip(numbers["low"], numbers["high"], strict=True)
        ]
        shown["verdict"] = self.frame["verdict"]
        return shown


def make_differences(title: str, lines: Sequence[Compared]) -> Differences:
    """Lines of a comparison as a table."""
    rows = [
        {
            **line.names,
            "auc": line.auc,
            "other_auc": line.other_auc,
            "difference": line.difference.value,
            "low": line.difference.low,
            "high": line.difference.high,
            "verdict": line.difference.verdict,
        }
        for line in lines
    ]
    return Differences(title, pd.DataFrame(rows))


def html_table(title: str, frame: pd.DataFrame, notes: Sequence[str] = ()) -> str:
    """A table with its title above and notes below, for ``_repr_html_``."""
    table = frame.to_html(index=False, border=0)
    return f"<p><b>{escape(title)}</b></p>\n{table}" + "".join(f"\n<p>{escape(note)}</p>" for note in notes)
