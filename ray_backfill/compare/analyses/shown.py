"""The queries that lose and gain most, with texts and thumbnails for a page: read for these rows only.

Shapes: Q scored queries.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from ray_backfill.compare.analyses import Analysis
from ray_backfill.compare.analyses.flips import BACKWARD, FORWARD, LOST, WON
from ray_backfill.compare.results import ResultsData
from ray_backfill.compare.tables import OLD
from ray_backfill.core.schema import rows_of
from ray_backfill.page.numbers import NOTHING as DASH
from ray_backfill.page.numbers import percent, percent_sign, shorten, upper
from ray_backfill.page.sections import Cell, Folded, Note, Section, table_of, word

if TYPE_CHECKING:
    from ray_backfill.compare.replay import Curves, Flips, Key
    from ray_backfill.compare.resolve import Comparison, Pictures
    from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
    from ray_backfill.engine.lists import RankedLists
    from ray_backfill.engine.systems import IntArray

# Values of the column ``kind``.
WORST, BEST = "worst", "best"
# Queries of each kind.
MOST = 10
_SYSTEMS = {BACKWARD: "not backfilled yet", FORWARD: "backfilled"}


@dataclass(frozen=True)
class ShownQuery:
    """One of the queries that lose or gain most with the leading method, with what a page needs to show them."""

    kind: Annotated[str, f"`{WORST}` or `{BEST}`: the average over the backfill is below or above old"]
    method: Annotated[
        str, "the best method, in its best order and merge, which the main sentence is about; the primary metric"
    ]
    order: str
    merge: str
    metric: str
    query: Annotated[str, "id of the query, its text (empty without a column `text`), and a thumbnail as a data URI"]
    query_text: str
    query_image: str
    old: Annotated[float, "metric of the query in {old, old}, before and after the backfill, and its auc"]
    start: float
    end: float
    auc: float
    at_start: Annotated[
        str, f"`{LOST}` or `{WON}` if the first result is right in only one of old and the start of the method"
    ]
    changes: Annotated[int, "how often its first result changes between right and wrong"]
    change: Annotated[str, f"kind of the last loss of a `{WORST}` query or the last win of a `{BEST}` one; else empty"]
    t: Annotated[float, "progress at this change; NaN without one"]
    before: Annotated[
        str, "id, text, thumbnail and system of what was first before this change; empty if not known, as with rrf"
    ]
    before_text: str
    before_image: str
    before_system: str
    first: Annotated[str, "the same for what is first after it"]
    first_text: str
    first_image: str
    first_system: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The method, the order and the merge."""
        return self.method, self.order, self.merge


class _Thing(NamedTuple):
    """A query or an item as a page shows it: its id, its text and a thumbnail; each may be empty."""

    id: str = ""
    text: str = ""
    image: str = ""


def compute(comparison: "Comparison", curves: "Curves", so_far: ResultsData) -> tuple[ShownQuery, ...] | None:
    """The worst and best queries of the row that the main sentence is about; None if only references took part."""
    metric = so_far.primary
    leading = next((row for row in so_far.candidates(metric) if not row.is_reference), None)
    if leading is None:
        return None
    key = (leading.method, *leading.variant)
    return shown_queries(comparison.folder, curves, key, metric, comparison.pictures) or None


def first_results(curves: "Curves", shown: pd.DataFrame | None) -> dict[str, int]:
    """How many queries lose and win their right first result on the way, in the curve that the shown queries are of."""
    if shown is None:
        return {}
    flips = curves[rows_of(ShownQuery, shown)[0].key].known_flips
    lost, won = (len(np.unique(flips.query[flips.is_lost == is_lost])) for is_lost in (True, False))
    return {LOST: lost, WON: won}


def shown_queries(
    folder: "EmbeddingFolder", curves: "Curves", key: "Key", metric: str, pictures: "Pictures | None" = None
) -> tuple[ShownQuery, ...]:
    """At most 10 worst and 10 best queries of a curve, by their average over the backfill against old.

    Cost: reads the columns ``text`` and ``image`` where these queries and what stood first are stored.
    """
    from ray_backfill.compare.tabulate import of_reference
    from ray_backfill.data.cleaning import copied_from
    from ray_backfill.engine.statistics import auc_draws

    replayed, old = curves[key], curves[of_reference(OLD, key[1])]
    curve, values, before = replayed.curve, replayed.curve.per_query[metric], old.curve.per_query[metric][:, 0]
    auc = auc_draws(curve.t, values, curve.is_step)
    # A query whose average differs from old by less than 1e-9 neither gains nor loses.
    picked = [(WORST, q) for q in np.argsort(auc - before, kind="stable")[:MOST] if auc[q] - before[q] < -1e-9]
    # Not the reverse of the first order: of equal queries, the first one comes first.
    picked += [(BEST, q) for q in np.argsort(before - auc, kind="stable")[:MOST] if auc[q] - before[q] > 1e-9]
    flips = replayed.known_flips
    decisive = [_decisive(flips, q, kind) for kind, q in picked]
    queries, gallery = folder.queries or folder.gallery, folder.gallery
    root, _ = copied_from(folder.path)
    names = _things(root, queries, curve.scored[np.array([q for _, q in picked], np.int64)], pictures)
    known = [k for k in decisive if k is not None]
    items = np.unique(np.concatenate([flips.before.item[known], flips.after.item[known]]))
    shown_items = _things(root, gallery, items[items >= 0], pictures)
    was_right, is_right = old.first_top1[:, 0], replayed.first_top1[:, 0]
    return tuple(
        ShownQuery(
            kind,
            *key,
            metric,
            *names[int(curve.scored[q])],
            float(before[q]),
            float(values[q, 0]),
            float(values[q, -1]),
            float(auc[q]),
            "" if was_right[q] == is_right[q] else LOST if was_right[q] else WON,
            int((flips.query == q).sum()),
            "" if k is None else (LOST if flips.is_lost[k] else WON),
            float("nan") if k is None else float(replayed.t[flips.moment[k]]),
            *_told(shown_items, flips.before, k),
            *_told(shown_items, flips.after, k),
        )
        for (kind, q), k in zip(picked, decisive, strict=True)
    )


def _decisive(flips: "Flips", query: int, kind: str) -> int | None:
    """The last loss of a worst query, or the last win of a best one; without one, the last change."""
    changes = np.flatnonzero(flips.query == query)
    wanted = changes[flips.is_lost[changes] == (kind == WORST)]
    if len(wanted):
        return int(wanted[-1])
    return int(changes[-1]) if len(changes) else None


def _told(shown: Mapping[int, _Thing], first: "RankedLists", k: int | None) -> tuple[str, str, str, str]:
    """Id, text, thumbnail and system of the item that was first before or after change k."""
    if k is None or first.item[k, 0] < 0:
        return *_Thing(), ""
    return *shown[int(first.item[k, 0])], FORWARD if first.is_forward[k, 0] else BACKWARD


def _things(folder: Path, table: "EmbeddingTable", rows: "IntArray", pictures: "Pictures | None") -> dict[int, _Thing]:
    from ray_backfill.data.columns import IMAGE, TEXT
    from ray_backfill.images.decode import read_inside, thumbnail

    things, ids = {}, table.id[rows].astype(str).tolist()
    images = table.pick(IMAGE, rows) if pictures is None else pictures(table.path.stem, table.id[rows])
    for row, name, text, image in zip(rows, ids, table.pick(TEXT, rows), images, strict=True):
        # Given as bytes, as a path below the folder, or as both, like Hugging Face does.
        content = (image.get("bytes") or image.get("path")) if isinstance(image, dict) else image
        if not isinstance(content, bytes):
            content = read_inside(folder, content) if isinstance(content, str) else b""
        things[int(row)] = _Thing(name, clean(text), thumbnail(content))
    return things


def clean(text: Any, most: int = 160) -> str:
    """A text in one line, without control characters, cut if it is long; "" for anything else."""
    if not isinstance(text, str):
        return ""
    return shorten(" ".join("".join(c if c.isprintable() else " " for c in text[: 20 * most]).split()), most)


def section(results: ResultsData) -> Section | None:
    """A table of the queries that lose most, and one of those that gain most."""
    rows: tuple[ShownQuery, ...] = results.table_of("shown")
    if not rows:
        return None
    several = results.evaluation.get("permutations", 1)
    words = (
        f"{counted(results)} Below are the queries whose average over the backfill is furthest below or above the old "
        f"service: {shown_of(results)}, {results.primary} in per cent. "
    )
    words += (
        "The items are those that were first before and after the change that is named; the second one took the place "
        "of the first. "
        if any(row.before or row.first for row in rows)
        else "What stood first is not kept for this merge. "
    )
    if several > 1:
        words += f"In a random order values are means over {several} permutations, and changes those of the first one."
    tables = []
    for kind, title in ((WORST, "Queries that lose most"), (BEST, "Queries that gain most")):
        lines = [
            [
                ("query", Cell(_html(row.query, row.query_text, row.query_image))),
                ("old service", Cell(percent(row.old))),
                ("start", Cell(percent(row.start))),
                ("end", Cell(percent(row.end))),
                ("average", Cell(percent(row.auc))),
                ("right first result", word(_change(row))),
                ("first before", word(_html(row.before, row.before_text, row.before_image, row.before_system))),
                ("first after", word(_html(row.first, row.first_text, row.first_image, row.first_system))),
            ]
            for row in rows
            if row.kind == kind
        ]
        if lines:
            tables.append(Folded(title, [table_of(title, lines, "things")], kind == rows[0].kind))
    has_images = any(row.query_image or row.before_image or row.first_image for row in rows)
    note = Note(f"All changes of all methods, with the items: {results.file('flips.parquet')}.")
    return Section("What happened to whom?", [words, *tables, note], has_images, told(results))


def _html(name: str, text: str, image: str, system: str = "") -> Markup:
    """A query or an item in a cell. Only images that a run wrote are shown."""
    is_ours = re.fullmatch(r"data:image/jpeg;base64,[A-Za-z0-9+/]+=*", image)
    return Markup("{}{}{}{}").format(
        Markup('<img class="thumb" src="{}" alt="">').format(image) if is_ours else "",
        name or DASH * (not text and not is_ours),
        Markup('<span class="text">{}</span>').format(text) if text else "",
        Markup('<span class="text faint">{}</span>').format(_SYSTEMS[system]) if system in _SYSTEMS else "",
    )


class Example(NamedTuple):
    """A query whose first result changes, in a sentence, and as cells: the query, what was first before and after."""

    sentence: str
    things: tuple[tuple[str, Markup], ...]


def examples(results: ResultsData) -> list[Example]:
    """The first query that loses its right first result, and the first that wins one, if texts or images show them."""
    told = []
    for kind, change in ((WORST, LOST), (BEST, WON)):
        rows: tuple[ShownQuery, ...] = results.table_of("shown")
        can_be_seen = (
            row for row in rows if (row.query_text and row.first_text) or (row.query_image and row.first_image)
        )
        row = next((row for row in can_be_seen if (row.kind, row.change) == (kind, change)), None)
        if row is not None and row.before and row.first:
            told.append(
                Example(
                    f"A query that {'loses' if change == LOST else 'wins'} a right first result, at "
                    f"{percent_sign(row.t, 0)} of the backfill: {row.metric} {percent(row.old)} in the old service, "
                    f"{percent(row.auc)} on average with {results.titles.get(row.method, row.method)}.",
                    (
                        ("query", _html("", row.query_text, row.query_image)),
                        ("found first before", _html("", row.before_text, row.before_image)),
                        ("finds first now", _html("", row.first_text, row.first_image)),
                    ),
                )
            )
    return told


def _change(row: ShownQuery) -> str:
    at_start = f"{row.at_start} on the day of the switch" if row.at_start in (LOST, WON) else ""
    if not row.change or not math.isfinite(row.t):
        return at_start or "its first result stays right, or stays wrong"
    often = f", of {row.changes} changes in all" if row.changes > 1 else ""
    on_the_way = f"{row.change} at {percent_sign(row.t, 0)} of the backfill{often}"
    return f"{at_start}; {on_the_way}" if at_start else on_the_way


def shown_of(results: ResultsData) -> str:
    """Of which method, order and merge they are: "full RM, random order"."""
    row = results.table_of("shown")[0]
    merge = f", {row.merge} merge" if len(results.merges) > 1 else ""
    return f"{results.titles.get(row.method, row.method)}, {results.order_name(row.order)} order{merge}"


def counted(results: ResultsData) -> str:
    """How many queries lose and win their first result after the switch; "" if it is not known."""
    counts = results.manifest.first_results
    if LOST not in counts or WON not in counts:
        return ""
    lost = f"{counts[LOST]:,} {'query loses' if counts[LOST] == 1 else 'queries lose'}"
    won = f"{counts[WON]:,} {'wins' if counts[WON] == 1 else 'win'} one"
    return f"{upper(shown_of(results))}: between the day of the switch and the end, {lost} a right first result, {won}."


def told(results: ResultsData) -> tuple[str, ...]:
    """Two lines for the terminal: how many queries change, and which lose most.

    () if none are known, or if they are not of the row that the main sentence above them is about.
    """
    rows, best = results.table_of("shown"), results.best()
    if not rows or best is None or (best.method, *best.variant) != rows[0].key or not (said := counted(results)):
        return ()
    worst = [
        f"{shorten(' '.join(row.query.split()), 40)} ({percent(row.old)} \u2192 {percent(row.auc)} on average)"
        for row in rows
        if row.kind == WORST
    ]
    if not worst:
        return (said,)
    return said, f"Queries that lose most: {', '.join(worst[:3])}. All changes: {results.file('flips.parquet')}."


ANALYSES = (Analysis("shown", ShownQuery, compute, section, needs=("checks",), place=30),)
