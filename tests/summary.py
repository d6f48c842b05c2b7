"""A row of summary.parquet for hand-made results folders: what a test leaves out gets a plausible value."""

import math
from typing import Any

from ray_backfill.compare.tables import SummaryRow
from ray_backfill.core.schema import YES

NAN = math.nan


def summary_row(method: str, order: str, merge: str, **values: Any) -> SummaryRow:
    """A row; numbers that are not given are NaN, verdicts yes, moments 3."""
    numbers = {
        name: NAN
        for name in SummaryRow.__dataclass_fields__
        if name not in ("method", "order", "merge", "title", "metric", "moments")
    }
    verdicts = dict.fromkeys(("starts_at_old", "ends_at_new", "never_falls"), YES)
    return SummaryRow(method, order, merge, **numbers | verdicts | {"moments": 3} | values)
