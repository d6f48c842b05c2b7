"""Numbers and verdicts in words, and small tables of them that a notebook shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from ray_backfill.core import progress
from ray_backfill.core.schema import NO, YES

if TYPE_CHECKING:
    import pandas as pd

MINUS, NOTHING = "\u2212", "\u2013"


def percent(share: float, digits: int = 1) -> str:
    """A share as per cent without the sign, 0.605 -> "60.5"; an en dash if it is undefined."""
    if not math.isfinite(share):
        return NOTHING
    text = f"{100 * share:.{digits}f}"
    if float(text) == 0:
        return text.removeprefix("-")
    return text.replace("-", MINUS)


def percent_sign(share: float, digits: int = 1) -> str:
    """Like percent, with the sign: "60.5 %"; an en dash if it is undefined."""
    return f"{percent(share, digits)} %" if math.isfinite(share) else NOTHING


def points(share: float, digits: int = 1) -> str:
    """A difference of shares: "1.2 points"."""
    return f"{percent(share, digits)} points" if math.isfinite(share) else NOTHING


def signed_points(share: float) -> str:
    """A difference of shares in points, with its sign: "+1.25"; "0" only if they are equal, never by rounding."""
    if not math.isfinite(share):
        return NOTHING
    if share == 0:
        return "0"
    size = 100 * abs(share)
    text = f"{size:.2f}" if size >= 0.005 else f"{size:.0e}"
    return f"{'+' if share > 0 else MINUS}{text}"


def count(number: float) -> str:
    """A count: "12,345"; an en dash if it is undefined."""
    return f"{number:,.0f}" if math.isfinite(number) else NOTHING


def rate(number: float) -> str:
    """A rate per second with three digits: "520", "49.8", "0.25"; an en dash if it is undefined."""
    if not math.isfinite(number):
        return NOTHING
    return f"{number:,.0f}" if number >= 99.95 or number == 0 else f"{number:.3g}"


def milliseconds(number: float) -> str:
    """A latency without its unit: "41", "4.2"; an en dash if it is undefined."""
    if not math.isfinite(number):
        return NOTHING
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.1f}"


def megabytes(size: float) -> str:
    """Bytes as megabytes, without the unit: "51.2"."""
    return f"{size / 1e6:,.0f}" if size >= 99.95e6 else f"{size / 1e6:.1f}"


def duration(seconds: float) -> str:
    """A duration: "8.5 s", "42 s", "3 min 12 s", "2 h 5 min"; an en dash if it is undefined."""
    return progress.duration(seconds, 60) if math.isfinite(seconds) else NOTHING


def amount(number: float) -> str:
    """A count with a unit prefix: 0, 132.9 k, 1.8 G; an en dash if it is unknown."""
    if not math.isfinite(number):
        return NOTHING
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number:g}"


def listed(names: Sequence[str], word: str) -> str:
    """Names in a sentence: "a", "a and b", "a, b and c"; semicolons where a name has a comma."""
    comma = "; " if any("," in name for name in names) else ", "
    return names[0] if len(names) == 1 else f"{comma.join(names[:-1])} {word} {names[-1]}"


def tick(verdict: str) -> str:
    """A tick for yes, a cross for no, a question mark for undecided."""
    return {YES: "\u2713", NO: "\u2717"}.get(verdict, "?")


def interval(low: float, high: float, digits: int = 1) -> str:
    """An interval of shares in per cent: "44.1 to 46.6"; an en dash if it is undefined."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return NOTHING
    return f"{percent(low, digits)} to {percent(high, digits)}"


def in_brackets(low: float, high: float, digits: int = 1) -> str:
    """A 95 % interval of shares behind its value: " (95 % interval 44.1 to 46.6)"; "" if it is undefined."""
    return f" (95 % interval {interval(low, high, digits)})" * math.isfinite(low)


def upper(text: str) -> str:
    """A text as the start of a sentence."""
    return text[:1].upper() + text[1:]


def shorten(text: str, length: int) -> str:
    """The text, shortened to at most ``length`` characters."""
    return text if len(text) <= length else text[: length - 1] + "\u2026"


class Difference(NamedTuple):
    """A difference of two AUCs with its paired 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    @property
    def side(self) -> int:
        """1 if the interval is above 0, -1 if it is below, 0 if it leaves the sign open."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    @property
    def verdict(self) -> str:
        """What the interval says about the sign: "better", "worse" or "not distinguishable"."""
        return {1: "better", -1: "worse", 0: "not distinguishable"}[self.side]


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
    frame: "pd.DataFrame"

    def __repr__(self) -> str:
        return f"{self.title}\n{self._in_percent().to_string(index=False)}"

    def _repr_html_(self) -> str:
        return html_table(self.title, self._in_percent())

    def _in_percent(self) -> "pd.DataFrame":
        """The frame as text."""
        numbers = 100 * self.frame[["auc", "other_auc", "difference", "low", "high"]]
        shown = self.frame.drop(columns=[*numbers.columns, "verdict"])
        shown["average"] = [f"{auc:.1f}" for auc in numbers["auc"]]
        shown["other average"] = [f"{auc:.1f}" for auc in numbers["other_auc"]]
        shown["difference"] = [f"{difference:+.2f}" for difference in numbers["difference"]]
        shown["95 % interval"] = [
            f"{low:+.2f} to {high:+.2f}" for low, high in zip(numbers["low"], numbers["high"], strict=True)
        ]
        shown["verdict"] = self.frame["verdict"]
        return shown


def make_differences(title: str, lines: Sequence[Compared]) -> Differences:
    """Lines of a comparison as a table."""
    import pandas as pd

    rows = [
        {
            **names, "auc": auc, "other_auc": other_auc, "difference": lead.value, "low": lead.low, "high": lead.high,
            "verdict": lead.verdict,
        }
        for names, auc, other_auc, lead in lines
    ]  # fmt: skip
    return Differences(title, pd.DataFrame(rows))


def html_table(title: str, frame: "pd.DataFrame", notes: Sequence[str] = ()) -> str:
    """A table with its title above and notes below, for ``_repr_html_``."""
    table = frame.to_html(index=False, border=0)
    return f"<p><b>{escape(title)}</b></p>\n{table}" + "".join(f"\n<p>{escape(note)}</p>" for note in notes)
