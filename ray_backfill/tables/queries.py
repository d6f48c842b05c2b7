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
