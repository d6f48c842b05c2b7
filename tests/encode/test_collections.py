"""Corpus, queries and judgements as MTEB's data sets on the Hugging Face Hub have them, and as ir_datasets does."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from tests.encode.test_items import lines, read

CORPUS = [{"_id": f"d{i}", "title": "" if i % 2 else f"Title {i} ", "text": f" text {i}\n"} for i in range(9)]
QUERIES = {split: [{"_id": f"{split}{i}", "text": f"query {i} "} for i in range(4)] for split in ("test", "dev")}
JUDGED = {
    split: [{"query-id": f"{split}{query}", "corpus-id": item, "score": grade} for query, item, grade in rows]
    for split, rows in {
        "test": [(0, "d1", 2), (0, "d2", 1), (1, "d3", 0), (2, "d8", 1), (2, "gone", 1)],
        "dev": [(3, "d0", 1)],
    }.items()
}  # fmt: skip
# As mteb's own _corpus_to_dict joins them: (title + " " + text).strip(), or text.strip().
TEXTS = [f"Title {i}   text {i}" if i % 2 == 0 else f"text {i}" for i in range(9)]


def parquet(folder: Path, part: str, split: str, rows: list[dict[str, Any]], files: int = 1) -> None:
    """As push_to_hub names them; the configuration default lies in data."""
    for number in range(files):
        path = folder / part / f"{split}-{number:05d}-of-{files:05d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows[number::files]), path)


def hub(folder: Path, prefix: str = "", qrels: str = "qrels") -> Path:
    for split in QUERIES:
        parquet(folder, f"{prefix}corpus", split, CORPUS, files=2)
        parquet(folder, f"{prefix}queries", split, QUERIES[split])
        parquet(folder, f"{prefix}{qrels}", split, JUDGED[split], files=2 if split == "test" else 1)
    return folder


def json_lines(folder: Path) -> Path:
    lines(folder / "corpus.jsonl", CORPUS)
    lines(folder / "queries.jsonl", [row for rows in QUERIES.values() for row in rows])
    for split, rows in JUDGED.items():
        lines(folder / "qrels" / f"{split}.jsonl", rows)
    return folder


def beir(folder: Path) -> Path:
    json_lines(folder)
    for split, rows in JUDGED.items():
        (folder / "qrels" / f"{split}.jsonl").unlink()
        judged = ("\t".join(map(str, row.values())) for row in rows)
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]))
    return folder


def one_corpus(folder: Path) -> Path:
    """As BeIR/scifact and many of mteb/ have it: the splits of corpus and queries are called like them."""
    parquet(folder, "corpus", "corpus", CORPUS)
    parquet(folder, "queries", "queries", [row for rows in QUERIES.values() for row in rows])
    for split, rows in JUDGED.items():
        lines(folder / "qrels" / f"{split}.jsonl", rows)
    return folder


def items(folder: Path, out: Path, **settings: Any) -> tuple[dict[str, str], dict[str, tuple[str, dict[str, float]]]]:
    """Text by id of the gallery; text and right answers by id of the queries."""
    made = write_items(out, ItemSources("text", str(folder)), ItemSettings(**settings))
    gallery, queries = read(made, "gallery"), read(made, "queries")
    answers = [dict(zip(*row, strict=True)) for row in zip(queries["positives"], queries["grades"], strict=True)]
    of_queries = dict(zip(queries["id"], zip(queries["text"], answers, strict=True), strict=True))
    return dict(zip(gallery["id"], gallery["text"], strict=True)), of_queries


@pytest.mark.parametrize(
    "make",
    [
        hub,
        lambda folder: hub(folder, qrels="default"),
        lambda folder: hub(folder, qrels="data"),
        json_lines,
        beir,
        one_corpus,
    ],
    ids=["hub", "default", "data", "json_lines", "beir", "one_corpus"],
)
def test_a_folder_of_the_hub(make: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "given")
    gallery, queries = items(folder, tmp_path / "items")
    assert gallery == {f"d{i}": text for i, text in enumerate(TEXTS)}
    assert queries == {"test0": ("query 0 ", {"d1": 2, "d2": 1}), "test2": ("query 2 ", {"d8": 1})}
    assert items(folder, tmp_path / "dev", split="dev")[1] == {"dev3": ("query 3 ", {"d0": 1})}


def test_a_folder_of_several_collections(tmp_path: Path) -> None:
    for language in ("de", "pt-br"):
        hub(tmp_path / "given", f"{language}-")
    assert items(tmp_path / "given", tmp_path / "items", subset="pt-br")[0]["d0"] == TEXTS[0]
    for subset in ("", "fr"):
        with pytest.raises(InputError, match=r"several collections; --items.subset names one: de, pt-br"):
            items(tmp_path / "given", tmp_path / "out", subset=subset)


def test_the_last_judgement_of_a_pair_counts(tmp_path: Path) -> None:
    """So it is in BEIR's and in mteb's own readers, whose judgements are dictionaries."""
    folder = json_lines(tmp_path / "given")
    more = [
        *JUDGED["test"],
        *({"query-id": "test0", "corpus-id": f"d{i}", "score": score} for i, score in ((1, 0), (2, 3))),
    ]
    lines(folder / "qrels" / "test.jsonl", more)
    assert items(folder, tmp_path / "items")[1]["test0"][1] == {"d2": 3}


def test_what_is_wrong_with_a_folder_is_said(tmp_path: Path) -> None:
    folder = hub(tmp_path / "given")
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"unknown --items.split 'tset'; did you mean test\?"):
        items(folder, out, split="tset")
    parquet(folder, "corpus", "train", CORPUS)
    (folder / "corpus" / "dev-00000-of-00002.parquet").unlink()
    (folder / "corpus" / "dev-00001-of-00002.parquet").unlink()
    with pytest.raises(InputError, match="its corpus has the splits test, train, and none is dev"):
        items(folder, out, split="dev")
    (folder / "qrels" / "test-00000-of-00002.parquet").unlink()
    (folder / "qrels" / "test-00001-of-00002.parquet").unlink()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\ntest0\td1\n")
    with pytest.raises(InputError, match=r"test.tsv, line 2: must have three fields with tabs .*; mend it, or drop it"):
        items(folder, out)
    lines(tmp_path / "table.jsonl", [{"id": i, "text": f"text {i}"} for i in range(30)])
    for choice in ("split", "subset"):
        with pytest.raises(InputError, match=r"is no folder with .*corpus and .*queries; leave --items\.split"):
            items(tmp_path / "table.jsonl", out, **{choice: "de"})


def test_a_run_from_before_the_choice_of_a_split_is_continued(tmp_path: Path) -> None:
    folder = json_lines(tmp_path / "given")
    items(folder, tmp_path / "items")
    settings = json.loads((tmp_path / "items" / "manifest.json").read_text())["settings"]
    assert not {"split", "subset"} & set(settings)
    items(folder, tmp_path / "items", split="test")


@pytest.mark.full
def test_a_folder_of_the_hub_is_read_as_mteb_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaders = pytest.importorskip("mteb.abstasks.retrieval_dataset_loaders")
    joined = pytest.importorskip("mteb._create_dataloaders")._corpus_to_dict
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = hub(tmp_path / "given")
    names = "".join(
        f"- config_name: {part}\n  data_files:\n"
        + "".join(f"  - split: {s}\n    path: {part}/{s}-*\n" for s in QUERIES)
        for part in ("corpus", "queries", "qrels")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{names}---\n")
    for split in QUERIES:
        wanted = loaders.RetrievalDatasetLoader(str(folder), None, split=split).load()
        gallery, queries = items(folder, tmp_path / split, split=split)
        assert gallery == {row["id"]: joined(row)["text"] for row in wanted["corpus"]}
        texts = {row["id"]: row["text"] for row in wanted["queries"]}
        right = {q: {i: grade for i, grade in rows.items() if grade > 0} for q, rows in wanted["relevant_docs"].items()}
        there = {q: {i: grade for i, grade in rows.items() if i in gallery} for q, rows in right.items() if rows}
        assert queries == {q: (texts[q], rows) for q, rows in there.items()}


class Doc(NamedTuple):
    doc_id: str
    title: str
    body: str

    def default_text(self) -> str:
        return f"{self.title} {self.body}"


def test_a_data_set_of_ir_datasets(tmp_path: Path) -> None:
    """The data set is registered here; its iterators are the oracle."""
    ir_datasets = pytest.importorskip("ir_datasets")

    rows = [Doc(f"d{i}", "" if i % 2 else f"Title {i}", f"body {i}") for i in range(9)]
    own = {"docs_iter": lambda self: iter(rows), "docs_cls": lambda self: Doc}
    docs = type("Docs", (ir_datasets.formats.BaseDocs,), own)()
    (tmp_path / "q.tsv").write_text("".join(f"q{i}\tquery {i}\n" for i in range(5)))
    (tmp_path / "qrels").write_text("q0 0 d1 2\nq0 0 d2 1\nq1 0 d2 0\nq3 0 d8 1\nq3 0 gone 1\n")
    name = f"own-{np.random.default_rng().integers(1 << 40)}"
    asked = ir_datasets.create_dataset(None, str(tmp_path / "q.tsv"), str(tmp_path / "qrels"))
    ir_datasets.registry.register(f"{name}/test", ir_datasets.Dataset(docs, asked))
    ir_datasets.registry.register(name, ir_datasets.Dataset(docs))
    gallery, queries = items(Path(f"ir_datasets:{name}/test"), tmp_path / "items")
    given = ir_datasets.load(f"{name}/test")
    assert gallery == {doc.doc_id: doc.default_text().strip() for doc in given.docs_iter()}
    right: dict[str, dict[str, float]] = {}
    for row in given.qrels_iter():
        if row.relevance > 0 and row.doc_id in gallery:
            right.setdefault(row.query_id, {})[row.doc_id] = row.relevance
    texts = {query.query_id: query.text for query in given.queries_iter()}
    assert queries == {query: (texts[query], rows) for query, rows in right.items()}
    for wrong, message in (
        (name, f"has no queries and no qrels; name a part, such as {name}/test"),
        (f"{name}x", "list"),
    ):
        with pytest.raises(InputError, match=message):
            items(Path(f"ir_datasets:{wrong}"), tmp_path / "out")
    with pytest.raises(InputError, match="has queries of its own; leave --queries out"):
        write_items(tmp_path / "out", ItemSources("text", f"ir_datasets:{name}/test", "q.csv"), ItemSettings())


def test_ir_datasets_that_is_missing_is_named_with_the_line_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    with pytest.raises(
        InputError, match="ir_datasets:beir/scifact/test needs the Python package ir_datasets: pip install"
    ):
        items(Path("ir_datasets:beir/scifact/test"), tmp_path / "out")
