"""Rates of models whose pace is known, lengths by their tokenizers, indexes in PostgreSQL, and what is refused."""

import json
import shlex
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from PIL import Image

from ray_backfill.encode.encoder import Device
from ray_backfill.encode.items import ItemSettings, ItemSources
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.plan.builds import enlarged, measure_pgvector
from ray_backfill.plan.measure import MeasureSettings, measure
from ray_backfill.plan.rates import STAGES, TOGETHER, Rates, read_rates
from ray_backfill.workers.settings import EmbedActors
from tests.command import Command
from tests.data.sources.stores import postgres
from tests.test_bad_input import listing
from tests.test_structure import ROOT

MODELS = "python:tests.encode._models"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "black", "cat", "sat"]


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests start no Ray."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def texts(path: Path, rows: int = 90, text: str = "a black cat", broken: int = 0) -> str:
    lines = [{"id": f"i{row}", "text": " " if row < broken else text} for row in range(rows)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def measured(model: str, source: str, scratch: Path, modality: str = "text", seconds: float = 0.3) -> Rates:
    sources, settings = ItemSources(modality, source), MeasureSettings(seconds)
    return measure(parse_spec(model), sources, settings, ItemSettings(), EmbedActors(), scratch)


def test_the_stage_of_a_model_that_sleeps_sets_the_pace(tmp_path: Path) -> None:
    source = texts(tmp_path / "texts.jsonl", broken=9)
    rates = measured(f"{MODELS}:slow_old#batch=10", source, tmp_path / "scratch", seconds=0.9)
    assert [rate.stage for rate in rates.stages] == [*STAGES, TOGETHER]
    assert rates.slowest == rates.stages[2]
    # 0.2 s for each batch of ten, some of which have lost items that are empty.
    assert 20 < rates.stages[2].items_per_s < 50
    assert rates.stages[2].windows
    model = load_model(parse_spec(f"{MODELS}:slow_old"), "text", Device())
    assert rates.identity == {"name": rates.model} | model.identity()
    assert (rates.modality, rates.dimensions, rates.characters_per_item) == ("text", 16, 11)
    assert np.isnan(rates.tokens_per_item)
    assert {build.kind for build in rates.builds} == {build.kind for build in rates.searches} == {"hnsw", "ivf"}
    for kind in ("hnsw", "ivf"):
        sizes = [build.items for build in rates.builds if build.kind == kind]
        assert all(larger == 2 * size for size, larger in pairwise(sizes))
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_stage_takes_the_seconds_that_were_asked_for(tmp_path: Path) -> None:
    source = texts(tmp_path / "texts.jsonl")
    began = time.perf_counter()
    rates = measured(f"{MODELS}:wide", source, tmp_path, seconds=0.2)
    assert time.perf_counter() - began > 4 * 0.2 + 2 * 0.2
    assert all(2 <= len(rate.windows) <= 5 for rate in rates.stages)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=8, **size)).eval().save_pretrained(folder)
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=8).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["hf", "sentence-transformers"])
def test_tokens_are_counted_by_the_models_own_tokenizer(kind: str, bert: Path, tmp_path: Path) -> None:
    """[CLS], three or one of its words, [SEP]; and no more than the eight that it reads."""
    for text, tokens in (("a black cat", 5), ("dog", 3), ("cat " * 20, 8)):
        source = texts(tmp_path / "texts.jsonl", text=text)
        rates = measured(f"{kind}:{bert}", source, tmp_path, seconds=0.1)
        assert (rates.tokens_per_item, rates.characters_per_item) == (tokens, len(text.strip()))


def test_tokens_of_a_table_of_word_vectors_are_counted(bert: Path, tmp_path: Path) -> None:
    """It reads texts of any length, and adds no tokens of its own."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bert / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu").save(str(tmp_path / "st"))
    source = texts(tmp_path / "texts.jsonl", text="cat " * 20)
    rates = measured(f"sentence-transformers:{tmp_path / 'st'}", source, tmp_path, seconds=0.1)
    assert (rates.tokens_per_item, rates.dimensions) == (20, 8)


def test_images_are_decoded_and_broken_ones_do_not_count(tmp_path: Path) -> None:
    root = tmp_path / "images"
    root.mkdir()
    for row in range(20):
        Image.new("RGB", (9, 9), (row, 0, 0)).save(root / f"{row}.png")
    (root / "3.png").write_bytes(b"no image")
    rates = measured(f"{MODELS}:pixels", str(root), tmp_path, "image", 0.2)
    assert (rates.modality, rates.dimensions) == ("image", 48)
    assert all(rate.items_per_s > 0 for rate in rates.stages)
    assert np.isnan(rates.characters_per_item)


def test_more_vectors_are_the_given_ones_and_noisy_copies() -> None:
    rng = np.random.default_rng(0)
    given = (rng.normal(size=(50, 4)) * [1, 10, 100, 0]).astype(np.float32)
    more = enlarged(given, 20_000)
    np.testing.assert_array_equal(more[:50], given)
    assert len(np.unique(more, axis=0)) == 20_000
    np.testing.assert_allclose(more[50:, :3].var(axis=0), 1.09 * given[:, :3].var(axis=0), rtol=0.05)
    np.testing.assert_array_equal(enlarged(given, 7), given[:7])


@pytest.mark.full
def test_indexes_are_built_in_postgres_and_leave_nothing(tmp_path: Path) -> None:
    import psycopg

    vectors = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    with postgres(tmp_path) as address:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION vector")
            before = connection.execute("SELECT count(*) FROM pg_class").fetchone()
            measured = measure_pgvector(address, vectors, 0.05, "64MB")
            assert connection.execute("SELECT count(*) FROM pg_class").fetchone() == before
        first, *_ = [build for build in measured.builds if build.kind == "pgvector-hnsw"]
        *_, last = [build for build in measured.builds if build.kind == "pgvector-hnsw"]
        assert (first.items, first.memory_bytes, first.fits) == (1_000, 64 << 20, True)
        assert (last.items, last.memory_bytes, last.fits) == (2_000, 1 << 20, False)
        assert {search.kind for search in measured.searches} == {"pgvector-hnsw", "pgvector-ivfflat"}


def test_the_command_writes_a_file_that_follows_its_schema(tmp_path: Path, command: Command) -> None:
    source, out = texts(tmp_path / "texts.jsonl"), tmp_path / "made" / "rates.json"
    ended = command("measure", "--new", f"{MODELS}:wide", "--texts", source, "--out", out, "--seconds", "0.1")
    assert ended.code == 0, ended
    rates = read_rates(out)
    jsonschema.validate(json.loads(out.read_text()), json.loads((ROOT / "docs" / "schema" / "rates.json").read_text()))
    assert rates.slowest is not None
    (line,) = [line for line in ended.out.splitlines() if line.endswith("slowest")]
    assert line.split()[:2] == [rates.slowest.stage, f"{rates.slowest.items_per_s:,.1f}"]
    assert "unknown: tokens per item, builds of pgvector" in ended.out
    assert rates.command.startswith("ray-backfill measure --new")
    assert [path.name for path in out.parent.iterdir()] == ["rates.json"]


BAD: list[tuple[str, str]] = [
    ("--texts {texts}", "--new"),
    ("--new {m}:wide", "give --texts or --images"),
    ("--new {m}:wide --texts {texts} --images {tmp}", "give --texts or --images"),
    ("--new word2vec:a --texts {texts}", "unknown --new kind 'word2vec'"),
    ("--new {m}:wide --texts {texts} --seconds 0", "--seconds must be a finite number above 0, got 0.0"),
    ("--new {m}:wide --texts {texts} --seconds nan", "--seconds must be a finite number above 0, got nan"),
    ("--new {m}:wide --texts {texts} --seconds long", "--seconds must be a number, not 'long'"),
    ("--new openai:text-embedding-3-small --texts {texts}", "in the section provider: of fleet.yaml"),
    ("--new cached:{tmp} --texts {texts}", "embeds nothing"),
    ("--new {m}:wide --texts {texts} --store mysql://host/db", "only PostgreSQL is measured"),
    ("--new {m}:wide --texts {texts} --maintenance-work-mem 64MB", "give --store, or leave it out"),
    ("--new {m}:wide --texts {texts} --store postgresql:///x --maintenance-work-mem lots", "written as 64MB"),
    ("--new {m}:wide --texts {texts} --store postgresql://u@127.0.0.1:1/none", "postgresql://u@127.0.0.1:1/none: "),
    ("--new {m}:wide --texts {tmp}/none.csv", "none.csv does not exist"),
    ("--new {m}:wide --texts {texts} --out {tmp}", "is a folder; name a file"),
    ("--new {m}:wide --texts {texts} --actors.gpus 2", "--actors.gpus is a share of one GPU"),
    ("--new {m}:wide --texts {texts} --actors.number 2", "unrecognized options: --actors.number"),
    ("--new {m}:fails --texts {texts}", "failed on 64 texts: ValueError: out of order"),
    ("--new {m}:not_finite --texts {texts}", "a vector that is not finite"),
    ("--new {m}:tokens --texts {texts}", "one vector for each item is needed"),
    ("--new {m}:nothing --texts {texts}", "has no nothing"),
    ("--new {m}:pixels --images {tmp}", "has no images"),
    ("--new {m}:wide --texts {few}", "3 items are too few"),
    ("--new {m}:wide --texts {empty}", "none of the items can be embedded: its text is empty"),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=[arguments for arguments, _ in BAD])
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    places: dict[str, Any] = {"tmp": tmp_path, "m": MODELS, "texts": texts(tmp_path / "texts.jsonl")}
    places |= {"few": texts(tmp_path / "few.jsonl", 3), "empty": texts(tmp_path / "empty.jsonl", 20, " ")}
    monkeypatch.chdir(tmp_path)
    before = listing(tmp_path)
    assert words in command("measure", *shlex.split(arguments.format(**places))).error
    assert listing(tmp_path) == before
