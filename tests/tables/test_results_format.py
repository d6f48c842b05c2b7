"""The page about the format of results has the tables that the row types describe, word for word."""

from pathlib import Path

import pytest

from ray_backfill.tables.results import TABLES
from ray_backfill.tables.schema import describe

PAGE = Path(__file__).parents[2] / "docs" / "results-format.md"


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_results(name: str) -> None:
    _, section = PAGE.read_text(encoding="utf-8").split(f"`RUN/results/{name}.parquet`")
    assert section[section.index("| column") :].startswith(describe(TABLES[name]) + "\n\n")
