"""The data contract: what is read, what is refused, and the messages."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.core import memory
from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import read_folder, read_table
from ray_backfill.data.write import vector_column, write_parquet


def columns(rows: int = 4, first_id: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(first_id)
    return {
        "id": np.arange(first_id, first_id + rows),
        "old": vector_column(rng.normal(size=(rows, 3)).astype(np.float32)),
        "new": vector_column(rng.normal(size=(rows, 2)).astype(np.float16)),
        "label": np.arange(rows) % 2,
    }


def write(path: Path, **changes: Any) -> Path:
    write_parquet(path, pa.table({k: v for k, v in (columns() | changes).items() if v is not None}))
    return path


def test_vectors_come_back_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path / "gallery.parquet")
    table = read_table(path)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(table.old, rng.normal(size=(4, 3)).astype(np.float32))
    assert table.new.dtype == np.float16
    assert table.id.tolist() == [0, 1, 2, 3]
    assert table.camera is None


def test_parts_are_read_in_the_order_of_their_names_and_empty_ones_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "gallery.parquet"
    write_parquet(folder / "part-1.parquet", pa.table(columns(2, first_id=10)))
    write_parquet(folder / "part-0.parquet", pa.table(columns(3, first_id=20)))
    write_parquet(folder / "part-2.parquet", pa.table(columns(1, first_id=30)).slice(0, 0))
    (folder / ".part-3.parquet.99.tmp").write_bytes(b"half a file")
    assert read_table(folder).id.tolist() == [20, 21, 22, 10, 11]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.large_list(pa.float64()), pa.list_(pa.float16(), 3)])
def test_any_list_of_floats_is_a_vector(tmp_path: Path, kind: pa.DataType) -> None:
    rows = np.arange(12, dtype=np.float16).reshape(4, 3)
    path = write(tmp_path / "g.parquet", old=pa.array(list(rows), pa.list_(pa.float16())).cast(kind))
    np.testing.assert_array_equal(read_table(path).old, rows)


@pytest.mark.parametrize("mapped", [False, True])
def test_large_columns_are_mapped_and_any_rows_can_be_read_alone(
    tmp_path: Path, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mapped:
        monkeypatch.setattr("ray_backfill.core.memory.MAPPED_BYTES", 0)
    monkeypatch.setattr("ray_backfill.data.vectors._BATCH_ROWS", 4)
    folder = tmp_path / "gallery.parquet"
    parts = [columns(9, first_id=0), columns(1, first_id=9), columns(14, first_id=10)]
    for i, part in enumerate(parts):
        folder.mkdir(exist_ok=True)
        pq.write_table(pa.table(part), folder / f"part-{i}.parquet", row_group_size=6)
    table = read_table(folder)
    assert isinstance(table.old, np.memmap) == isinstance(table.new, np.memmap) == mapped
    old = np.concatenate([np.stack(part["old"].to_numpy(zero_copy_only=False)) for part in parts])
    np.testing.assert_array_equal(table.old, old)
    for first, last in [(0, 24), (0, 1), (8, 11), (15, 16), (23, 24), (5, 20)]:
        some_old, some_new = table.stored.vectors(first, last, ("old", "new")).values()
        np.testing.assert_array_equal(some_old, table.old[first:last])
        np.testing.assert_array_equal(some_new, table.new[first:last])


def test_a_bad_row_is_named_by_its_place_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_backfill.data.vectors._BATCH_ROWS", 4)
    vectors = np.ones((23, 3), np.float32)
    vectors[17, 1] = np.nan
    path = tmp_path / "g.parquet"
    pq.write_table(pa.table(columns(23) | {"old": vector_column(vectors)}), path, row_group_size=6)
    with pytest.raises(InputError, match=r"column 'old': NaN or infinite values in row 17;"):
        read_table(path)


def test_a_full_temporary_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_backfill.core.memory.MAPPED_BYTES", 0)
    with Path("/dev/full").open("wb", buffering=0) as full:
        monkeypatch.setattr("ray_backfill.data.vectors.TemporaryFile", lambda: full)
        with pytest.raises(InputError, match="set TMPDIR to a folder on a larger disk"):
            read_table(write(tmp_path / "g.parquet"))


def test_strings_serve_as_ids_and_labels(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "g.parquet", id=["a", "b", "c", "d"], label=["x", "y", "x", "y"]))
    assert table.id.tolist() == ["a", "b", "c", "d"]
    assert table.label is not None
    assert table.label.tolist() == ["x", "y", "x", "y"]


NAN_ROW = np.array([[1, 2], [3, np.nan], [4, 5], [np.inf, 1]], np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": pa.array([[1e39, 0.0]] * 4, pa.list_(pa.float64()))}, "infinite values in row 0, 1, 2 and 1 more"),
        ({"new": vector_column(NAN_ROW)}, r"column 'new': NaN or infinite values in row 1, 3"),
        ({"new": pa.array([[1.0, 2.0], [1.0], [1.0, 2.0], []])}, r"different lengths, 2 in row 0 but 1 in row 1, 3; "),
        ({"new": pa.array([[1.0], None, [1.0], [1.0]])}, r"column 'new': missing value in row 1"),
        ({"ignored": [1, 2, 3, 4]}, r"column 'ignored' must hold lists of ids, not integers"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "g.parquet", **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_table(path)
    assert "g.parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


FULL = columns() | {
    "label": ["a", "b", "a", "c"],
    "group": [0, 1, 0, 1],
    "camera": [1, 1, 2, 2],
    "old_score": [0.1, 0.2, 0.3, 0.4],
    "order_score": [4.0, 3.0, 2.0, 1.0],
    "positives": [[1], [2, 3], [], [0]],
    "ignored": [[], [0], [], []],
    "grades": [[1], [2, 3.5], [], [1]],
    "weight": [1, 2, 0.5, 1],
}


@pytest.mark.parametrize("column", FULL)
def test_the_fingerprint_follows_every_column(tmp_path: Path, column: str) -> None:
    write_parquet(tmp_path / "gallery.parquet", pa.table(FULL))
    first = read_folder(tmp_path).fingerprint()
    assert read_folder(tmp_path).fingerprint() == first
    values = FULL[column].to_pylist() if isinstance(FULL[column], pa.Array) else list(FULL[column])
    changed = pa.array(values[::-1], FULL[column].type) if isinstance(FULL[column], pa.Array) else values[::-1]
    write_parquet(tmp_path / "gallery.parquet", pa.table(FULL | {column: changed}))
    assert read_folder(tmp_path).fingerprint() != first


def test_grades_and_weights_are_those_of_the_queries(tmp_path: Path) -> None:
    write_parquet(tmp_path / "gallery.parquet", pa.table(FULL))
    alone = read_folder(tmp_path).gallery
    assert alone.grades is not None
    assert [row.tolist() for row in alone.grades] == [[1], [2, 3.5], [], [1]]
    assert alone.weight is not None
    assert alone.weight.tolist() == [1, 2, 0.5, 1]
    # With queries of its own, a gallery may use these names for something else.
    write_parquet(tmp_path / "gallery.parquet", pa.table(FULL | {"weight": list("abcd"), "grades": [0, 0, 0, -1]}))
    write(tmp_path / "queries.parquet", weight=pa.array([1, 2, 3, 4], pa.int8()))
    write(tmp_path / "train.parquet", weight=["a"] * 4)
    folder = read_folder(tmp_path)
    assert folder.queries is not None
    assert folder.queries.weight is not None
    assert folder.queries.weight.tolist() == [1, 2, 3, 4]
    assert folder.gallery.weight is None
    assert folder.gallery.grades is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": [1, 0, 1, -2]}, r"queries\.parquet, column 'weight': 0 in row 1, 3; it must hold finite numbers"),
        ({"weight": [1, 1, np.inf, 1]}, "column 'weight': inf in row 2"),
        ({"weight": [1, 1, np.nan, 1]}, "column 'weight': nan in row 2"),
        ({"weight": [1, 1, None, 1]}, "column 'weight': missing value in row 2"),
        ({"weight": list("abcd")}, "column 'weight' must hold numbers, not text"),
        ({"grades": [1, 2, 3, 4]}, "column 'grades' must hold lists of numbers, not integers"),
        ({"grades": [[1], [], [2, 0], [0]]}, "column 'grades': 0 in row 2, 3; it must hold finite numbers above 0"),
        ({"grades": [[1], None, [2, None], [1]]}, "column 'grades': missing number in row 2"),
        ({"grades": [["a"]] * 4}, "column 'grades' must hold numbers, not text"),
    ],
)
def test_weights_and_grades_without_meaning_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path / "gallery.parquet")
    write(tmp_path / "queries.parquet", **changes)
    with pytest.raises(InputError, match=message) as error:
        read_folder(tmp_path)
    assert "\n" not in str(error.value)


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(table: pa.Table, where: Path, **options: object) -> None:
        where.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "gallery.parquet")
    assert not list(tmp_path.glob("*.parquet"))


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(table: pa.Table, where: Path, **options: object) -> None:
        where.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # the error that pyarrow raises

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(InputError, match=r"cannot write .*gallery\.parquet .*No space left.*free some space"):
        write(tmp_path / "gallery.parquet")
    assert not list(tmp_path.iterdir())


def test_embeddings_of_further_models_are_read_when_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "gallery.parquet", bct=vector_column(np.ones((4, 3), np.float32)))
    write(tmp_path / "train.parquet")
    assert list(read_folder(tmp_path).gallery.vectors) == ["old", "new"]
    folder = read_folder(tmp_path, ("old", "new", "bct", "side"))
    assert folder.models == ("old", "new", "bct")
    assert folder.train is not None
    assert list(folder.train.vectors) == ["old", "new"]
    assert folder.fingerprint() == read_folder(tmp_path).fingerprint()
    assert folder.fingerprint(folder.models) != folder.fingerprint()


def test_the_folder_may_hold_the_new_models_classifier(tmp_path: Path) -> None:
    write(tmp_path / "gallery.parquet")
    assert read_folder(tmp_path).classifier is None
    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    columns = {"label": ["cat", "dog"], "weight": vector_column(weight), "bias": pa.array([0.5, -1.0], pa.float32())}
    write_parquet(tmp_path / "classifier.parquet", pa.table(columns))
    classifier = read_folder(tmp_path).classifier
    assert classifier is not None
    assert classifier.label.tolist() == ["cat", "dog"]
    np.testing.assert_array_equal(classifier.weight, weight)
    assert classifier.bias.tolist() == [0.5, -1.0]


def test_large_arrays_are_mapped_and_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(memory.room_for(3, 4, np.float32), np.memmap)
    monkeypatch.setattr(memory, "MAPPED_BYTES", 100)
    room = memory.room_for(30, 4, np.float32)
    assert isinstance(room, np.memmap)
    room[:] = np.arange(120).reshape(30, 4)
    assert (room.ravel() == np.arange(120)).all()

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"not enough room for large embeddings in .* set TMPDIR to a folder on"):
        memory.room_for(30, 4, np.float32)
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    room = memory.room_for(30, 4, np.float32)
    room[:] = np.arange(120).reshape(30, 4)
    assert (room.ravel() == np.arange(120)).all()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=479))  # 480 bytes are wanted
    with pytest.raises(InputError, match="No space left on device"):
        memory.room_for(30, 4, np.float32)
