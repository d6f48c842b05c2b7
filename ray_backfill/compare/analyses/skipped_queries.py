"""The queries without a right answer in the gallery, which no mean counts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pandas as pd

from ray_backfill.compare.analyses import Analysis
from ray_backfill.core.schema import block

if TYPE_CHECKING:
    from ray_backfill.compare.resolve import Comparison


@dataclass(frozen=True)
class SkippedQuery:
    """A query without a right answer in the gallery."""

    id: Annotated[str, "as in the table of queries, or of the gallery if its items are the queries"]
    row: Annotated[int, "place in this table, from 0"]


def skipped_queries(comparison: "Comparison", *_: object) -> pd.DataFrame | None:
    """The queries without a right answer; None if each has one."""
    table, skipped = comparison.folder.queries or comparison.folder.gallery, comparison.truth.skipped
    return block(SkippedQuery, table.id[skipped].astype(str), skipped) if len(skipped) else None


ANALYSES = (Analysis("skipped_queries", SkippedQuery, skipped_queries),)
