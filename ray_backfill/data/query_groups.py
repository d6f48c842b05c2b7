"""Slices: the queries in groups, by a column of their table.

Shapes: Q all queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_backfill.core.errors import InputError
from ray_backfill.data.columns import in_words, is_text
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.engine.systems import GroundTruth, IntArray

# The column that is a slice if no others are asked for. Its numbers are names.
GROUP = "group"
# A column of numbers with more distinct values is cut into quarters.
MOST_NUMBERS = 10
# The largest groups of a column; the others are one group.
MOST_GROUPS = 20
OTHER, MISSING, EMPTY = "(other)", "(none)", "(empty)"


@dataclass(frozen=True)
class Slice:
    """The queries in groups. column: name in the table of queries. groups: names. of_query: (Q,) index of the group."""

    column: str
    groups: tuple[str, ...]
    of_query: IntArray


def resolve_slices(folder: EmbeddingFolder, columns: Sequence[str], truth: GroundTruth) -> tuple[Slice, ...]:
    """Read the slices that these columns stand for; by default the column ``group``, if there is one.

    Text, true/false values and up to 10 distinct numbers make a group for each value, at most the 20 with the most
    scored queries and one of all others. More numbers are cut at the quartiles of the scored queries.

    Raises:
        InputError: The table of queries has no such column, or it holds something else.
    """
    table = folder.queries or folder.gallery
    names = dict.fromkeys(columns or ([GROUP] if table.group is not None else []))
    scored = np.setdiff1d(np.arange(truth.n_queries), truth.skipped)
    return tuple(_slice(name, table.column(name), scored) for name in names)


def _slice(name: str, column: pa.ChunkedArray, scored: IntArray) -> Slice:
    kind = column.type
    if pa.types.is_floating(kind):
        column = pc.if_else(pc.is_nan(column), None, column)
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if not (is_number or is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise InputError(
            f"--slices: column {name!r} must hold text, numbers or true/false values, not {in_words(kind)}"
        )
    # By way of the values, which stay in their order: 2 before 10.
    distinct = sorted(pc.unique(column.drop_null()).to_pylist())
    place = {value: number for number, value in enumerate(distinct)} | {None: -1}
    of_query = np.array([place[value] for value in column.to_pylist()], np.int64)
    if is_number and name != GROUP and len(distinct) > MOST_NUMBERS:
        groups, of_query = _quarters(distinct, of_query, scored)
    else:
        groups = _named(distinct)
    if (of_query < 0).any():
        of_query[of_query < 0] = len(groups)
        groups.append(MISSING)
    if len(groups) > MOST_GROUPS:  # those with the most scored queries stay, in their order
        sizes = np.bincount(of_query[scored], minlength=len(groups))
        kept = np.sort(np.argsort(-sizes, kind="stable")[:MOST_GROUPS])
        number = np.full(len(groups), MOST_GROUPS)
        number[kept] = np.arange(MOST_GROUPS)
        groups, of_query = [*(groups[i] for i in kept), OTHER], number[of_query]
    return Slice(name, tuple(groups), of_query)


def _named(distinct: Sequence[Any]) -> list[str]:
    """A name for each value: whole numbers in full, others with as few digits, from six on, as keep them apart."""
    for digits in range(6, 18):
        names = []
        for value in distinct:
            if isinstance(value, bool):
                names.append("true" if value else "false")
            elif isinstance(value, float):
                is_whole = value.is_integer() and abs(value) < 2**53
                names.append(str(int(value)) if is_whole else f"{value:.{digits}g}")
            else:
                names.append(f'"{value}"' if value in (OTHER, MISSING, EMPTY) else str(value) or EMPTY)
        if len(set(names)) == len(names):
            break
    return names


def _quarters(distinct: Sequence[Any], place: IntArray, scored: IntArray) -> tuple[list[str], IntArray]:
    """Names of four groups with about as many scored queries each, fewer if many values are equal; and (Q,) the group.

    place: (Q,) index of each query's value among the sorted ``distinct``; -1 for none, as in the result.
    """
    groups, of_query, known = list[str](), np.full(len(place), -1), place >= 0
    own = place[scored][known[scored]]
    if not len(own):
        return groups, of_query
    quarter = np.searchsorted(np.quantile(own, [0.25, 0.5, 0.75], method="inverted_cdf"), place, side="left")
    members = {number: found for number in range(4) if (found := known & (quarter == number)).any()}
    ends = {number: (int(place[found].min()), int(place[found].max())) for number, found in members.items()}
    some = sorted({end for pair in ends.values() for end in pair})
    label = dict(zip(some, _named([distinct[end] for end in some]), strict=True))
    for number, (first, last) in ends.items():
        of_query[members[number]] = len(groups)
        groups.append(f"{label[first]} to {label[last]} (quarter {number + 1} of 4)")
    return groups, of_query
