"""Columns as other programs write them, and files that were damaged on disk."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.data import folder
from ray_backfill.data.folder import read_folder, read_table
from ray_backfill.data.write import vector_column, write_parquet
from tests.data.test_folder import columns, write


def categories(values: list[Any]) -> pa.Array:
    return pa.array(values).dictionary_encode()


IDS = ["a", "b", "c", "d"]
# A column in its plain form, and in the forms that other programs write.
FORMS: dict[str, tuple[Any, list[Any]]] = {
    "id": (IDS, [categories(IDS), pa.array(IDS, pa.large_string()), pa.array(IDS, pa.string_view())]),
    "label": (
        [3, -1, 3, 4],
        [categories([3, -1, 3, 4]), pa.array([3.0, -1.0, 3.0, 4.0]), pa.array([3, -1, 3, 4], "int8")],
    ),
    "group": (["x", "y", "x", "x"], [categories(["x", "y", "x", "x"])]),
    "camera": (["n", "s", "n", "n"], [categories(["n", "s", "n", "n"])]),
    "old_class": ([1, 2, 1, 1], [categories([1, 2, 1, 1])]),
    "old_score": (
        [0.5, 0.25, 0.5, 1.0],
        [categories([0.5, 0.25, 0.5, 1.0]), pa.array([0.5, 0.25, 0.5, 1.0], "float32")],
    ),
    "positives": (
        [["a"], ["b"], ["c"], ["a"]],
        [
            pa.array([["a"], ["b"], ["c"], ["a"]], kind)
            for kind in (
                pa.large_list(pa.large_string()),
                pa.list_(pa.string(), 1),
                pa.list_(pa.dictionary(pa.int8(), pa.string())),
            )
        ],
    ),
    "ignored": ([[], ["a", "b"], [], []], [pa.array([None, ["a", "b"], [], None])]),
    "old": (
        vector_column(np.arange(8, dtype=np.float32).reshape(4, 2)),
        [
            pa.array(np.arange(8.0).reshape(4, 2).tolist(), pa.large_list(pa.float32())),
            pa.ExtensionArray.from_storage(
                pa.fixed_shape_tensor(pa.float32(), [2]), vector_column(np.arange(8, dtype=np.float32).reshape(4, 2))
            ),
        ],
    ),
}


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, (_, forms) in FORMS.items() for form in forms])
def test_every_form_of_a_column_is_read_like_the_plain_one(tmp_path: Path, name: str, form: Any) -> None:
    basic = {"id": IDS, name: FORMS[name][0]}
    plain, same = (
        write(tmp_path / f"{n}.parquet", **basic | {name: of}) for n, of in enumerate((FORMS[name][0], form))
    )
    expected, got = (folder._columns_of(read_table(path)) for path in (plain, same))
    for key, values in expected.items():
        np.testing.assert_equal(got[key], values)
        if isinstance(values, np.ndarray):
            assert got[key].dtype == values.dtype


@pytest.mark.parametrize("label", [categories(["cat", "dog"]), pa.array(["cat", "dog"], pa.large_string())])
def test_the_classifier_may_have_categories(tmp_path: Path, label: Any) -> None:
    write(tmp_path / "gallery.parquet")
    weight = vector_column(np.ones((2, 2), np.float32))
    write_parquet(tmp_path / "classifier.parquet", pa.table({"label": label, "weight": weight, "bias": [0.5, 1.0]}))
    classifier = read_folder(tmp_path).classifier
    assert classifier is not None
    assert classifier.label.tolist() == ["cat", "dog"]


def test_a_column_that_is_there_twice_is_named(tmp_path: Path) -> None:
    table = pa.table(columns())
    write_parquet(tmp_path / "g.parquet", table.append_column("label", table["label"]))
    with pytest.raises(InputError, match=r"g\.parquet has two columns 'label'; remove one"):
        read_table(tmp_path / "g.parquet")


def test_bytes_that_changed_in_a_file_of_ours_are_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = write(tmp_path / "gallery.parquet", **columns(300), positives=[[1]] * 300)
    whole, fingerprint, said = path.read_bytes(), read_folder(tmp_path).fingerprint(), []
    footer = int.from_bytes(whole[-8:-4], "little")
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[rng.integers(4, len(whole) - 8 - footer)] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            assert read_folder(tmp_path).fingerprint() == fingerprint  # a statistic that nothing reads
        except InputError as error:
            said.append(str(error))
    assert len(said) > 90
    for line in said:
        assert re.search(r"gallery\.parquet cannot be read as Parquet: .*; restore the file, or write it again$", line)
    path.write_bytes(whole[:-100])
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=f"delete {tmp_path} and run the command that wrote it again"):
        read_folder(tmp_path)


def test_damage_in_a_file_without_checksums_is_one_line_if_it_cannot_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "gallery.parquet"
    pq.write_table(pa.table(columns(300) | {"id": [f"item {i}" for i in range(300)]}), path)
    whole = path.read_bytes()
    rng, said = np.random.default_rng(0), []
    for _ in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(4, len(whole) - 8, 20):
            damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            read_folder(tmp_path)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 30
    assert not any("\n" in line for line in said)
