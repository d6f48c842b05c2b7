"""Tables in RUN/results about queries."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class ScoredQuery:
    """A query with a right answer in the gallery, which all means count."""

    id: Annotated[str, "as in the table of queries, or of the gallery if its items are the queries"]
    row: Annotated[int, "place in this table, from 0"]
    weight: Annotated[float, "its weight in every mean, relative to the largest; 1 if the queries have no weights"]


@dataclass(frozen=True)
class SkippedQuery:
    """A query without a right answer in the gallery."""

    id: Annotated[str, "as in the table of queries, or of the gallery if its items are the queries"]
    row: Annotated[int, "place in this table, from 0"]


# Values of the column ``quantity``.
AUC, START, END = "auc", "start", "end"


@dataclass(frozen=True)
class QueryValues:
    """What each query contributes to a mean of the primary metric, with the raw merge."""

    method: Annotated[str, "as in `curves.parquet`, with the raw merge"]
    order: Annotated[
        str, f"empty where the order makes no difference: for `{START}`, `{END}`, and for old, new and offline"
    ]
    metric: Annotated[str, "the primary metric"]
    quantity: Annotated[str, f"`{AUC}`, `{START}` (M_0) or `{END}` (M_1)"]
    values: Annotated[list[float], "one for each query, in the order of `queries.parquet`"]


# Values of the column ``kind`` of flips, and of the columns that name a system.
LOST, WON = "lost", "won"
BACKWARD, FORWARD = "backward", "forward"


@dataclass(frozen=True)
class FlipRow:
    """A change of a query's first result between right and wrong during a backfill, with the raw merge."""

    query: Annotated[str, "id of the query, as in `queries.parquet`"]
    method: Annotated[
        str, "as in `curves.parquet`, without old, new, offline and cascades, which change at one moment only"
    ]
    order: Annotated[str, "of a random order with several permutations, the first permutation"]
    t: Annotated[float, "progress at the first replayed moment after the change, as in `moments.parquet`"]
    kind: Annotated[str, f"`{LOST}`: the first result was right and is wrong now; `{WON}`: the reverse"]
    first: Annotated[
        str,
        "id of the gallery item that is first now, in the place of the one before; empty if nothing can be found",
    ]
    first_system: Annotated[
        str, f"`{BACKWARD}` if it is not backfilled yet, `{FORWARD}` if it is; empty if nothing can be found"
    ]
    before: Annotated[str, "id and system of the item that was first at the moment before"]
    before_system: str


# Values of the column ``kind`` of shown queries.
WORST, BEST = "worst", "best"


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
