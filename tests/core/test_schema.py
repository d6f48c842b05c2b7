from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import columns, describe, frame, read_table, rows_of, write_table


@dataclass(frozen=True)
class Row:
    name: Annotated[str, "as typed"]
    low: Annotated[float, "95 % interval"]
    high: float
    holds: Annotated[bool | None, "missing where it was not checked"]


ROWS = [Row("a", 0.25, 0.5, True), Row("b", float("nan"), 1.0, None)]


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.parquet", frame(Row, ROWS))
    table = read_table(tmp_path / "rows.parquet", Row, "run again")
    assert tuple(table.columns) == columns(Row) == ("name", "low", "high", "holds")
    first, second = rows_of(Row, table)
    assert first == ROWS[0]
    assert (second.name, second.high, second.holds) == ("b", 1.0, None)
    assert np.isnan(second.low)


def test_a_table_without_rows_has_its_columns(tmp_path: Path) -> None:
    write_table(tmp_path / "rows.parquet", frame(Row, []))
    assert rows_of(Row, read_table(tmp_path / "rows.parquet", Row, "run again", may_be_empty=True)) == []
    with pytest.raises(InputError, match="has no rows: run again"):
        read_table(tmp_path / "rows.parquet", Row, "run again")


def test_errors_name_the_file_and_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    with pytest.raises(InputError, match="is missing: run again"):
        read_table(path, Row, "run again")
    path.write_text("no Parquet")
    with pytest.raises(InputError, match=r"cannot be read as Parquet .*: run again"):
        read_table(path, Row, "run again")
    write_table(path, pd.DataFrame({"name": ["a"], "high": [1.0]}))
    with pytest.raises(InputError, match="lacks the column low, holds: run again with this version"):
        read_table(path, Row, "run again")


def test_columns_that_share_a_meaning_share_a_line() -> None:
    assert describe(Row).splitlines()[2:] == [
        "| name | string | as typed |",
        "| low, high | float64 | 95 % interval |",
        "| holds | bool | missing where it was not checked |",
    ]
