"""Text lists against plain Python: Lucene's formula, the rules of a list, and what a file may not hold."""

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.systems import Filter, GroundTruth
from ray_backfill.pipeline.lexical import TextLists, bm25_lists, read_lists

K1, B = 1.5, 0.75
STOP_WORDS = {"the", "is", "of", "and", "a", "not"}
TEXTS = [
    "The cat sat, and the CAT slept.",
    "A dog is a dog is a dog.",
    "cat and dog: the longest of the texts, which mentions a bird, a fish, a horse, a cow",
    None,
    "bird_1 is not bird",
    "the of and a",
    "cat sat, cat slept",
    "naïve Ärzte, naïve",
]
QUERIES = ["cat dog", "the Bird, the bird!", "unknown words", None, "naïve x cat"]


def write_split(path: Path, **columns: Any) -> None:
    rows = len(next(iter(columns.values())))
    same = vector_column(np.full((rows, 2), ord(path.name[0]), np.float32))
    write_parquet(path, pa.table({"id": np.arange(rows), "old": same, "new": same} | columns))


def write_data(path: Path, texts: Sequence[Any] = TEXTS, asked: Sequence[Any] = QUERIES) -> EmbeddingFolder:
    write_split(path / "gallery.parquet", text=texts)
    write_split(path / "queries.parquet", id=[f"q{row}" for row in range(len(asked))], text=asked)
    return read_folder(path)


def truth_of(ignored: Sequence[Sequence[int]], n_gallery: int, parts: Filter | None = None) -> GroundTruth:
    truth = GroundTruth.from_positives([[] for _ in ignored], ignored, n_gallery=n_gallery)
    return replace(truth, filter=parts)


def pairs_of(lists: TextLists) -> list[list[tuple[int, float]]]:
    """The lists without what is behind their ends, which must be empty places."""
    assert (str(lists.item.dtype), str(lists.score.dtype)) == ("int64", "float64")
    assert ((lists.item < 0) == (lists.score == -np.inf)).all()
    assert (np.diff(lists.item < 0, axis=1) >= 0).all()
    both = zip(lists.item.tolist(), lists.score.tolist(), strict=True)
    return [[pair for pair in zip(*columns, strict=True) if pair[0] >= 0] for columns in both]


def terms_of(text: str | None) -> list[str]:
    return [word for word in re.findall(r"\w\w+", (text or "").lower()) if word not in STOP_WORDS]


def lucene(query: str | None, texts: Sequence[str | None]) -> dict[int, float]:
    """The score of each text that shares a term with the query, by the formula."""
    known = [terms_of(text) for text in texts]
    mean = sum(map(len, known)) / len(known)
    score_of: dict[int, float] = {}
    for term in terms_of(query):
        having = sum(term in terms for terms in known)
        weight = math.log(1 + (len(known) - having + 0.5) / (having + 0.5))
        for row, terms in enumerate(known):
            if times := terms.count(term):
                of_term = weight * times / (times + K1 * (1 - B + B * len(terms) / mean))
                score_of[row] = score_of.get(row, 0) + of_term
    return score_of


def test_bm25_is_lucenes_formula(tmp_path: Path) -> None:
    folder = write_data(tmp_path)
    lists = pairs_of(bm25_lists(folder, "text", 50, truth_of([[]] * 5, len(TEXTS))))
    for listed, query in zip(lists, QUERIES, strict=True):
        assert dict(listed) == pytest.approx(lucene(query, TEXTS), rel=1e-5)
        assert listed == sorted(listed, key=lambda pair: (-pair[1], pair[0]))
    lists = pairs_of(bm25_lists(folder, "text", 2, truth_of([[6], [], [], [], []], len(TEXTS))))
    assert [[row for row, _ in listed] for listed in lists] == [[1, 0], [4, 2], [], [], [7, 0]]


def test_equal_texts_stand_in_the_order_of_their_rows_at_any_cut(tmp_path: Path) -> None:
    folder = write_data(tmp_path, [*["bird"] * 30, "bird bird", *["fish"] * 9], ["bird", "fish"])
    for most in (1, 2, 17, 31, 40, 99):
        lists = bm25_lists(folder, "text", most, truth_of([[], []], 40))
        assert lists.item.shape == (2, min(most, 40))
        rows = [[row for row, _ in pairs] for pairs in pairs_of(lists)]
        assert rows == [[30, *range(30)][:most], [*range(31, 40)][:most]]


def test_a_gallery_that_queries_itself_and_was_cut(tmp_path: Path) -> None:
    """Rows are those of the folder as it is in memory, not those of its files; statistics are of these, too."""
    write_split(tmp_path / "gallery.parquet", text=["cat", "dog", "cat dog", "cat", "horse"])
    folder = read_folder(tmp_path)
    cut = replace(folder, gallery=folder.gallery.take(np.array([3, 1, 2, 4])))
    lists = bm25_lists(cut, "text", 9, truth_of([[0], [1], [2], [3]], 4))
    texts = ["cat", "dog", "cat dog", "horse"]
    for query, listed in enumerate(pairs_of(lists)):
        expected = lucene(texts[query], texts)
        del expected[query]
        assert dict(listed) == pytest.approx(expected, rel=1e-5)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingFolder:
    texts = ["cat", "dog", "cat dog", "fish", "dog", "cat cat dog", "", "fish cat"]
    return write_data(tmp_path_factory.mktemp("few"), texts, ["dog", "fish cat", "horse"])


@given(st.data())
def test_what_a_query_finds_by_bm25(few: EmbeddingFolder, data: st.DataObject) -> None:
    ignored, parts = drawn_rules(data, 3, 8)
    most = data.draw(st.integers(1, 9))
    texts, asked = (of.column("text").to_pylist() for of in (few.gallery, few.queries) if of is not None)
    for query, listed in enumerate(pairs_of(bm25_lists(few, "text", most, truth_of(ignored, 8, parts)))):
        score_of = lucene(asked[query], texts)
        rows = [row for row in score_of if may_find(query, row, ignored, parts)]
        assert [row for row, _ in listed] == sorted(rows, key=lambda row: (-round(score_of[row], 4), row))[:most]


def drawn_rules(data: st.DataObject, n_queries: int, n_gallery: int) -> tuple[list[list[int]], Filter | None]:
    rows = st.lists(st.integers(0, n_gallery - 1), max_size=3)
    ignored = data.draw(st.lists(rows, min_size=n_queries, max_size=n_queries))
    if data.draw(st.booleans()):
        return ignored, None
    part = [data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) for n in (n_queries, n_gallery)]
    return ignored, Filter(np.array(part[0]), np.array(part[1]))


def may_find(query: int, row: int, ignored: Sequence[Sequence[int]], parts: Filter | None) -> bool:
    return row not in ignored[query] and (parts is None or parts.of_query[query] == parts.of_item[row])


SCORES = st.sampled_from([0.0, 0.5, 1.0, 1 + 1e-12, 7.25])


@given(
    st.sampled_from(["run", "csv", "parquet"]),
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 7)), SCORES, min_size=1),
    st.data(),
)
def test_what_a_file_lists(
    few: EmbeddingFolder, form: str, score_of: dict[tuple[int, int], float], data: st.DataObject
) -> None:
    ignored, parts = drawn_rules(data, 3, 8)
    most = data.draw(st.integers(1, 9))
    entries = data.draw(st.permutations([(query, row, score) for (query, row), score in score_of.items()]))
    file = few.path / f"list.{form}"
    if form == "parquet":
        queries, items, scores = zip(*entries, strict=True)
        write_parquet(file, pa.table({"query": [f"q{row}" for row in queries], "item": items, "score": scores}))
    elif form == "csv":
        file.write_text("score,query,note,item\n" + "".join(f"{score!r},q{q},x,{row}\n" for q, row, score in entries))
    else:
        file.write_text("\n" + "".join(f"q{q}\tQ0 {row}  1 {score!r} any\n" for q, row, score in entries))
    listed = pairs_of(read_lists(file, few, most, truth_of(ignored, 8, parts)))
    for query in range(3):
        kept = [(row, score) for q, row, score in entries if q == query and may_find(q, row, ignored, parts)]
        assert listed[query] == sorted(kept, key=lambda pair: (-pair[1], pair[0]))[:most]


def test_scores_below_zero_are_ranks(tmp_path: Path) -> None:
    folder, truth = write_data(tmp_path), truth_of([[]] * 5, len(TEXTS))
    (tmp_path / "list").write_text("q0 Q0 3 1 -1.5 x\nq0 Q0 2 2 -1 x\n")
    listed = pairs_of(read_lists(tmp_path / "list", folder, 9, truth, by_rank=True))
    assert listed == [[(2, -1.0), (3, -1.5)], [], [], [], []]


def test_what_an_import_left_out_is_not_unknown(tmp_path: Path) -> None:
    folder, truth = write_data(tmp_path), truth_of([[]] * 5, len(TEXTS))
    write_parquet(tmp_path / "gallery_left_out.parquet", pa.table({"id": [77], "reason": ["broken"]}))
    lines = "q0 Q0 77 1 3 x\nq0 Q0 7 2 2 x\nq1 Q0 77 1 3 x\n"
    (tmp_path / "list").write_text(lines)
    assert pairs_of(read_lists(tmp_path / "list", folder, 9, truth))[:2] == [[(7, 2.0)], []]
    (tmp_path / "list").write_text(lines + "q0 Q0 78 1 1 x\n")
    with pytest.raises(InputError, match=r"line 4: gallery.parquet has no id 78;"):
        read_lists(tmp_path / "list", folder, 9, truth)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, r"gallery.parquet has no column 'text'; it has: id, old, new"),
        ({"text": [1, 2]}, r"gallery.parquet, column 'text' must hold text, not integers; name another"),
        (
            {"text": pa.array([None, None], pa.string())},
            r"column 'text' has no terms .*; name another",
        ),
        ({"text": ["the", "x !"]}, r"gallery.parquet, column 'text' has no terms"),
    ],
)
def test_no_texts(tmp_path: Path, columns: dict[str, Any], words: str) -> None:
    write_split(tmp_path / "gallery.parquet", **({"id": [0, 1]} | columns))
    with pytest.raises(InputError, match=f"^[^\n]*{words}[^\n]*$"):
        bm25_lists(read_folder(tmp_path), "text", 9, truth_of([[0], [1]], 2))


def test_queries_without_texts(tmp_path: Path) -> None:
    folder = write_data(tmp_path, ["cat"], ["", None])
    with pytest.raises(InputError, match=r"queries.parquet, column 'text' has no terms"):
        bm25_lists(folder, "text", 9, truth_of([[], []], 1))


def test_bm25_needs_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(InputError, match="pip install bm25s"):
        bm25_lists(write_data(tmp_path), "text", 9, truth_of([[]] * 5, len(TEXTS)))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.run", "", r"a.run is empty; give"),
        ("a.run", "\n  \n", r"a.run is empty; give"),
        ("a.csv", "query,item,score\n", r"a.csv is empty; give"),
        ("a.csv", "", r"a.csv"),
        ("a.run", "q0 Q0 1 1 2.5 x\nq0 0 1 1\n", r"a.run, line 2 has 4 words; give"),
        ("a.run", "q0 Q0 1 1 high x\n", r"a.run, line 1: .*'high' is no number; mend"),
        ("a.run", b"q0 Q0 \xff 1 1 x\n", r"a.run, line 1: byte 0xff is not UTF-8; convert"),
        ("a.run", "q0 Q0 1 1 2 x\n\nq9 Q0 1 1 2 x\nq8 Q0 1 1 2 x\n", r"line 3: queries.parquet has no id q9 \(2 such"),
        ("a.run", "q0 Q0 1 1 2 x\nq0 Q0 01 2 1 x\n", r"line 2: gallery.parquet has no id 01; compare"),
        ("a.run", "q0 Q0 1 1 2 x\nq0 Q0 2 2 nan x\n", r"line 2: the score is nan; "),
        ("a.run", "q0 Q0 1 1 -inf x\nq0 Q0 2 2 inf x\n", r"line 1: the score is -inf \(2 such lines\); "),
        ("a.run", "q0 Q0 1 1 2 x\nq0 Q0 2 2 -0.5 x\n", r"line 2: the score -0.5 is negative; .*fusion: rrf"),
        ("a.run", "q0 Q0 1 1 2 x\nq0 Q0 1 2 1 x\n", r"line 2: query q0 has item 1 a second time; keep one"),
        ("a.csv", "query,item,score\nq0,1,2\nq0,9,2\n", r"a.csv, row 2: gallery.parquet has no id 9; compare"),
        ("a.csv", "query,item,rank\nq0,1,2\n", r"a.csv has no column 'score'; it has: query, item, rank"),
        ("a.csv", "query,item,score\nq0,1,high\n", r"a.csv, column 'score' must hold numbers, not text"),
        ("a.csv", "query,item,score\nq0,,2\n", r"a.csv, column 'item': missing value in row 0; fill"),
        ("a.csv", "query,item,score\nq0,1.5,2\n", r"a.csv, column 'item' must hold integers or text, not fractions"),
        ("a.parquet", "query,item,score\n", r"a.parquet"),
        ("b/a.run", "", r"a.run cannot be read: No such file"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    folder = write_data(tmp_path)
    if "/" not in name:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=f"^[^\n]*{words}[^\n]*$"):
        read_lists(tmp_path / name, folder, 9, truth_of([[]] * 5, len(TEXTS)))
