"""Hours, dollars and gigabytes in words."""

import math
from collections.abc import Callable

from ray_backfill.page.numbers import MINUS, NOTHING


def hours(number: float) -> str:
    """A time: "40 min", "9.5 h", "12 days"; "never" if it is infinite, an en dash if unknown."""
    if math.isnan(number):
        return NOTHING
    if math.isinf(number):
        return "never"
    if number < 1:
        return f"{60 * number:.0f} min"
    return f"{number:.1f} h" if number < 10 else f"{number:.0f} h" if number < 100 else f"{number / 24:,.1f} days"


def dollars(number: float) -> str:
    """Money: "$0.0042", "$0.42", "$41", "$1,200"; an en dash if unknown."""
    if math.isnan(number):
        return NOTHING
    if math.isinf(number):
        return "any sum"
    text = f"{abs(number):,.2f}" if abs(number) < 10 else f"{abs(number):,.0f}"
    text = f"{abs(number):.2g}" if 0 < abs(number) < 0.095 else text
    return f"{MINUS * (number < 0)}${text}"


def spread(low: float, middle: float, high: float, show: Callable[[float], str] = hours) -> str:
    """The middle of runs with their 10 and 90 % in brackets, if these differ."""
    if math.isnan(middle):
        return NOTHING
    limits = f" ({show(low)} to {show(high)})" if show(low) != show(high) else ""
    return f"{show(middle)}{limits}"
