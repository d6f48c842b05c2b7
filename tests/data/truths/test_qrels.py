"""Judgements in every form that is read: equal to what ir_measures and BEIR's own reader make of the same ones."""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.data.qrels import read_qrels
from ray_backfill.data.truth import find_truth

N, Q = 40, 12
Judged = list[tuple[str, str, int]]


def judged() -> Judged:
    rng = np.random.default_rng(0)
    return [
        (f"q{query}", f'd "{item}"' if item % 7 == 0 else f"d{item}", int(rng.integers(-1, 4)))
        for query in range(Q)
        for item in rng.choice(N, 6, replace=False)
    ]


def trec(path: Path, rows: Judged) -> None:
    path.write_text("".join(f"{query}\t0  {item} {grade}\n" for query, item, grade in rows))


def beir(path: Path, rows: Judged) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        writer.writerows([("query-id", "corpus-id", "score"), *rows])


def grouped(rows: Judged) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for query, item, grade in rows:
        found.setdefault(query, {})[item] = grade
    return found


def json_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def with_grades(path: Path, rows: Judged) -> None:
    json_lines(path, ({"query": query, "relevant": items} for query, items in grouped(rows).items()))


def of_mteb(path: Path, rows: Judged) -> None:
    names = ("query-id", "corpus-id", "score")
    json_lines(path, (dict(zip(names, row, strict=True)) for row in rows))


def parquet(path: Path, rows: Judged) -> None:
    queries, items, grades = zip(*rows, strict=True)
    table = pa.table({"score": pa.array(grades, pa.float64()), "corpus-id": items, "query-id": queries})
    pq.write_table(table, path, row_group_size=5)


FORMS: dict[str, Callable[[Path, Judged], None]] = {
    "test.tsv": beir, "grades.jsonl": with_grades, "mteb.jsonl": of_mteb, "test-00000-of-00001.parquet": parquet
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    items = [f'd "{item}"' if item % 7 == 0 else f"d{item}" for item in range(N)]
    gallery: dict[str, Any] = {name: rng.normal(size=(N, 4)) for name in ("old", "new")}
    queries: dict[str, Any] = {name: rng.normal(size=(Q, 4)) for name in ("old", "new")}
    rb.write_folder(tmp_path / "data", gallery | {"id": items}, queries | {"id": [f"q{query}" for query in range(Q)]})
    return tmp_path / "data"


def test_trec_is_read_as_ir_measures_does(tmp_path: Path) -> None:
    rows = [row for row in judged() if '"' not in row[1]]
    trec(tmp_path / "qrels.txt", rows)
    wanted = [
        (row.query_id, row.doc_id, row.relevance) for row in ir_measures.read_trec_qrels(str(tmp_path / "qrels.txt"))
    ]
    assert [*read_qrels(tmp_path / "qrels.txt").itertuples(index=False, name=None)] == wanted


def test_tabs_are_read_as_beir_does(tmp_path: Path) -> None:
    """The loop is that of BEIR's GenericDataLoader: csv with tabs, and the first line passed over."""
    beir(tmp_path / "test.tsv", judged())
    with (tmp_path / "test.tsv").open(encoding="utf-8") as file:
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_MINIMAL)
        next(reader)
        wanted = [(row[0], row[1], int(row[2])) for row in reader]
    found = read_qrels(tmp_path / "test.tsv")
    assert [*found.itertuples(index=False, name=None)] == wanted
    assert found.index[0] == 2


@pytest.mark.parametrize("name", FORMS)
def test_every_form_says_the_same(name: str, folder: Path, tmp_path: Path) -> None:
    FORMS[name](tmp_path / name, judged())
    truth = find_truth(rb.read_folder(folder), ("qrels", str(tmp_path / name)))
    wanted = {
        query: {item: grade for item, grade in items.items() if grade > 0} for query, items in grouped(judged()).items()
    }
    ids = rb.read_folder(folder).gallery.id
    starts, grades = truth.ground.positive_starts, np.asarray(truth.ground.grades)
    for query in range(Q):
        found = dict(zip(ids[truth.ground.positives_of(query)], grades[starts[query] : starts[query + 1]], strict=True))
        assert found == wanted.get(f"q{query}", {})
    assert truth.facts["truth"]["judgements"] == len(judged())


def test_lists_of_relevant_items_have_one_grade(folder: Path, tmp_path: Path) -> None:
    lines = [
        {"query": "q1", "relevant": ["d1", "d2"]},
        {"query": "q1", "relevant": ["d2"]},
        {"query": "q3", "relevant": []},
    ]
    json_lines(tmp_path / "relevant.txt", lines)
    truth = find_truth(rb.read_folder(folder), ("qrels", str(tmp_path / "relevant.txt")))
    assert truth.ground.positives_of(1).tolist() == [1, 2]
    assert truth.ground.grades is None
    assert len(truth.ground.skipped) == Q - 1
    assert "repeat an earlier one: 1." in truth.notes[0]


def test_ids_that_are_numbers_are_compared_as_text(tmp_path: Path) -> None:
    json_lines(tmp_path / "q.jsonl", [{"query": 7, "relevant": {"12": 2}}])
    pq.write_table(pa.table({"query-id": [7], "corpus-id": [12], "score": [2]}), tmp_path / "q.parquet")
    for name in ("q.jsonl", "q.parquet"):
        pd.testing.assert_frame_equal(
            read_qrels(tmp_path / name).reset_index(drop=True),
            pd.DataFrame({"query": ["7"], "item": ["12"], "grade": [2.0]}),
        )


HEAD = "query-id\tcorpus-id\tscore\n"
JSON = r'must be {"query": ID, "relevant": \[ID, ...\]}'


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", HEAD + "q1\td1\t1\n\nq1\t0\td2\t1\n", "line 4: must have three fields with tabs.*, not 4; mend it"),
        ("a.tsv", HEAD + "q1\td1\tgood\n", "line 2: the grade must be a finite number, not 'good'; mend it"),
        ("a.tsv", HEAD + "q1\t\t1\n", "line 2: an id must be a text or a whole number, not ''"),
        ("a.tsv", HEAD + 'q1\t"d1\t1\n', "line 2: must have three fields with tabs between them .*, not 2"),
        ("a.tsv", HEAD, "a.tsv is empty"),
        ("a.txt", "query-id corpus-id score\n", "line 1: must have four words .*, or three with tabs .*, not 3"),
        ("a.jsonl", '{"query": "q1", "relevant": ["d1"]}\n{"query": "q2"\n', f"line 2: {JSON}"),
        ("a.jsonl", '{"query": "q1", "relevant": "d1"}\n', f"line 1: {JSON}"),
        ("a.jsonl", '{"query": "q1", "relevant": 5}\n', f"line 1: {JSON}"),
        ("a.jsonl", '{"query": "q1", "relevant": ["d1"]}\n["q1"]\n', f"line 2: {JSON}"),
        ("a.jsonl", '{"id": "q1", "relevant": ["d1"]}\n', f"line 1: {JSON}"),
        ("a.jsonl", '{"query": ' + "[" * 50_000 + "]" * 50_000 + "}\n", f"line 1: {JSON}"),
        ("a.jsonl", '{"query": null, "relevant": ["d1"]}\n', "line 1: an id must be .*, not None"),
        ("a.jsonl", '{"query": "q1", "relevant": [["d1", 1]]}\n', "line 1: an id must be .*, not \\['d1', 1\\]"),
        ("a.jsonl", '{"query": "q1", "relevant": {"d1": NaN}}\n', "line 1: the grade must be .*, not nan"),
        ("a.jsonl", '{"query": "q1", "relevant": {"d1": true}}\n', "line 1: the grade must be .*, not True"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named_with_what_to_do(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message) as error:
        read_qrels(tmp_path / name)
    assert str(error.value).startswith(str(tmp_path / name))
    assert "\n" not in str(error.value)


def test_a_broken_row_of_parquet_is_named(folder: Path, tmp_path: Path) -> None:
    columns: dict[str, Any] = {"query-id": ["q1", "q2"], "corpus-id": ["d1", None], "score": [1, 1]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="row 2: an id must be a text or a whole number, not None"):
        read_qrels(tmp_path / "a.parquet")
    pq.write_table(
        pa.table(columns | {"corpus-id": ["d1", "d1"], "query-id": ["q1", "q1"], "score": [1, 2]}),
        tmp_path / "b.parquet",
    )
    with pytest.raises(
        InputError, match="row 2: another grade of item d1 for query q1 than in an earlier row; keep one"
    ):
        find_truth(rb.read_folder(folder), ("qrels", str(tmp_path / "b.parquet")))
    pq.write_table(pa.table({"query": ["q1"]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="has no column 'query-id'; it has: query"):
        read_qrels(tmp_path / "c.parquet")
