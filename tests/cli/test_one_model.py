"""Two models under one column: every command that reads vectors refuses them in one line, and leaves nothing behind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import read_json
from ray_backfill.data.identity import identities_of
from ray_backfill.data.write import vector_column
from tests.command import Command, Ended

KEY = b"ray_backfill.models"
OLD, NEW, OTHER = "openai:small", "openai:large", "openai:other"


def columns(rows: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    label = np.arange(rows) % 10
    centres = np.random.default_rng(0).normal(size=(10, 8))
    latent = centres[label] + 0.5 * rng.normal(size=(rows, 8))
    return {"old": latent[:, :6], "new": latent, "label": label}


def write(folder: Path, models: dict[str, str] | None = None, splits: tuple[str, ...] = ()) -> Path:
    """A folder of embeddings. splits: those that state the models; by default all."""
    given = {"gallery": columns(300, 1), "queries": columns(60, 2), "train": columns(100, 3)}
    rb.write_folder(folder, **given, models=models)
    for split in given if splits else ():
        if split not in splits:
            pq.write_table(pq.read_table(folder / f"{split}.parquet").replace_schema_metadata(None), folder / split)
            (folder / split).replace(folder / f"{split}.parquet")
    return folder


def mixed(folder: Path) -> Path:
    """A folder whose queries.parquet is a copy from another upgrade."""
    write(folder, {"old": OLD, "new": NEW})
    write(folder.parent / "elsewhere", {"old": OLD, "new": OTHER})
    (folder.parent / "elsewhere" / "queries.parquet").replace(folder / "queries.parquet")
    return folder


def source(path: Path, rows: int = 40, models: dict[str, Any] | None = None, seed: int = 0) -> Path:
    """Vectors in the columns v1 and v2, as another tool writes them, or with what it states of them."""
    given = columns(rows, seed)
    table = pa.table({"id": range(rows), "v1": vector_column(given["old"]), "v2": vector_column(given["new"])})
    table = table.replace_schema_metadata({KEY: json.dumps(models)} if models else None)
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    else:
        pq.write_table(table, path)
    return path


def refused(ended: Ended, *names: str) -> None:
    """names: both models, and where they are stated."""
    for name in ("two models", *names):
        assert name in ended.error


def stated_by(split: Path) -> Any:
    """What the metadata of the one part of a split state."""
    (part,) = split.glob("*.parquet")
    return json.loads((pq.read_schema(part).metadata or {}).get(KEY, b"null"))


COLUMNS = ("--old", "v1", "--new", "v2")


def test_a_second_model_is_not_imported(tmp_path: Path, command: Command) -> None:
    out, items = tmp_path / "data", source(tmp_path / "items.parquet")
    first = command("import", "--out", out, "--gallery", items, *COLUMNS, "--old-model", OLD, "--new-model", NEW)
    assert first.code == 0
    assert identities_of(out) == {"old": {"name": OLD}, "new": {"name": NEW}}
    words = ["import", "--out", out, "--queries", source(tmp_path / "queries.parquet", 9, seed=1), *COLUMNS]
    for more in ([], ["--overwrite"]):
        refused(command(*words, "--new-model", OTHER, *more), NEW, OTHER, "gallery.parquet", "queries.parquet")
    assert not list(out.glob("*queries*"))
    assert command(*words).code == 0, "who does not name the model can go on"
    assert not stated_by(out / "queries.parquet")
    assert command(*words, "--new-model", NEW, "--overwrite").code == 0, "and so can who names the same"
    assert stated_by(out / "queries.parquet") == {"new": {"name": NEW}}


def test_another_model_takes_the_place_of_all_splits_or_of_none(tmp_path: Path, command: Command) -> None:
    out, items = tmp_path / "data", source(tmp_path / "items.parquet")
    both = ["import", "--out", out, "--gallery", items, "--queries", source(tmp_path / "q.parquet", 9), *COLUMNS]
    assert command(*both, "--new-model", NEW).code == 0
    assert OTHER in command(*both, "--new-model", OTHER).error, "not without --overwrite"
    gallery = ["import", "--out", out, "--gallery", items, *COLUMNS, "--new-model", OTHER, "--overwrite"]
    refused(command(*gallery), NEW, OTHER, "queries.parquet")
    assert identities_of(out) == {"new": {"name": NEW}}
    assert command(*both, "--new-model", OTHER, "--overwrite").code == 0
    assert identities_of(out) == {"new": {"name": OTHER}}


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_the_models_of_a_source_come_along(tmp_path: Path, suffix: str, command: Command) -> None:
    identity = {"name": "hf:minilm", "kind": "hf", "weights": "1a"}
    items = source(tmp_path / f"items.{suffix}", models={"v2": identity, "v9": {"name": "of no column"}})
    words = ["import", "--out", tmp_path / "data", "--gallery", items, *COLUMNS]
    refused(command(*words, "--new-model", OTHER), OTHER, "minilm@", str(items))
    assert not (tmp_path / "data" / "gallery.parquet").exists()
    assert command(*words, "--new-model", "hf:minilm", "--old-model", OLD).code == 0
    assert identities_of(tmp_path / "data") == {"old": {"name": OLD}, "new": identity}


def test_files_of_one_source_agree(tmp_path: Path, command: Command) -> None:
    (tmp_path / "items").mkdir()
    for name in (NEW, OTHER):
        source(tmp_path / "items" / f"{name[7:]}.parquet", models={"v2": {"name": name}})
    ended = command("import", "--out", tmp_path / "data", "--gallery", tmp_path / "items", *COLUMNS)
    refused(ended, NEW, OTHER, "large.parquet", "other.parquet")
    assert not (tmp_path / "data" / "gallery.parquet").exists()


def test_an_import_that_names_no_model_is_recorded_as_before(tmp_path: Path, command: Command) -> None:
    words = ["import", "--out", tmp_path / "data", "--gallery", source(tmp_path / "items.parquet"), *COLUMNS]
    assert command(*words).code == 0
    assert set(read_json(tmp_path / "data" / "gallery.parquet" / "_manifest.json")["settings"]) == {
        "sources", "columns", "drop_broken"
    }  # fmt: skip
    assert identities_of(tmp_path / "data") == {}


def test_write_folder_states_the_models_of_its_columns(tmp_path: Path) -> None:
    write(tmp_path / "data", {"old": OLD, "new": " openai:large\n"})
    assert identities_of(tmp_path / "data") == {"old": {"name": OLD}, "new": {"name": NEW}}
    with pytest.raises(InputError, match="'nwe'"):
        write(tmp_path / "wrong", {"nwe": NEW})
    assert not (tmp_path / "wrong").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--methods", "rm_naive", "--data"),
        ("drill", "--live.method", "procrustes_gallery", "--data"),
        ("fit", "--methods", "procrustes_gallery", "--data"),
        ("forecast",),
    ],
    ids=lambda words: words[0],
)
def test_a_run_on_a_mixed_folder_is_refused(tmp_path: Path, words: tuple[str, ...], command: Command) -> None:
    data, out = mixed(tmp_path / "data"), tmp_path / "run"
    refused(command(*words, data, "--out", out), NEW, OTHER, "gallery.parquet", "queries.parquet")
    assert not [path for path in out.rglob("*") if path.is_file() and not path.name.startswith(".")]


def test_a_sample_of_a_mixed_folder_is_refused(tmp_path: Path, command: Command) -> None:
    data = mixed(tmp_path / "data")
    refused(command("sample", data, "--budget", "60"), NEW, OTHER)
    assert not (data / "sample.parquet").exists()


def test_the_doctor_names_the_models_and_finds_a_second_one(tmp_path: Path, command: Command) -> None:
    sound = json.loads(command("doctor", write(tmp_path / "sound", {"new": NEW}), "--json").out)
    assert (sound["models"], sound["is_sound"]) == ({"new": NEW}, True)
    assert NEW in command("doctor", tmp_path / "sound").out
    ended = command("doctor", mixed(tmp_path / "data"), "--json", "--exit-code")
    document = json.loads(ended.out)
    errors = [finding["what"] for finding in document["findings"] if finding["level"] == "error"]
    assert ended.code == 10
    assert len(errors) == 1
    assert NEW in errors[0]
    assert OTHER in errors[0]
    assert "Traceback" not in command("doctor", tmp_path / "data").shown


def test_new_vectors_of_another_model_are_not_forecast(tmp_path: Path, command: Command) -> None:
    data = write(tmp_path / "data", {"old": OLD, "new": NEW}, ("queries",))
    assert command("sample", data, "--budget", "100").code == 0
    ids = pd.read_parquet(data / "sample.parquet").id.to_numpy()
    vectors = columns(300, 1)["new"][ids]
    words = ["forecast", data, "--out", tmp_path / "run", "--methods", "rm_naive"]
    for name in (OTHER, NEW):
        table = pa.table({"id": ids, "new": vector_column(vectors.astype(np.float32))})
        stated = {KEY: json.dumps({"new": {"name": name}})}
        pq.write_table(table.replace_schema_metadata(stated), tmp_path / f"{name[7:]}.parquet")
    refused(command(*words, "--new", tmp_path / "other.parquet"), NEW, OTHER, "other.parquet")
    assert not (tmp_path / "run" / "forecast").exists()
    assert command(*words, "--new", tmp_path / "large.parquet").code == 0
    manifest = read_json(tmp_path / "run" / "forecast" / "manifest.json")
    assert manifest["data"]["models"] == {"old": OLD, "new": NEW}
    assert NEW in (tmp_path / "run" / "forecast" / "report.html").read_text("utf-8")


def test_results_name_the_models_and_a_copy_keeps_them(tmp_path: Path, command: Command) -> None:
    data = write(tmp_path / "data", {"old": OLD})
    (data / "models.json").write_text(json.dumps({"new": NEW}))
    gallery = pq.read_table(data / "gallery.parquet").to_pydict()
    gallery["old"][5] = [0.0] * 6
    kept = pq.read_schema(data / "gallery.parquet")
    pq.write_table(pa.table(gallery, schema=kept), data / "gallery.parquet")
    words = ["simulate", "--data", data, "--out", tmp_path / "run", "--methods", "rm_naive", "--drop-broken"]
    assert command(*words, "--points", "3").code == 0
    assert {name: model["name"] for name, model in identities_of(tmp_path / "run" / "cleaned").items()} == {
        "old": OLD, "new": NEW
    }  # fmt: skip
    results = tmp_path / "run" / "results"
    assert read_json(results / "manifest.json")["data"]["models"] == {"old": OLD, "new": NEW}
    assert NEW in (results / "report.html").read_text("utf-8")
    (data / "models.json").write_text(json.dumps({"old": NEW}))
    refused(command(*words, "--points", "5"), OLD, NEW, "models.json")
