"""--drop-broken: a run goes on without the rows that it would otherwise refuse, and lists them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import ray_backfill as rb
from ray_backfill.data.cleaning import cleaned
from ray_backfill.data.folder import read_folder
from ray_backfill.data.write import vector_column
from tests.command import Command

N = 60


def write(path: Path, ids: list[Any], broken: dict[int, float], seed: int, **more: object) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    vectors = {name: rng.normal(size=(len(ids), 4)).astype(np.float32) for name in ("old", "new")}
    for row, value in broken.items():
        vectors["new"][row] = value
    columns = {name: vector_column(each) for name, each in vectors.items()}
    pq.write_table(pa.table({"id": ids, **columns, **more}), path)
    return vectors


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    ids = [f"i{n}" for n in range(N)]
    # Query 0 asks for a broken item and a good one, query 1 for a broken one alone.
    positives = [["i3", "i4"], ["i3"], *([f"i{n}"] for n in range(10, 18))]
    write(tmp_path / "data" / "gallery.parquet", ids, {3: 0.0, 7: np.nan}, 0, title=[f"title {n}" for n in range(N)])
    write(tmp_path / "data" / "queries.parquet", [f"q{n}" for n in range(10)], {9: np.inf}, 1, positives=positives)
    return tmp_path / "data"


def test_broken_rows_are_left_out_and_listed(data: Path, tmp_path: Path) -> None:
    copy = cleaned(data, tmp_path / "cleaned", overwrite=False)
    folder = read_folder(copy)
    assert folder.queries is not None
    assert len(folder.gallery) == N - 2
    assert set(folder.gallery.id) == {f"i{n}" for n in range(N)} - {"i3", "i7"}
    assert len(folder.queries) == 9
    listed = pd.read_parquet(copy / "gallery_left_out.parquet").set_index("id").reason.to_dict()
    assert listed == {"i3": "new: a zero vector", "i7": "new: NaN or infinite values"}
    kept = (
        pd.concat(pd.read_parquet(part) for part in (copy / "gallery.parquet").glob("*.parquet")).set_index("id").title
    )
    assert kept["i8"] == "title 8"
    assert cleaned(data, tmp_path / "cleaned", overwrite=False) == copy, "the same again"


def test_the_command_goes_on_without_them(data: Path, tmp_path: Path, command: Command) -> None:
    words = ["simulate", "--data", data, "--out", tmp_path / "run", "--methods", "rm_naive"]
    assert "NaN or infinite" in command(*words).error
    assert command(*words, "--drop-broken").code == 0
    found = rb.read_results(tmp_path / "run")
    assert found.manifest.data["gallery_items"] == N - 2
    # Query 1 asked for a broken item alone.
    assert found.manifest.data["queries_skipped"] == 1


def test_results_say_what_was_left_out_and_where_the_data_lie(data: Path, tmp_path: Path) -> None:
    copy = cleaned(data, tmp_path / "cleaned", overwrite=False)
    found = rb.simulate(copy, methods="rm_naive")
    assert found.manifest.data["name"] == "data"
    assert found.manifest.data["path"] == str(data)
    left_out = [note for note in found.manifest.data["notes"] if "were left out" in note]
    assert [note.split(" were left out")[0] for note in left_out] == [
        "2 of 60 rows of gallery.parquet", "1 of 10 rows of queries.parquet"
    ]  # fmt: skip


def test_the_copy_follows_the_folder(data: Path, tmp_path: Path) -> None:
    write(data / "train.parquet", [f"t{n}" for n in range(N)], {5: np.nan}, 2)
    (data / "log.parquet").write_bytes(b"anything")
    copy = cleaned(data, tmp_path / "cleaned", overwrite=False)
    assert {path.name for path in copy.iterdir()} == {
        "gallery.parquet", "gallery_left_out.parquet", "queries.parquet", "queries_left_out.parquet", "train.parquet",
        "train_left_out.parquet", "log.parquet", "manifest.json",
    }  # fmt: skip
    for name in ("train.parquet", "log.parquet"):
        (data / name).unlink()
    cleaned(data, tmp_path / "cleaned", overwrite=False)
    assert not [path.name for path in copy.iterdir() if path.name.startswith(("train", "log"))]


def test_images_are_found_beside_the_original(data: Path, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(data / "red.png")
    table = pq.read_table(data / "gallery.parquet").append_column("image", pa.array(["red.png"] * N))
    pq.write_table(table, data / "gallery.parquet")
    found = rb.simulate(cleaned(data, tmp_path / "cleaned", overwrite=False), methods="rm_naive")
    assert any(row.first_image.startswith("data:image/jpeg") for row in found.shown)


def test_missing_and_duplicate_ids_are_left_out_too(data: Path, tmp_path: Path) -> None:
    write(data / "queries.parquet", ["q0"], {}, 1, positives=[["i4"]])
    ids: list[Any] = [f"i{n}" for n in range(N)]
    ids[7], ids[8] = "i4", None
    write(data / "gallery.parquet", ids, {}, 0)
    copy = cleaned(data, tmp_path / "cleaned", overwrite=False)
    listed = pd.read_parquet(copy / "gallery_left_out.parquet").reason.tolist()
    assert listed == ["duplicate id", "no id"]
    assert len(read_folder(copy).gallery) == N - 2


def test_another_model_is_not_cleaned(data: Path, tmp_path: Path) -> None:
    write(data / "queries.parquet", ["q0"], {}, 1, positives=[["i4"]])
    write(data / "gallery.parquet", [f"i{n}" for n in range(N)], {}, 0, bct=[None, *[[1.0, 2.0]] * (N - 1)])
    assert cleaned(data, tmp_path / "cleaned", overwrite=False) == data


def test_a_sound_folder_is_not_copied(data: Path, tmp_path: Path) -> None:
    write(data / "gallery.parquet", [f"i{n}" for n in range(N)], {}, 0)
    write(data / "queries.parquet", ["q0"], {}, 1, positives=[["i3"]])
    assert cleaned(data, tmp_path / "cleaned", overwrite=False) == data
    assert not (tmp_path / "cleaned").exists()


def test_an_id_that_nobody_left_out_is_still_refused(data: Path, tmp_path: Path) -> None:
    write(data / "queries.parquet", ["q0"], {}, 1, positives=[["i3", "i4", "elsewhere"]])
    copy = cleaned(data, tmp_path / "cleaned", overwrite=False)
    with pytest.raises(rb.InputError, match="the gallery has no id elsewhere"):
        rb.simulate(copy, methods="rm_naive")
