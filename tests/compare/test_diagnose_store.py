"""``doctor`` on a live store: rows of another model, with and without the model at hand."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.data.write import vector_column
from tests.cli.test_for_programs import checked
from tests.command import Command
from tests.data.made_models import DIMS, mixed
from tests.data.sources.stores import postgres

ROWS, FOREIGN = 1_200, 60


def said(printed: str, level: str, where: str) -> str:
    """What the one finding says of this level."""
    (finding,) = (of for of in checked("doctor", printed)["findings"] if of["level"] == level)
    assert finding["where"] == where
    return str(finding["what"])


@pytest.mark.full
def test_in_postgres(tmp_path: Path, command: Command) -> None:
    import psycopg

    column, chosen = mixed(ROWS, FOREIGN, seed=4)
    with postgres(tmp_path / "server") as address:
        with psycopg.connect(address) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            connection.execute(f"CREATE TABLE items (key text PRIMARY KEY, price int, embedding vector({DIMS}))")
            with connection.cursor().copy("COPY items FROM STDIN") as copy:
                for row, vector in enumerate(column.tolist()):
                    copy.write_row((f"k{row:05d}", row, str(vector)))
        ended = command("doctor", f"{address}#items", "--id", "key", "--json", "--exit-code")
        assert ended.code == 10
        assert f"id k{chosen[0]:05d}, k{chosen[1]:05d}" in said(ended.out, "warning", "embedding")
        facts = checked("doctor", ended.out)["facts"]["store"]
        assert (facts["rows"], facts["embedding"]["dimensions"]) == (ROWS, DIMS)
        assert "no column 'id'" in command("doctor", f"{address}#items").error
        with psycopg.connect(address) as connection:
            connection.execute("DELETE FROM items WHERE price = ANY(%s)", [chosen.tolist()])
        assert command("doctor", f"{address}#items", "--id", "key", "--exit-code").code == 0


@pytest.mark.full
def test_in_qdrant(tmp_path: Path, command: Command) -> None:
    qdrant = pytest.importorskip("qdrant_client")
    column, chosen = mixed(ROWS, FOREIGN, seed=5)
    client = qdrant.QdrantClient(path=str(tmp_path / "store"))
    size = qdrant.models.VectorParams(size=DIMS, distance=qdrant.models.Distance.COSINE)
    client.create_collection("items", vectors_config=size)
    client.upsert("items", [qdrant.models.PointStruct(id=i, vector=v) for i, v in enumerate(column.tolist())])
    client.close()
    ended = command("doctor", f"qdrant:{tmp_path}/store#items", "--json")
    assert ended.code == 0
    assert f"id {chosen[0]}, {chosen[1]}" in said(ended.out, "warning", "vector")


MODEL = """
import numpy as np

def old(texts, seed=0):
    words = np.random.default_rng(seed).normal(size=(64, 24))
    return np.stack([words[[hash_of(word) for word in text.split()]].mean(0) for text in texts])

def other(texts):
    return old(texts, 1)

def hash_of(word):
    return sum(map(ord, word)) % 64
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table of texts and their vectors by ``old``, but for every twentieth, which ``other`` has made."""
    (tmp_path / "own_models.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import own_models  # type: ignore[import-not-found]

    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcde     "), 40)) + " z" for _ in range(400)]
    vectors = own_models.old(texts)
    vectors[::20] = own_models.other(texts[::20])
    table = {"id": np.arange(1_000, 1_400), "body": texts, "vector": vector_column(vectors.astype(np.float32))}
    pq.write_table(pa.table(table), tmp_path / "items.parquet")
    return tmp_path / "items.parquet"


def test_embedding_texts_again_names_the_rows_of_another_model(store: Path, command: Command) -> None:
    words = ["doctor", store, "--column", "vector", "--text-column", "body", "--json", "--exit-code"]
    ended = command(*words, "--model", "python:own_models:old", "--sample", 400)
    assert ended.code == 10
    assert said(ended.out, "error", "vector").startswith("20 of 400 vectors")
    assert "id 1000, 1020, 1040 and 17 more" in said(ended.out, "error", "vector")
    assert "380 of 400" in said(
        command(*words, "--model", "python:own_models:other", "--sample", 400).out, "error", "vector"
    )


def test_a_sound_sample_says_how_likely_it_was_to_meet_one(store: Path, command: Command) -> None:
    table = pq.read_table(store)
    pq.write_table(table.take([row for row in range(400) if row % 20]), store)
    words = ["doctor", store, "--column", "vector", "--text-column", "body", "--model"]
    ended = command(*words, "python:own_models:old", "--json", "--exit-code")
    assert ended.code == 0
    # 1 - 0.999^200, 1 - 0.99^200, 1 - 0.9^200
    assert all(chance in said(ended.out, "note", "vector") for chance in ("18%", "87%", "100%"))
    assert not json.loads(ended.out)["methods"]
    ended = command(*words, "python:own_models:old#dims=12", "--json")
    assert "gives 12 dimensions, and the column has 24" in said(ended.out, "error", "vector")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{store}", "--column", "text"], "has no column 'text'"),
        (["{store}", "--id", "key"], "has no column 'key'"),
        (["{store}", "--model", "python:own_models:old"], "--column"),
        (["{store}", "--column", "vector", "--model", "python:own_models:old"], "has no column 'text'"),
        (["{store}", "--column", "vector", "--model", "python:own_models:absent", "--text-column", "body"], "absent"),
        (["{store}", "--column", "vector", "--model", "hf"], "names no model"),
        (["{store}", "--column", "vector", "--model", "python:own_models:old", "--sample", "0"], "--sample must be"),
        (["{folder}", "--column", "vector"], "is a folder of embeddings"),
        (["{folder}/missing"], "does not exist"),
        (["{folder}/texts.parquet"], "no column of vectors"),
        (["postgresql://user:Hunter-77@localhost:1/db#items"], "postgresql://user@localhost:1/db"),
    ],
)
def test_what_is_wrong_is_one_line(words: list[str], message: str, store: Path, command: Command) -> None:
    pq.write_table(pa.table({"id": [1], "body": ["a"]}), store.parent / "texts.parquet")
    error = command("doctor", *(word.format(store=store, folder=store.parent) for word in words)).error
    assert message in error
    assert "Hunter" not in error
