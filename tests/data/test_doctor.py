"""What is wrong with a folder is found, and what is right is left alone."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.compare.diagnose import diagnose
from ray_backfill.core.errors import InputError
from ray_backfill.data.doctor import scan_source
from ray_backfill.data.write import vector_column
from tests.bad_folder import all_of
from tests.command import Command

Columns = dict[str, Any]


def columns(n: int, seed: int, classes: int = 20) -> Columns:
    """Two models with means of their own, as embeddings have."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, classes, n)
    world = np.random.default_rng(0)
    signal, old_mean, new_mean = world.normal(size=(classes, 32)), world.normal(size=16), world.normal(size=32)
    old = 2 * old_mean + signal[label, :16] + rng.normal(size=(n, 16))
    new = 2 * new_mean + signal[label] + rng.normal(size=(n, 32))
    return {"id": np.arange(n), "old": old.astype(np.float32), "new": new.astype(np.float32), "label": label}


def folder(path: Path, change: Callable[[Columns, Columns], object] = lambda gallery, queries: None) -> Path:
    gallery, queries, train = columns(6_000, 1), columns(200, 2), columns(500, 3)
    change(gallery, queries)
    rb.write_folder(path, gallery, queries, train)
    return path


def test_a_sound_folder(tmp_path: Path) -> None:
    found = diagnose(folder(tmp_path / "data"))
    assert found.is_sound
    assert not found.findings
    assert found.facts["gallery"]["rows"] == 6_000
    assert found.facts["gallery"]["new"]["dimensions"] == 32
    assert found.facts["queries"]["labels"]["classes"] == 20
    assert {"rm_naive", "rm", "fct"} <= set(found.methods)
    assert "bct" in found.left_out


def test_few_train_items_per_dimension_are_told(tmp_path: Path) -> None:
    path = tmp_path / "data"
    rb.write_folder(path, columns(6_000, 1), columns(200, 2), columns(159, 3))
    (found,) = diagnose(path).findings
    assert (found.level, found.where) == ("warning", "train")
    assert found.what.startswith("159 train items, 4.97 per dimension of the embeddings (32). Maps without a penalty")
    rb.write_folder(path, columns(6_000, 1), columns(200, 2), columns(160, 3))
    assert not diagnose(path).findings


def put(split: int, column: str, rows: slice, value: object) -> Callable[[Columns, Columns], object]:
    """A change of some rows of the gallery (0) or the queries (1)."""

    def change(*splits: Columns) -> None:
        splits[split][column][rows] = value

    return change


def from_another_model(gallery: Columns, queries: Columns) -> None:
    """The second half of the gallery by the new model's last 16 dimensions: the first 16 show classes as old does."""
    gallery["old"][3_000:] = gallery["new"][3_000:, 16:] * 1.0


def of_two_lengths(gallery: Columns, queries: Columns) -> None:
    """Every third vector normalised."""
    gallery["old"][::3] /= np.linalg.norm(gallery["old"][::3], axis=1, keepdims=True)


def all_alike(gallery: Columns, queries: Columns) -> None:
    gallery["new"][100:400] = gallery["new"][0]


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (put(0, "old", slice(5, 8), 0), "gallery.old", "3 rows have a zero vector, the first is row 5"),
        (put(0, "label", slice(None), 77), "label", "200 of 200 queries have no right answer"),
        (put(1, "label", slice(0, 3), -1), "label", "3 of 200 queries have no right answer"),
        (lambda gallery, queries: gallery.pop("label"), "label", "there are no right answers"),
        (from_another_model, "gallery.old", "several models in this column: the mean changes at about row 3,072"),
        (of_two_lengths, "gallery.old", "several models in this column: lengths fall into two groups: 2,000"),
        (all_alike, "gallery.new", "300 of 6,000 vectors equal an earlier one"),
    ],
)
def test_what_is_wrong_is_found(
    change: Callable[[Columns, Columns], object], where: str, what: str, tmp_path: Path
) -> None:
    found = diagnose(folder(tmp_path / "data", change))
    assert [each for each in found.findings if each.where == where and what in each.what], found.findings
    assert len(found.findings) == 1
    assert found.is_sound == (found.findings[0].level == "note")


@pytest.mark.full
@pytest.mark.parametrize("classes", [2, 5, 20, 300])
@pytest.mark.parametrize("centred", [True, False])
def test_a_file_in_the_order_of_its_classes_is_not_taken_for_two_models(
    classes: int, centred: bool, tmp_path: Path
) -> None:
    gallery = columns(8_192, 1, classes)
    rows = np.argsort(gallery["label"], kind="stable")
    gallery = {name: values[rows] for name, values in gallery.items()}
    if centred:
        for model in ("old", "new"):
            gallery[model] = gallery[model] - gallery[model].mean(axis=0)
    rb.write_folder(tmp_path / "data", gallery)
    found = [each.what for each in diagnose(tmp_path / "data").findings]
    # Two classes, one after the other, look like two models: nothing in the vectors tells them apart.
    assert [what for what in found if "several models" in what] == [] or (classes == 2 and centred)


def test_what_the_reader_refuses_is_an_error(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    lists: list[list[float] | None] = [[1.0, 2.0]] * 10
    lists[3], lists[4], lists[5] = None, [1.0], [float("nan"), 1.0]
    table = pa.table({"id": [*range(9), 0], "old": lists, "new": [[1.0, 2.0]] * 10, "weight": [-1.0] * 10})
    pq.write_table(table, data / "queries.parquet")
    found = [(each.level, each.where, each.what) for each in diagnose(data).findings]
    text = str(found)
    for words in ("no vector, the first is row 3", "another number of dimensions, the first is row 4",
                  "NaN or infinite values, the first is row 5", "1 duplicate ids", "finite numbers above 0",
                  "dimensions differ: 16 in gallery, 2 in queries"):  # fmt: skip
        assert words in text
    with pytest.raises(InputError):
        rb.read_folder(data)


def test_what_only_a_run_looks_at_is_an_error_too(tmp_path: Path) -> None:
    def unknown_positives(gallery: Columns, queries: Columns) -> None:
        queries["positives"] = [[0]] * 199 + [[999_999]]

    found = diagnose(folder(tmp_path / "positives", unknown_positives))
    assert not found.is_sound
    assert "the gallery has no id 999999" in found.findings[0].what
    data = folder(tmp_path / "integers")
    table = pq.read_table(data / "queries.parquet")
    whole = pa.array(np.ones((200, 16), np.int8).tolist())
    pq.write_table(table.set_column(table.schema.get_field_index("old"), "old", whole), data / "queries.parquet")
    found = diagnose(data)
    assert found.findings[0].level == "error"
    assert "old" in found.findings[0].what


def test_the_log_is_examined_as_well(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    pq.write_table(pa.table({"id": [1, 2], "old": [[1.0] * 16, [float("nan")] * 16]}), data / "log.parquet")
    assert [(each.where, each.level) for each in diagnose(data).findings] == [("log.old", "error")]


def test_without_labels_the_next_step_is_one_that_works(tmp_path: Path, command: Command) -> None:
    data = folder(tmp_path / "data", lambda gallery, queries: gallery.pop("label"))
    assert diagnose(data).is_sound
    assert "--judge judgements.csv" in " ".join(command("doctor", data).out.split())


def zeros(split: str, model: str, count: int = 38) -> Callable[[Path], None]:
    """The first vectors of a column are zero."""

    def change(data: Path) -> None:
        path = data / f"{split}.parquet"
        table = pq.read_table(path)
        vectors = np.array(table[model].to_pylist(), np.float32)
        vectors[:count] = 0
        pq.write_table(table.set_column(table.schema.get_field_index(model), model, vector_column(vectors)), path)

    return change


def without_labels(data: Path) -> None:
    for path in data.glob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns("label"), path)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: None,
        zeros("gallery", "new"),
        zeros("gallery", "old"),
        zeros("queries", "new", 3),
        zeros("train", "old"),
        without_labels,
        all_of(without_labels, zeros("gallery", "new"), zeros("queries", "old", 3)),
        lambda data: (data / "queries.parquet").unlink(),
        all_of(lambda data: (data / "queries.parquet").unlink(), zeros("gallery", "new")),
        lambda data: (data / "train.parquet").unlink(),
    ],
)
def test_the_command_that_it_advises_runs(
    change: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    data = tmp_path / "my data"
    rb.write_folder(data, *(columns(rows, seed) for rows, seed in ((600, 1), (60, 2), (300, 3))))
    change(data)
    monkeypatch.chdir(tmp_path)
    (advice,) = (line for line in command("doctor", data).out.splitlines() if line.startswith("Next"))
    program, *words = shlex.split(advice.partition(": ")[2])
    assert program == "ray-backfill"
    assert ("--drop-broken" in words) == advice.startswith("Next, without the zero vectors: ")
    assert command(*words, "--points", 2, "--methods", "rm_naive", "relaxed_gallery").code == 0
    made = "judgements.csv" if "--judge" in words else "runs/my data/results/report.html"
    assert ("--judge" in words) == ("label" not in pq.read_schema(data / "gallery.parquet").names)
    assert (tmp_path / made).exists()


def test_one_model_under_both_names_is_found(tmp_path: Path) -> None:
    splits = [columns(rows, seed) for rows, seed in ((600, 1), (60, 2))]
    rb.write_folder(tmp_path / "data", *(split | {"new": split["old"]} for split in splits))
    findings = diagnose(tmp_path / "data").findings
    found = [(finding.level, finding.where) for finding in findings if "the same vectors" in finding.what]
    assert found == [("warning", "gallery"), ("warning", "queries")]


def test_the_command_prints_json_and_says_by_its_code_whether_all_is_well(tmp_path: Path, command: Command) -> None:
    sound, broken = folder(tmp_path / "sound"), folder(tmp_path / "broken", put(0, "old", slice(0, 1), 0))
    for data, code in ((sound, 0), (broken, 10)):
        ended = command("doctor", data, "--json", "--exit-code")
        assert (ended.code, json.loads(ended.out)["is_sound"]) == (code, code == 0)
    assert "does not exist" in command("doctor", tmp_path / "nothing").error


def test_of_a_large_store_some_rows_are_kept_with_their_texts(tmp_path: Path) -> None:
    rows = np.arange(60_000)
    vectors = np.stack([rows, -rows], axis=1).astype(np.float32)
    table = {"key": rows + 7, "vector": vector_column(vectors), "body": [f"text {row}" for row in rows]}
    pq.write_table(pa.table(table), tmp_path / "store.parquet", row_group_size=5_000)
    scan, texts = scan_source(str(tmp_path / "store.parquet"), "key", text_column="body")
    column = scan.vectors["vector"]
    assert 8_192 * 0.8 < len(column.sample_rows) <= 16_384
    assert np.array_equal(column.sample[:, 0], column.sample_rows)
    # Every tenth of the table has its share, within 5 standard deviations.
    of_tenths = np.histogram(column.sample_rows, 10, (0, 60_000))[0] / len(column.sample_rows)
    assert abs(of_tenths - 0.1).max() < 5 * np.sqrt(0.1 * 0.9 / len(column.sample_rows))
    assert all(texts[row] == f"text {row}" for row in column.sample_rows)
    assert (len(column.norms), scan.rows) == (60_000, 60_000)
    assert scan.ids is not None
    assert np.array_equal(scan.ids, rows + 7)
