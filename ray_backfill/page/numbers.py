"""Numbers and verdicts in words, for terminals and pages."""

import math
from collections.abc import Sequence

from ray_backfill.core.schema import NO, YES

MINUS = "\u2212"

NOTHING = "\u2013"


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
