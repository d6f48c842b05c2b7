"""What a way to know right answers is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.store import EmbeddingFolder
from ray_backfill.engine.systems import Filter, GroundTruth, IntArray


@dataclass(frozen=True, eq=False)
class Truth:
    """Right answers and what a report must say of them.

    ground: the right answers. facts: plain data for the manifest. notes: sentences for the report.
    """

    ground: GroundTruth
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TruthRequest:
    """What ``--truth`` asks for. k: the number in a name such as new-top10; 0 if it has none. argument: the word that
    follows the name. distance: of the comparison. refuse_unknown_ids: whether ids that the gallery lacks are an error.
    filter: what a query can find; None for all items.
    """

    k: int
    argument: str
    distance: str
    refuse_unknown_ids: bool = True
    filter: Filter | None = None


@dataclass(frozen=True)
class TruthKind:
    """A way to know right answers.

    name: as on the command line; a K in it stands for any number above 0. argument: what the word after the name is; ""
    if there is none. explains: a sentence for the help. make: makes the truth of a folder; raises InputError.
    is_retention: the new model's own results are taken as right, so nothing is said of how good they are.
    """

    name: str
    argument: str
    explains: str
    make: Callable[[EmbeddingFolder, TruthRequest], Truth]
    is_retention: bool = False


def positions_of(ids: Sequence[Any] | NDArray[Any], gallery_ids: NDArray[Any]) -> IntArray:
    """(n,) gallery positions of ids, -1 for those that the gallery lacks. Ids are compared as text."""
    if not len(ids):
        return np.empty(0, np.int64)
    at = pd.Index(gallery_ids.astype(str)).get_indexer(pd.Index(np.asarray(ids).astype(str)))
    return at.astype(np.int64)


def from_pairs(
    folder: EmbeddingFolder, where: str, queries: NDArray[Any], items: NDArray[Any], grades: NDArray[np.float64]
) -> tuple[GroundTruth, tuple[str, ...]]:
    """The ground truth of judged pairs, and notes on ids that the folder lacks.

    where: for messages. queries, items: (n,) ids. grades: (n,) grades above 0.

    Raises:
        InputError: No pair has both its ids in the folder, or a pair comes twice.
    """
    table = folder.queries or folder.gallery
    query_n, item_n = positions_of(queries, table.id), positions_of(items, folder.gallery.id)
    both = (query_n >= 0) & (item_n >= 0)
    if not both.any():
        raise InputError(
            f"no line of {where} has a query and an item of {folder.path}: compare its ids with the column 'id' of "
            "queries and gallery"
        )
    pairs = pd.DataFrame({"query": query_n[both], "item": item_n[both], "grade": grades[both]})
    if pairs.duplicated(["query", "item"]).any():
        twice = pairs[pairs.duplicated(["query", "item"])].iloc[0]
        raise InputError(
            f"{where} judges item {folder.gallery.id[int(twice['item'])]} twice for query "
            f"{table.id[int(twice['query'])]}; keep one line"
        )
    positives: list[IntArray] = [np.empty(0, np.int64)] * len(table)
    given: list[NDArray[np.float64]] = [np.empty(0)] * len(table)
    for query, rows in pairs.groupby("query"):
        positives[int(str(query))], given[int(str(query))] = rows["item"].to_numpy(), rows["grade"].to_numpy()
    ignored = [[query] for query in range(len(table))] if folder.queries is None else None
    graded = given if len(set(pairs["grade"])) > 1 else None
    ground = GroundTruth.from_positives(positives, ignored, n_gallery=len(folder.gallery), grades=graded)
    return ground, _notes(where, int((query_n < 0).sum()), int(((query_n >= 0) & (item_n < 0)).sum()))


def _notes(where: str, unknown_queries: int, unknown_items: int) -> tuple[str, ...]:
    found = []
    if unknown_queries:
        found.append(f"Lines of {where} about queries that the folder lacks: {unknown_queries:,}. They were not used.")
    if unknown_items:
        found.append(
            f"Right answers of {where} that are not in the gallery: {unknown_items:,}. They were left out; with them "
            "every recall would be lower."
        )
    return tuple(found)
