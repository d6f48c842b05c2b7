"""Columns of a split by their names: read once, of these items only, with errors that name file and column."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.schema import read_checked
from ray_backfill.data.folder import EmbeddingTable, read_folder
from ray_backfill.data.write import vector_column, write_parquet


def split(folder: Path, name: str, rows: int, **columns: object) -> None:
    vectors = vector_column(np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32))
    table = {"id": np.arange(rows), "old": vectors, "new": vectors, **columns}
    write_parquet(folder / f"{name}.parquet", pa.table(table))


@pytest.fixture
def gallery(tmp_path: Path) -> EmbeddingTable:
    shop = pa.array(["a", None, "b", "c"]).dictionary_encode()
    others: dict[str, object] = {"price": [1.5, 2.0, 2.5, 3.0], "tenant": ["x", "y", "x", "z"], "label": [7, 7, 8, 8]}
    split(tmp_path, "gallery", 4, shop=shop, **others)
    return read_folder(tmp_path).gallery


def test_any_column_is_read_by_its_name(gallery: EmbeddingTable) -> None:
    assert gallery.column("shop").to_pylist() == ["a", None, "b", "c"]
    assert gallery.column("shop").type == pa.string()
    assert gallery.texts("tenant").tolist() == ["x", "y", "x", "z"]
    numbers = gallery.find_numbers("price")
    assert numbers is not None
    assert numbers.tolist() == [1.5, 2.0, 2.5, 3.0]
    assert gallery.find_numbers("nothing") is None
    assert gallery.texts("label") is gallery.label
    assert (gallery.has_column("price"), gallery.has_column("nothing")) == (True, False)
    assert gallery.pick("tenant", np.array([3, 0])) == ["z", "x"]


def test_a_column_is_read_once(gallery: EmbeddingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    read = list[str]()

    def reading(file: Path, columns: list[str]) -> pa.Table:
        read.extend(columns)
        return read_checked(file, columns)

    monkeypatch.setattr("ray_backfill.data.columns.read_checked", reading)
    for _ in range(2):
        gallery.column("tenant"), gallery.texts("tenant"), gallery.find_numbers("price"), gallery.texts("label")
    assert read == ["tenant", "price"]


def test_columns_of_some_items_are_theirs(gallery: EmbeddingTable) -> None:
    some = gallery.take(np.array([3, 1, 0])).take(np.array([0, 2]))
    assert some.texts("tenant").tolist() == ["z", "x"]
    assert some.column("shop").to_pylist() == ["c", "a"]
    assert some.pick("price", np.array([1])) == [1.5]
    numbers = some.find_numbers("price")
    assert numbers is not None
    assert numbers.tolist() == [3.0, 1.5]


def test_a_missing_or_wrong_column_is_named(gallery: EmbeddingTable) -> None:
    for read in (gallery.column, gallery.texts):
        with pytest.raises(InputError, match=r"gallery\.parquet has no column 'nothing'; it has: id, old, new, shop,"):
            read("nothing")
    with pytest.raises(InputError, match=r"gallery\.parquet, column 'shop': missing value in row 1"):
        gallery.texts("shop")
    with pytest.raises(InputError, match=r"gallery\.parquet, column 'tenant' must hold numbers, not text"):
        gallery.find_numbers("tenant")


def test_the_log_is_read_once(tmp_path: Path, gallery: EmbeddingTable, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = read_folder(tmp_path)
    assert folder.log is None
    split(tmp_path, "log", 3)
    folder = read_folder(tmp_path)
    log = folder.log
    assert log is not None
    assert len(log) == 3
    monkeypatch.setattr("ray_backfill.data.folder.read_table", None)
    assert folder.log is log
