"""docs/results-format.md contains the tables exactly as the row types describe them."""

import pytest

from ray_backfill.compare.analyses import all_tables
from ray_backfill.core.schema import describe
from ray_backfill.drill import tables as drill
from ray_backfill.drill.journal import describe_entries
from ray_backfill.forecast import tables as forecast
from ray_backfill.plan import tables as plan
from tests.test_structure import ROOT

RESULTS, DRILL = (ROOT / "docs" / "results-format.md").read_text(encoding="utf-8").split("## `RUN/live`")
TABLES = [(RESULTS, f"`RUN/results/{name}.parquet`", row) for name, row in all_tables().items()]
TABLES += [(DRILL, f"\n`{name}.parquet`: ", row) for name, row in drill.TABLES.items()]
FORECAST = (("sample", forecast.SampledItem), *forecast.TABLES.items())
TABLES += [
    (RESULTS, f"`RUN/forecast/{name}.parquet`" if name != "sample" else "`DIR/sample.parquet`", row)
    for name, row in FORECAST
]
TABLES += [(RESULTS, f"`RUN/plan/{name}.parquet`", row) for name, row in plan.TABLES.items()]


@pytest.mark.parametrize(("page", "heading", "row_type"), TABLES, ids=[row.__name__ for _, _, row in TABLES])
def test_tables(page: str, heading: str, row_type: type) -> None:
    _, described = page.split(heading)
    assert described[described.index("| column") :].startswith(describe(row_type) + "\n\n")


def test_entries_of_the_journal() -> None:
    assert f"\n\n{describe_entries()}\n" in DRILL
