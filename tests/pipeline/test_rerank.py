"""Scores of pairs, from tables and by re-rankers: each pair once, in a stage that goes on where it was stopped."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import OtherSettingsError, read_json
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.engine.systems import IntArray
from ray_backfill.pipeline.rerank import PairScores, read_scores, score_pairs
from tests.pipeline import _rerankers

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
HERE = "python:tests.pipeline._rerankers:"
N, Q = 30, 6


def write(path: Path, query_id: Any = None, **columns: Any) -> EmbeddingFolder:
    rng = np.random.default_rng(0)

    def split(rows: int, ids: Any) -> dict[str, Any]:
        texts = [" ".join(rng.choice(NUMBERS, rng.integers(1, 8))) for _ in range(rows)]
        vectors = {"old": rng.normal(size=(rows, 3)), "new": rng.normal(size=(rows, 4))}
        return {"id": ids, **vectors, "text": texts, "label": np.arange(rows) % 3, "count": np.arange(rows)}

    gallery = split(N, [f"i{row}" for row in range(N)]) | columns
    queries = split(Q, np.arange(100, 100 + Q) if query_id is None else query_id)
    return read_folder(rb.write_folder(path, gallery, queries))


@pytest.fixture
def folder(tmp_path: Path) -> EmbeddingFolder:
    _rerankers.calls.clear()
    _rerankers.fails_after[0] = 10**9
    return write(tmp_path / "e")


def all_pairs(queries: int = Q, items: int = N) -> tuple[IntArray, IntArray]:
    return np.repeat(np.arange(queries), items), np.tile(np.arange(items), queries)


def parts(out: Path) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in sorted(out.glob("part-*.parquet"))}


def texts(folder: EmbeddingFolder) -> tuple[list[str], list[str]]:
    assert folder.queries is not None
    return folder.queries.column("text").to_pylist(), folder.gallery.column("text").to_pylist()


@given(st.data())
def test_a_pair_has_its_score_and_any_other_none(data: st.DataObject) -> None:
    known = data.draw(st.dictionaries(st.tuples(st.integers(0, 4), st.integers(0, 6)), st.floats(-9, 9), max_size=20))
    asked = data.draw(st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 9)), max_size=30))
    query, item = np.array(sorted(known), np.int64).reshape(-1, 2).T
    scores = PairScores(query, item, np.array([known[pair] for pair in sorted(known)]))
    asked_query, asked_item = np.array(asked, np.int64).reshape(-1, 2).T
    wanted = [known.get(pair, np.nan) for pair in asked]
    np.testing.assert_array_equal(scores.of(asked_query, asked_item), wanted)
    np.testing.assert_array_equal(scores.of(asked_query[None], asked_item[None]), [wanted])


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("ids", ["numbers", "words"])
def test_a_table_of_scores_in_any_order(tmp_path: Path, suffix: str, ids: str) -> None:
    folder = write(tmp_path / "e", [f"q{row:03}" for row in range(Q)] if ids == "words" else None)
    assert folder.queries is not None
    query, item = all_pairs()
    score = np.random.default_rng(1).normal(size=len(query))
    shuffled = np.random.default_rng(2).permutation(len(query))[:100]
    frame = pd.DataFrame({
        "score": score[shuffled], "item": folder.gallery.id[item[shuffled]], "more": "x",
        "query": folder.queries.id[query[shuffled]],
    })  # fmt: skip
    file = tmp_path / f"scores{suffix}"
    frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    scores = read_scores(file, folder)
    assert sorted(zip(scores.query, scores.item, strict=True)) == list(zip(scores.query, scores.item, strict=True))
    expected = np.full(len(query), np.nan)
    expected[shuffled] = score[shuffled]
    np.testing.assert_array_equal(scores.of(query, item), expected)


GOOD = {"query": [100, 101, 101], "item": ["i3", "i3", "i4"], "score": [0.5, -2.0, 3.0]}


def test_a_gallery_that_queries_itself_has_scores_of_its_items(tmp_path: Path) -> None:
    gallery: dict[str, Any] = {"id": ["a", "b", "c"], "old": np.eye(3), "new": np.eye(3), "label": [0, 0, 0]}
    folder = read_folder(rb.write_folder(tmp_path / "e", gallery))
    pd.DataFrame({"query": ["c", "a"], "item": ["a", "b"], "score": [1, 2]}).to_csv(tmp_path / "s.csv")
    scores = read_scores(tmp_path / "s.csv", folder)
    assert (scores.query.tolist(), scores.item.tolist(), scores.score.tolist()) == ([0, 2], [1, 0], [2.0, 1.0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query": [100, 101, 7]}, "'query': '7' in row 2 is no id of .*queries.parquet"),
        ({"item": ["i3", "103", "x"]}, r"'item': '103' in row 1 is no id of .*gallery.parquet; .*\(2 of 3 rows\)"),
        ({"query": [100, None, 101]}, "missing value in row 1"),
        ({"item": ["i3", "i3", None]}, "'item': (missing value|'') in row 2"),
        ({"query": [100.5, 100, 101]}, "not fractions"),
        ({"score": [0.5, np.nan, np.inf]}, "'score'.* row 1"),
        ({"score": [0.5, -np.inf, 1.0]}, "'score': -inf in row 1"),
        ({"score": ["much", "more", "most"]}, "'score' must hold numbers, not text"),
        ({"query": [101, 100, 101], "item": ["i4", "i3", "i4"]}, "query 101 and item i4 have several scores"),
        ({"score": None}, "no column 'score'"),
        ({"query": None}, "no column 'query'"),
        ({"query": [], "item": [], "score": []}, "has no rows"),
    ],
)
@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_table_that_cannot_be_right(
    tmp_path: Path, folder: EmbeddingFolder, change: dict[str, Any], says: str, suffix: str
) -> None:
    frame = pd.DataFrame({name: values for name, values in (GOOD | change).items() if values is not None})
    file = tmp_path / f"scores{suffix}"
    frame.to_csv(file, index=False) if suffix == ".csv" else frame.to_parquet(file)
    with pytest.raises(InputError, match=says) as error:
        read_scores(file, folder)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [("scores.json", "{}", "give a .parquet or .csv file"), ("none.csv", None, "does not exist"),
     ("scores.parquet", "PAR1", "cannot be read")],
)  # fmt: skip
def test_a_file_that_is_no_table(
    tmp_path: Path, folder: EmbeddingFolder, name: str, content: str | None, says: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=says):
        read_scores(tmp_path / name, folder)


@pytest.mark.parametrize("model", ["score", "score#batch=4", "Small"])
def test_scores_are_those_of_the_function(tmp_path: Path, folder: EmbeddingFolder, model: str) -> None:
    query, item = all_pairs()
    mixed = np.random.default_rng(0).permutation(len(query))
    twice = np.append(mixed, mixed[:7])
    scores = score_pairs(query[twice], item[twice], folder, "text", HERE + model, tmp_path / "out", block=50)
    of_query, of_item = texts(folder)
    assert sorted(itertools.chain(*(zip(*call, strict=True) for call in _rerankers.calls))) == sorted(
        itertools.product(of_query, of_item)
    )
    assert max(len(call[0]) for call in _rerankers.calls) == {"score": 50, "score#batch=4": 4, "Small": 5}[model]
    expected = np.array(_rerankers.score([of_query[q] for q in query], [of_item[i] for i in item]))
    expected = expected.astype(np.float32) if model == "Small" else expected
    np.testing.assert_array_equal((scores.query, scores.item), (query, item))
    np.testing.assert_array_equal(scores.score, expected)
    facts = read_json(tmp_path / "out" / "manifest.json")
    assert (facts["finished"], facts["pairs"], len(facts["files"])) == (True, Q * N, 4)


def test_a_stopped_run_goes_on_and_gives_the_same_bytes(tmp_path: Path, folder: EmbeddingFolder) -> None:
    query, item = all_pairs()
    whole = score_pairs(query, item, folder, "text", f"{HERE}score#batch=20", tmp_path / "whole", block=40)
    _rerankers.calls.clear()
    _rerankers.fails_after[0] = 5  # in the second batch of the third block
    model = f"{HERE}score#batch=20"
    with pytest.raises(InputError, match="RuntimeError: out of ") as error:
        score_pairs(query, item, folder, "text", model, tmp_path / "out", block=40)
    assert "\n" not in str(error.value)
    assert len(parts(tmp_path / "out")) == 2
    assert not read_json(tmp_path / "out" / "manifest.json")["finished"]
    _rerankers.fails_after[0] = 10**9
    _rerankers.calls.clear()
    again = score_pairs(query, item, folder, "text", model, tmp_path / "out", block=40)
    assert sum(len(call[0]) for call in _rerankers.calls) == Q * N - 80
    assert parts(tmp_path / "out") == parts(tmp_path / "whole")
    np.testing.assert_array_equal(again.score, whole.score)


def test_only_new_pairs_are_scored(tmp_path: Path, folder: EmbeddingFolder, capsys: pytest.CaptureFixture[str]) -> None:
    query, item = all_pairs()
    some = item < 10
    first = score_pairs(query[some], item[some], folder, "text", f"{HERE}score", tmp_path / "out", block=25)
    before = parts(tmp_path / "out")
    assert f"{Q * 10:,} of {Q * 10:,} pairs" in capsys.readouterr().err
    _rerankers.calls.clear()
    _rerankers.fails_after[0] = 0
    with pytest.raises(InputError):
        score_pairs(query, item, folder, "text", f"{HERE}score", tmp_path / "out", block=25)
    assert not read_json(tmp_path / "out" / "manifest.json")["finished"]
    _rerankers.fails_after[0] = 10**9
    capsys.readouterr()
    every = score_pairs(query, item, folder, "text", f"{HERE}score", tmp_path / "out", block=25)
    assert sum(len(call[0]) for call in _rerankers.calls) == Q * 20
    assert f"{Q * 20:,} of {Q * N:,} pairs" in capsys.readouterr().err
    assert before.items() <= parts(tmp_path / "out").items()
    np.testing.assert_array_equal(every.of(first.query, first.item), first.score)
    _rerankers.calls.clear()
    manifest = (tmp_path / "out" / "manifest.json").read_bytes()
    last = score_pairs(query[~some], item[~some], folder, "text", f"{HERE}score", tmp_path / "out")
    assert not _rerankers.calls
    assert capsys.readouterr().err == ""
    assert (tmp_path / "out" / "manifest.json").read_bytes() == manifest
    np.testing.assert_array_equal(last.score, every.score[every.item >= 10])
    assert len(last.score) == Q * 20


def test_a_damaged_part_is_made_again(tmp_path: Path, folder: EmbeddingFolder) -> None:
    query, item = all_pairs()
    whole = score_pairs(query, item, folder, "text", f"{HERE}score", tmp_path / "out", block=60)
    damaged = sorted((tmp_path / "out").glob("part-*.parquet"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    _rerankers.calls.clear()
    again = score_pairs(query, item, folder, "text", f"{HERE}score", tmp_path / "out", block=60)
    assert sum(len(call[0]) for call in _rerankers.calls) == 60
    np.testing.assert_array_equal(again.score, whole.score)
    assert len(parts(tmp_path / "out")) == 3


def test_scores_of_another_model_or_other_texts_are_refused_or_replaced(
    tmp_path: Path, folder: EmbeddingFolder
) -> None:
    query, item = all_pairs()
    out = tmp_path / "out"
    score_pairs(query, item, folder, "text", f"{HERE}score", out)
    with pytest.raises(OtherSettingsError, match=r"object: 'score' there, 'other' requested.*--overwrite"):
        score_pairs(query, item, folder, "text", f"{HERE}other", out)
    for split in (0, 1):
        columns = with_other_vectors(folder)
        columns[split]["text"] = ["another text", *columns[split]["text"].to_pylist()[1:]]
        changed = read_folder(rb.write_folder(tmp_path / f"changed{split}", *columns))
        with pytest.raises(OtherSettingsError, match="different from the earlier run: texts"):
            score_pairs(query, item, changed, "text", f"{HERE}score", out)
    assert len(parts(out)) == 1
    zeros = score_pairs(query[:9], item[:9], folder, "text", f"{HERE}other", out, overwrite=True)
    np.testing.assert_array_equal(zeros.score, np.zeros(9))
    # Vectors and the order of pairs are no part of what a score depends on.
    same = read_folder(rb.write_folder(tmp_path / "same", *with_other_vectors(folder)))
    _rerankers.calls.clear()
    score_pairs(query[:9][::-1], item[:9][::-1], same, "text", f"{HERE}other", out)
    assert not _rerankers.calls


def with_other_vectors(folder: EmbeddingFolder) -> list[dict[str, Any]]:
    assert folder.queries is not None
    return [
        {"id": split.id, "old": -split.old, "new": -split.new, "label": split.label, "text": split.column("text")}
        for split in (folder.gallery, folder.queries)
    ]


def test_no_pairs_need_no_scores(tmp_path: Path, folder: EmbeddingFolder) -> None:
    none = np.empty(0, np.int64)
    assert len(score_pairs(none, none, folder, "text", f"{HERE}score", tmp_path / "out").score) == 0
    assert read_json(tmp_path / "out" / "manifest.json")["finished"]
    assert np.isnan(score_pairs(none, none, folder, "text", f"{HERE}score", tmp_path / "out").of(*all_pairs())).all()


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("not_a_number", "returned nan for query 10[0-9] and item i[0-9]+"),
        ("infinite", "returned -inf for query"),
        ("too_few", r"shape \(6,\) for 7 pairs"),
        ("two_each", r"shape \(7, 2\) for 7 pairs"),
        ("words", "type <U"),
        ("nothing", "type object"),
        ("exits", "SystemExit: 3"),
        ("Unsure", r"failed in identity\(\)"),
        ("number", "must take a list of queries and one of texts"),
        ("none", "has no none"),
    ],
)
def test_a_reranker_that_cannot_be_used(tmp_path: Path, folder: EmbeddingFolder, model: str, says: str) -> None:
    query, item = all_pairs()
    with pytest.raises(InputError, match=says) as error:
        score_pairs(query, item, folder, "text", f"{HERE}{model}#batch=7", tmp_path / "out", block=14)
    assert "\n" not in str(error.value)
    assert not any((tmp_path / "out").glob("**/*.tmp"))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("hf:name", "unknown re-ranker kind 'hf'; known: cross-encoder, python"),
        ("name", "write one of cross-encoder:NAME_OR_FOLDER, python:MODULE:FUNCTION"),
        ("cross-encoder:", "lacks a name"),
        ("cross-encoder:./nowhere", "there is no ./nowhere"),
        ("cross-encoder:a#dims=3", "no option dims=3"),
        ("python:a:b#normalise=yes", "no option normalise=yes"),
        ("python:nowhere_at_all:b", "there is no module nowhere_at_all"),
    ],
)
def test_words_that_name_no_reranker(tmp_path: Path, folder: EmbeddingFolder, model: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        score_pairs(*all_pairs(), folder, "text", model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("column", "says"), [("body", "no column 'body'"), ("count", "must hold text, not integers")])
def test_a_column_without_texts(tmp_path: Path, folder: EmbeddingFolder, column: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        score_pairs(*all_pairs(), folder, column, f"{HERE}score", tmp_path / "out")


def test_a_missing_text_is_empty(tmp_path: Path) -> None:
    _rerankers.calls.clear()
    folder = write(tmp_path / "e", text=[None, *["one"] * (N - 1)])
    score_pairs(np.array([0, 0]), np.array([0, 1]), folder, "text", f"{HERE}score", tmp_path / "out")
    assert _rerankers.calls[0][1] == ["", "one"]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a folder of a small BERT that scores pairs."""

    def make(head: str = "BertForSequenceClassification", labels: int = 1, seed: int = 0) -> Path:
        import torch
        import transformers

        folder = tmp_path_factory.mktemp("cross")
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *NUMBERS]
        (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
        torch.manual_seed(seed)
        config = transformers.BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=24, num_labels=labels, initializer_range=0.5,
        )  # fmt: skip
        getattr(transformers, head)(config).eval().save_pretrained(folder)
        transformers.BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=24).save_pretrained(folder)
        return folder

    return make


def test_a_cross_encoder_scores_as_its_own_predict(
    tmp_path: Path, folder: EmbeddingFolder, cross_encoder: Callable[..., Path]
) -> None:
    from sentence_transformers import CrossEncoder

    place = cross_encoder()
    query, item = all_pairs()
    scores = score_pairs(query, item, folder, "text", f"cross-encoder:{place}#batch=16", tmp_path / "out", block=70)
    of_query, of_item = texts(folder)
    pairs = [(of_query[q], of_item[i]) for q, i in zip(query, item, strict=True)]
    expected = CrossEncoder(str(place), device="cpu").predict(pairs)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(scores.score, expected, atol=1e-6)
    # Another length, and other weights, are other models; another batch is not.
    score_pairs(query, item, folder, "text", f"cross-encoder:{place}", tmp_path / "out")
    for other in (f"{place}#tokens=9", cross_encoder(seed=1)):
        with pytest.raises(OtherSettingsError):
            score_pairs(query, item, folder, "text", f"cross-encoder:{other}", tmp_path / "out")
    short = score_pairs(query, item, folder, "text", f"cross-encoder:{place}#tokens=9", tmp_path / "short")
    cut = CrossEncoder(str(place), device="cpu", max_length=9).predict(pairs)
    np.testing.assert_allclose(short.score, cut, atol=1e-6)
    assert np.abs(cut - expected).max() > 1e-3


@pytest.mark.parametrize(
    ("made", "says"), [({"head": "BertModel"}, "no trained head"), ({"labels": 3}, "gives 3 numbers for a pair")]
)
def test_a_model_that_does_not_score_pairs(
    tmp_path: Path, folder: EmbeddingFolder, cross_encoder: Callable[..., Path], made: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        score_pairs(*all_pairs(), folder, "text", f"cross-encoder:{cross_encoder(**made)}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_not_installed_is_named(
    tmp_path: Path, folder: EmbeddingFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="python -m pip install sentence-transformers"):
        score_pairs(*all_pairs(), folder, "text", f"cross-encoder:{tmp_path}", tmp_path / "out")
