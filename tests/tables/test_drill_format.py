"""The page about the format of results has the tables of a drill as the row types describe them, word for word."""

import pytest

from ray_backfill.tables.drill import TABLES
from ray_backfill.tables.journal import describe_entries
from ray_backfill.tables.schema import describe
from tests.test_structure import ROOT

_, SECTION = (ROOT / "docs" / "results-format.md").read_text(encoding="utf-8").split("## `RUN/live`")


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_a_drill(name: str) -> None:
    _, described = SECTION.split(f"\n`{name}.parquet`: ")
    assert described[described.index("| column") :].startswith(describe(TABLES[name]) + "\n\n")


def test_entries_of_the_journal() -> None:
    assert f"\n\n{describe_entries()}\n" in SECTION
