"""Which model made a column: what a folder and its files state, and two models that share a column."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.data.identity import identities_of, short_name

KEY = "ray_backfill.models"
MINILM = {"name": "hf:minilm", "kind": "hf", "weights": "1a", "dims": 0}
BGE = {"name": "hf:bge", "kind": "hf", "weights": "2b", "dims": 0}


def write(file: Path, models: Any = None) -> None:
    """A part file with one row, and with these models in its metadata."""
    file.parent.mkdir(parents=True, exist_ok=True)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2, np.float32)), 2)
    table = pa.table({"id": [0], "old": vectors, "new": vectors})
    stated = models if isinstance(models, str) else json.dumps(models)
    pq.write_table(table if models is None else table.replace_schema_metadata({KEY: stated}), file)


def test_a_folder_that_states_nothing_has_no_identities(tmp_path: Path) -> None:
    assert identities_of(tmp_path) == {}
    write(tmp_path / "gallery.parquet")
    (tmp_path / "manifest.json").write_text('{"settings": {"seed": 0}}')
    assert identities_of(tmp_path) == {}


def test_files_manifest_and_names_by_hand_are_read_together(tmp_path: Path) -> None:
    without_name = {key: value for key, value in MINILM.items() if key != "name"}
    (tmp_path / "manifest.json").write_text(json.dumps({"settings": {"models": {"old": without_name}}}))
    (tmp_path / "models.json").write_text('{"new": "openai:large"}')
    write(tmp_path / "gallery.parquet" / "part-0.parquet", {"old": MINILM})
    write(tmp_path / "queries.parquet", {"other": BGE})
    assert identities_of(tmp_path) == {"old": MINILM, "new": {"name": "openai:large"}, "other": BGE}


@pytest.mark.parametrize("second", ["gallery.parquet/part-1.parquet", "queries.parquet", "log.parquet", "models.json"])
def test_two_models_under_one_column_are_refused(tmp_path: Path, second: str) -> None:
    write(tmp_path / "gallery.parquet" / "part-0.parquet", {"old": MINILM, "new": BGE})
    write(tmp_path / "gallery.parquet" / "part-1.parquet")  # it states nothing
    assert identities_of(tmp_path) == {"old": MINILM, "new": BGE}
    if second.endswith("json"):
        (tmp_path / second).write_text(json.dumps({"new": MINILM}))
    else:
        write(tmp_path / second, {"new": MINILM})
    with pytest.raises(InputError) as refused:
        identities_of(tmp_path)
    said = str(refused.value)
    assert "\n" not in said
    assert "column 'new'" in said
    for word in (short_name(MINILM), short_name(BGE), second, "part-0.parquet"):
        assert word in said


@pytest.mark.parametrize("name", ["hf:minilm", short_name(MINILM)])
def test_a_name_agrees_with_the_identity_that_has_it(tmp_path: Path, name: str) -> None:
    write(tmp_path / "gallery.parquet", {"old": MINILM})
    (tmp_path / "models.json").write_text(json.dumps({"old": name}))
    assert identities_of(tmp_path) == {"old": MINILM}
    (tmp_path / "models.json").write_text(json.dumps({"old": "hf:other"}))
    with pytest.raises(InputError, match="hf:other"):
        identities_of(tmp_path)


def test_the_short_name_depends_on_the_content_alone() -> None:
    name, digits = short_name(MINILM).split("@")
    assert name == "minilm"
    assert len(digits) == 8
    assert int(digits, 16) >= 0
    assert short_name(MINILM | {"name": "hf:org/moved#dims=2"}) == f"org/moved@{digits}"
    assert short_name(dict(reversed(MINILM.items()))) == f"minilm@{digits}"
    assert not short_name(MINILM | {"dims": 64}).endswith(digits)
    assert short_name({"kind": "hf", "weights": "1a", "dims": 0}) == f"hf@{digits}"
    assert short_name({"name": "openai:text-embedding-3-small"}) == "openai:text-embedding-3-small"
    assert short_name({"name": "two\nlines"}) == "two lines"


@pytest.mark.parametrize("models", ["{", "[]", '{"old": 3}', '{"old": ""}'])
def test_what_is_no_statement_is_one_line(tmp_path: Path, models: str) -> None:
    (tmp_path / "models.json").write_text(models)
    with pytest.raises(InputError, match=r"models\.json"):
        identities_of(tmp_path)
    (tmp_path / "models.json").unlink()
    write(tmp_path / "queries.parquet", models)
    with pytest.raises(InputError, match=r"queries\.parquet"):
        identities_of(tmp_path)


def test_a_damaged_file_states_nothing(tmp_path: Path) -> None:
    write(tmp_path / "gallery.parquet", {"old": MINILM})
    (tmp_path / "queries.parquet").write_bytes(b"PAR1")
    (tmp_path / "manifest.json").write_text("{")
    assert identities_of(tmp_path) == {"old": MINILM}
