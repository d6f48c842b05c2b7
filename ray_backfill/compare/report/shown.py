"""The queries that lose and gain most, as a page and the terminal show them. Computes nothing."""

import math
import re
from typing import NamedTuple

from ray_backfill.compare.report.results import Results
from ray_backfill.compare.tables.queries import BACKWARD, BEST, FORWARD, LOST, WON, WORST, ShownQuery
from ray_backfill.page.numbers import percent, percent_sign

_TITLES = {WORST: "Queries that lose most", BEST: "Queries that gain most"}
_SYSTEMS = {BACKWARD: "not backfilled yet", FORWARD: "backfilled"}
# What the run writes. Anything else in the table is not shown.
_IMAGE = re.compile(r"data:image/jpeg;base64,[A-Za-z0-9+/]+=*")
_NAMED = 3  # queries that the terminal names
_ID_CHARACTERS = 40  # of an id in the terminal


class Thing(NamedTuple):
    """A query or an item: its id, its text, a thumbnail and what is to be said of it; each may be empty."""

    id: str
    text: str
    image: str
    note: str = ""


class Line(NamedTuple):
    """A query: its values in per cent, what happens to its first result, and what is first before and after that."""

    query: Thing
    values: list[str]
    change: str
    before: Thing
    after: Thing


def shown_lines(results: Results) -> list[tuple[str, list[Line]]]:
    """Heading and lines: the queries that lose most, then those that gain most."""
    found = {kind: [_line(row) for row in results.shown if row.kind == kind] for kind in _TITLES}
    return [(_TITLES[kind], lines) for kind, lines in found.items() if lines]


def shown_of(results: Results) -> str:
    """Of which method, order and merge they are: "full RM, random order"; "" without any."""
    if not results.shown:
        return ""
    row = results.shown[0]
    merge = f", {row.merge} merge" if len(results.merges) > 1 else ""
    return f"{results.titles.get(row.method, row.method)}, {results.order_name(row.order)} order{merge}"


def counted(results: Results) -> str:
    """How many queries lose and win their first result after the switch; "" if it is not known."""
    counts = results.manifest.first_results
    if not results.shown or LOST not in counts or WON not in counts:
        return ""
    lost = f"{counts[LOST]:,} {'query loses' if counts[LOST] == 1 else 'queries lose'}"
    of = shown_of(results)
    won = f"{counts[WON]:,} {'wins' if counts[WON] == 1 else 'win'} one"
    return f"{of[:1].upper()}{of[1:]}: between the day of the switch and the end, {lost} a right first result, {won}."


def told(results: Results) -> tuple[str, ...]:
    """Two lines for the terminal: how many queries change, and which lose most.

    () if none are known, or if they are not of the row that the main sentence above them is about.
    """
    best, said = results.best(), counted(results)
    if not said or best is None or (best.method, *best.variant) != results.shown[0].key:
        return ()
    worst = [row for row in results.shown if row.kind == WORST][:_NAMED]
    names = ", ".join(f"{_short(row)} ({percent(row.old)} \u2192 {percent(row.auc)} on average)" for row in worst)
    return (said, *([f"Queries that lose most: {names}. All changes: flips.parquet."] if worst else []))


def _line(row: ShownQuery) -> Line:
    values = [percent(value) for value in (row.old, row.start, row.end, row.auc)]
    query = Thing(row.query, row.query_text, _image(row.query_image))
    before = Thing(row.before, row.before_text, _image(row.before_image), _SYSTEMS.get(row.before_system, ""))
    after = Thing(row.first, row.first_text, _image(row.first_image), _SYSTEMS.get(row.first_system, ""))
    return Line(query, values, _change(row), before, after)


def _change(row: ShownQuery) -> str:
    """When it was lost or won."""
    at_start = f"{row.at_start} on the day of the switch" if row.at_start in (LOST, WON) else ""
    if not row.change or not math.isfinite(row.t):
        return at_start or "its first result stays right, or stays wrong"
    often = f", of {row.changes} changes in all" if row.changes > 1 else ""
    on_the_way = f"{row.change} at {percent_sign(row.t, 0)} of the backfill{often}"
    return f"{at_start}; {on_the_way}" if at_start else on_the_way


def _image(uri: str) -> str:
    return uri if _IMAGE.fullmatch(uri) else ""


def _short(row: ShownQuery) -> str:
    """The id in one line."""
    name = " ".join(row.query.split())
    return name if len(name) <= _ID_CHARACTERS else f"{name[: _ID_CHARACTERS - 1]}\u2026"
