"""Ways to know right answers: equal to what a formula or another library says."""

from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from ir_measures import AP, RR, R, nDCG

import ray_backfill as rb
from ray_backfill.core.errors import InputError
from ray_backfill.data.truth import find_truth, parse_truth
from ray_backfill.engine.replay import replay
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from ray_backfill.page.heading import data_notes

N, Q, D = 300, 40, 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    documents = [f"d{number}" for number in range(N)]
    of_documents, of_queries = rng.normal(size=(N, D)), rng.normal(size=(Q, D))
    gallery: dict[str, Any] = {"id": documents, "old": of_documents[:, :8], "new": of_documents}
    queries: dict[str, Any] = {"id": np.arange(1, Q + 1), "old": of_queries[:, :8], "new": of_queries}
    rb.write_folder(tmp_path / "data", gallery, queries)
    return tmp_path / "data"


def write_qrels(path: Path, seed: int = 0) -> list[ir_measures.Qrel]:
    """Grades -1 to 3 of some documents, of which a few are not in the gallery."""
    rng = np.random.default_rng(seed)
    lines = []
    for query in range(1, Q + 1):
        for document in rng.choice(N + 5, 15, replace=False):
            lines.append((str(query), f"d{document}", int(rng.integers(-1, 4))))
    path.write_text("".join(f"{q} 0 {d} {g}\n" for q, d, g in lines))
    return [ir_measures.Qrel(q, d, g) for q, d, g in lines if int(d[1:]) < N]


def test_judgements_give_what_ir_measures_gives(folder: Path, tmp_path: Path) -> None:
    qrels = write_qrels(tmp_path / "qrels.txt")
    read = rb.read_folder(folder)
    assert read.queries is not None
    truth = find_truth(read, ("qrels", str(tmp_path / "qrels.txt")))
    system = RetrievalSystem(read.queries.new, read.gallery.new)
    metrics = ["mAP", "MRR", "nDCG@10", "recall@20"]
    curve = replay(UpgradePair(system, system), truth.ground, "random", 2, metrics)
    unit = [
        vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (read.queries.new, read.gallery.new)
    ]
    scores = unit[0].astype(np.float64) @ unit[1].astype(np.float64).T
    run = [
        ir_measures.ScoredDoc(str(read.queries.id[q]), str(read.gallery.id[d]), scores[q, d])
        for q in range(Q)
        for d in range(N)
    ]
    wanted = ir_measures.calc_aggregate([AP, RR, nDCG @ 10, R @ 20], qrels, run)
    found = [float(curve.values(metric)[0]) for metric in metrics]
    np.testing.assert_allclose(found, [wanted[m] for m in (AP, RR, nDCG @ 10, R @ 20)], rtol=1e-9)
    left_out = sum("are not in the gallery" in note for note in truth.notes)
    assert left_out == 1


def test_clicks_are_grades_and_traffic_is_weight(folder: Path, tmp_path: Path) -> None:
    clicks: dict[str, list[Any]] = {"query": [1, 1, 2, 1], "item": ["d3", "d4", "d5", "d3"], "clicks": [2, 1, 7, 3]}
    for name, write in (("c.csv", pa.csv.write_csv), ("c.parquet", pq.write_table)):
        if name == "c.parquet":
            clicks["query"] = [float(query) for query in clicks["query"]]  # what pandas makes of gaps
        write(pa.table(clicks), tmp_path / name)
        truth = find_truth(rb.read_folder(folder), ("clicks", str(tmp_path / name))).ground
        assert truth.positives_of(0).tolist() == [3, 4]
        np.testing.assert_array_equal(truth.grades, [5, 1, 7])
        np.testing.assert_array_equal(np.asarray(truth.weights)[:2], [6, 7])
        assert len(truth.skipped) == Q - 2
    found = rb.simulate(folder, methods="rm_naive", truth=["clicks", str(tmp_path / "c.csv")], points=2)
    assert "Every mean over queries is weighted by each query's clicks." in data_notes(found.manifest.data)


def test_gaps_of_a_log_are_counted_and_leave_ids_as_they_are(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.csv").write_text("query,item,clicks\n1,d3,2\n2,d5,7\n")
    (tmp_path / "gaps.csv").write_text("query,item,clicks\n1,d3,2\n,d4,9\n2,d5,7\n1,,5\n")
    data = rb.read_folder(folder)
    whole, gaps = (find_truth(data, ("clicks", str(tmp_path / f"{name}.csv"))) for name in ("whole", "gaps"))
    assert gaps.ground.positives.tolist() == whole.ground.positives.tolist()
    np.testing.assert_array_equal(gaps.ground.weights, whole.ground.weights)
    (note,) = gaps.notes
    assert "without a query or an item: 2 (row 1, 3). They were not used." in note


def test_a_judgement_that_is_repeated_counts_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "once.qrels").write_text("1 0 d3 1\n1 0 d4 2\n")
    (tmp_path / "again.qrels").write_text("1 0 d3 1\n1 0 d4 2\n1 7 d3 1.0\n")
    data = rb.read_folder(folder)
    once, again = (find_truth(data, ("qrels", str(tmp_path / f"{name}.qrels"))) for name in ("once", "again"))
    assert again.ground.positives.tolist() == once.ground.positives.tolist()
    np.testing.assert_array_equal(again.ground.grades, [1, 2])
    assert "repeat an earlier one: 1." in again.notes[0]


def test_items_with_the_same_value_belong_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    document = np.array([f"doc {i // 3}" for i in range(30)])
    columns = {"id": np.arange(30), "old": rng.normal(size=(30, 4)), "new": rng.normal(size=(30, 4))}
    rb.write_folder(tmp_path / "data", columns | {"document": document})
    truth = find_truth(rb.read_folder(tmp_path / "data"), ("known-item", "document")).ground
    assert truth.positives_of(4).tolist() == [3, 5]
    assert truth.ignored_of(4).tolist() == [4]


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("with_queries", [True, False])
@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_what_the_new_model_finds(k: int, with_queries: bool, distance: str, folder: Path) -> None:
    if not with_queries:
        (folder / "queries.parquet").unlink()
    read = rb.read_folder(folder)
    truth = find_truth(read, (f"new-top{k}",), distance)
    gallery = read.gallery.new.astype(np.float64)
    queries = (read.queries or read.gallery).new.astype(np.float64)
    if distance == "cosine":
        gallery, queries = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (gallery, queries))
    distances = np.linalg.norm(queries[:, None] - gallery[None], axis=2)
    if not with_queries:
        np.fill_diagonal(distances, np.inf)
    for query in range(len(queries)):
        assert sorted(np.argsort(distances[query])[:k]) == truth.ground.positives_of(query).tolist()
    assert truth.facts["truth"] == {"name": f"new-top{k}", "is_retention": True, "k": k}
    system = RetrievalSystem((read.queries or read.gallery).new, read.gallery.new)
    kept = replay(UpgradePair(system, system), truth.ground, "random", 2, "mAP", distance)
    assert kept.values("mAP").tolist() == [1, 1]


@pytest.mark.parametrize("beyond", [0, 1, 1_000_000])
@pytest.mark.parametrize("with_queries", [True, False])
def test_what_the_new_model_finds_is_less_than_everything(beyond: int, with_queries: bool, folder: Path) -> None:
    if not with_queries:
        (folder / "queries.parquet").unlink()
    read = rb.read_folder(folder)
    most = len(read.gallery) - (not with_queries)
    find_truth(read, (f"new-top{most - 1}",))
    message = (
        rf"a query can find {most} items, so all of them .* 100 %; use a smaller number, such as new-top{most // 10}"
    )
    with pytest.raises(InputError, match=message):
        rb.simulate(folder, methods="rm_naive", truth=f"new-top{most + beyond}", metrics=["CMC@1"])


def test_what_the_new_model_finds_of_a_part_is_less_than_the_largest_part(folder: Path, tmp_path: Path) -> None:
    columns = {name: np.random.default_rng(0).normal(size=(30, 4)) for name in ("old", "new")}
    rb.write_folder(tmp_path / "tenants", columns | {"tenant": np.arange(30) % 3})
    read = rb.read_folder(tmp_path / "tenants")
    find_truth(read, ("new-top8",), filter_column="tenant")
    with pytest.raises(InputError, match="a query can find 9 items"):
        find_truth(read, ("new-top9",), filter_column="tenant")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing",), "unknown truth 'nothing'; known: "),
        (("qrels",), "--truth qrels takes one word after it, FILE; got 0"),
        (("new-top1", "x"), "takes no word after it; got 1"),
        (("new-top0",), "the number must be above 0"),
        (("known-item", "nope"), "has no column 'nope'; it has: "),
        (("qrels", "missing.txt"), "missing.txt cannot be read: No such file or directory"),
        (("qrels", "empty.txt"), "empty.txt is empty"),
        (("qrels", "blank.txt"), "blank.txt is empty"),
        (("qrels", "short.txt"), "line 2: must have four words .* not 3; mend it, or drop it"),
        (("qrels", "five.txt"), "line 1: must have four words .* not 5"),
        (("qrels", "once_five.txt"), "line 2: must have four words .* not 5"),
        (("qrels", "words.txt"), "line 3: the grade must be a finite number, not 'good'"),
        (("qrels", "infinite.txt"), "line 1: the grade must be a finite number, not 'inf'"),
        (("qrels", "wrong.txt"), "has no grade above 0"),
        (("qrels", "elsewhere.txt"), "has a query and an item of"),
        (("qrels", "twice.txt"), "line 2: another grade of item d1 for query 1"),
        (("clicks", "no.csv"), "does not exist"),
        (("clicks", "columns.csv"), "has no column 'item'"),
        (("clicks", "below.csv"), "must hold finite numbers above 0"),
        (("labels",), "has no column 'label'"),
        (("positives",), "has no column 'positives'"),
    ],
)
def test_what_cannot_be_a_truth(words: tuple[str, ...], message: str, folder: Path, tmp_path: Path) -> None:
    files = {
        "empty.txt": "",
        "short.txt": "1 0 d1 1\n1 0 d2\n",
        "blank.txt": "\n\n",
        "five.txt": "1 0 d1 1 9\n1 0 d2 1 9\n",
        "once_five.txt": "1 0 d1 1\n1 0 d2 1 9\n",
        "words.txt": "1 0 d1 1\n\n1 0 null good\n",
        "infinite.txt": "1 0 d1 inf\n",
        "wrong.txt": "1 0 d1 0\n1 0 d2 -1\n",
        "elsewhere.txt": "99 0 x 1\n",
        "twice.txt": "1 0 d1 1\n1 0 d1 2\n",
        "columns.csv": "query,document\n1,d1\n",
        "below.csv": "query,item,clicks\n1,d1,0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    words = tuple(str(tmp_path / word) if "." in word else word for word in words)
    with pytest.raises(InputError, match=message):
        find_truth(rb.read_folder(folder), words)


def test_names_are_parsed() -> None:
    kind, k, argument = parse_truth(("new-top25",))
    assert (kind.name, k, argument) == ("new-topK", 25, "")
    assert parse_truth(())[0].name == "given"
