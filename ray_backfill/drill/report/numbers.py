"""Formats the numbers of a live drill, for both the terminal and the HTML page."""

import math

from ray_backfill.drill.tables import CheckpointRow
from ray_backfill.page.numbers import MINUS, NOTHING


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
    """A duration: "8.5 s", "42 s", "3 min 12 s", "2 h 5 min"."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def points(share: float) -> str:
    """A difference of two shares in points, with its sign; "0" only if they are equal, never by rounding."""
    if not math.isfinite(share):
        return NOTHING
    if share == 0:
        return "0"
    size = 100 * abs(share)
    text = f"{size:.2f}" if size >= 0.005 else f"{size:.0e}"
    return f"{'+' if share > 0 else MINUS}{text}"


def progress(checkpoint: CheckpointRow) -> str:
    """The share that is backfilled: "40 %", "33.3 %"."""
    return f"{100 * checkpoint.t:.4g} %"
