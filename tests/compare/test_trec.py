"""Lists of a finished run in TREC's format: trec_eval's measures, by ir_measures, are those of our tables."""

import shutil
from pathlib import Path

import ir_measures
import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.stages import read_json, write_json
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from tests.command import Command
from tests.compare.folder import labelled

# Our metric -> the name in ir_measures.
MEASURES = {
    "nDCG@10": "nDCG@10", "AP@100": "AP@100", "MRR@10": "RR@10", "CMC@1": "Success@1", "P@5": "P@5",
    "recall@10": "R@10",
}  # fmt: skip


def tied(rows: int, seed: int, prefix: str) -> dict[str, np.ndarray]:
    """Whole numbers of few dimensions: many items are equally close. Ids are sorted backwards, as by trec_eval."""
    columns = labelled(rows, 5, seed, 3, 4)
    ids = np.array([f"{prefix}{rows - row:04d}" for row in range(rows)])
    return columns | {"id": ids, **{model: np.round(columns[model]) + 1 for model in ("old", "new")}}


def simulated(out: Path, data: Path, **how: object) -> Path:
    evaluation = Evaluation(metrics=tuple(MEASURES), points=5, distance="l2", orders=("random",), **how)  # type: ignore[arg-type]
    evaluate_folder(data, evaluation, FitSettings.of_folder(), Context(out))
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trec")
    rb.write_folder(place / "data", tied(240, 1, "item"), tied(40, 2, "query"), labelled(120, 5, 3, 3, 4))
    methods = ("rm_naive", "ridge_gallery", "offline", "cascade@20")
    return simulated(place / "run", place / "data", methods=methods, merges=("raw", "quantile", "rrf"))


def assert_same_figures(run: Path, file: Path, method: str, merge: str, t: float) -> None:
    curves = pd.read_parquet(run / "results" / "curves.parquet").set_index(["method", "merge", "t", "metric"])["value"]
    measures = {metric: ir_measures.parse_measure(name) for metric, name in MEASURES.items()}
    qrels, ranked = ir_measures.read_trec_qrels(f"{file}.qrels"), ir_measures.read_trec_run(str(file))
    found = ir_measures.calc_aggregate(measures.values(), list(qrels), list(ranked))
    for metric, measure in measures.items():
        assert found[measure] == pytest.approx(curves[method, merge, t, metric], abs=1e-12), metric


@pytest.mark.parametrize("at", ["0%", "50%", "100%"])
@pytest.mark.parametrize(
    ("method", "merge"),
    [
        *(("old", "raw"), ("new", "raw"), ("offline", "raw"), ("cascade@20", "raw"), ("rm_naive", "rrf")),
        *(("ridge_gallery", "raw"), ("ridge_gallery", "quantile")),
    ],
)
def test_figures_of_another_tool_are_those_of_our_tables(
    method: str, merge: str, at: str, run: Path, tmp_path: Path, command: Command
) -> None:
    file = tmp_path / "lists.trec"
    ended = command("report", run, "--run", file, "--method", method, "--merge", merge, "--at", at)
    assert ended.code == 0
    assert f"right answers: {file}.qrels" in ended.out
    assert_same_figures(run, file, method, merge, float(at.removesuffix("%")) / 100)
    lines = pd.read_csv(file, sep=" ", names=["query", "q0", "item", "rank", "score", "tag"])
    assert len(lines) == 40 * 240, "all items of a gallery with fewer than 1,000"
    assert lines.tag.unique() == [f"{method}/random/{merge}/{at}"]
    # As trec_eval sorts: by score, and equal ones by the id, the last one first.
    by_trec_eval = lines.sort_values(["query", "score", "item"], ascending=[True, False, False])
    ours = lines.sort_values(["query", "rank"])
    assert by_trec_eval.item.tolist() == ours.item.tolist()
    assert not lines.duplicated(["query", "score"]).any()


def test_lists_are_as_deep_as_asked(run: Path, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "lists.trec"
    command(
        "report", run / "results", "--run", file, "--method", "rm_naive", "--merge", "raw", "--at", "0.37", "--depth", 7
    )
    lines = pd.read_csv(file, sep=" ", header=None)
    assert lines.groupby(0)[3].agg(list).tolist() == [[*range(1, 8)]] * 40
    assert lines[4].tolist() == [*range(7, 0, -1)] * 40


@pytest.mark.parametrize("truth", ["qrels", pytest.param("labels", marks=pytest.mark.full), "clicks"])
def test_graded_answers_parts_and_items_that_query_each_other(truth: str, tmp_path: Path, command: Command) -> None:
    """A query lists neither itself nor items of other tenants; without a train split, maps are fitted on a sample."""
    rng = np.random.default_rng(5)
    gallery = tied(300, 6, "item") | {"tenant": np.array(["a", "b"])[np.arange(300) % 2]}
    rb.write_folder(tmp_path / "data", gallery)
    pairs = sorted({(int(q), int(i)) for q, i in rng.integers(0, 300, (1800, 2)) if q != i and (q + i) % 2 == 0})
    grades = rng.integers(1, 4, len(pairs))
    named = [(gallery["id"][q], gallery["id"][i], grade) for (q, i), grade in zip(pairs, grades, strict=True)]
    (tmp_path / "judged.txt").write_text("".join(f"{q} 0 {i} {grade}\n" for q, i, grade in named))
    pd.DataFrame(named, columns=["query", "item", "clicks"]).to_csv(tmp_path / "clicks.csv", index=False)
    words = {"labels": ("labels",), "clicks": ("clicks", str(tmp_path / "clicks.csv"))}
    asked = words.get(truth, ("qrels", str(tmp_path / "judged.txt")))
    run = simulated(
        tmp_path / "run", tmp_path / "data", methods=("ridge_gallery",), merges=("best",), truth=asked, filter="tenant"
    )
    file = tmp_path / "lists.trec"
    assert command("report", run, "--run", file, "--method", "ridge_gallery", "--at", "50%").code == 0
    if truth != "clicks":  # there, queries have weights, and the command has compared weighted means with the tables
        assert_same_figures(run, file, "ridge_gallery", "best", 0.5)
    lines = pd.read_csv(file, sep=" ", header=None)
    tenant = dict(zip(gallery["id"], gallery["tenant"], strict=True))
    assert (lines[0] != lines[2]).all()
    assert (lines[0].map(tenant) == lines[2].map(tenant)).all()
    if truth == "qrels":
        assert sorted(Path(f"{file}.qrels").read_text().split("\n")) == sorted(
            (tmp_path / "judged.txt").read_text().split("\n")
        )


def test_what_cannot_be_written_is_one_line_and_no_file(run: Path, tmp_path: Path, command: Command) -> None:
    file = tmp_path / "lists.trec"

    def error(*more: object, of: Path = run) -> str:
        line = command("report", of, "--run", file, *more).error
        assert not list(tmp_path.glob("*lists.trec*")), "nothing half-written"
        return line

    assert "--method NAME" in error()
    assert "--run FILE" in command("report", run, "--method", "old").error
    assert "such as 50% or 0.5, not '120%'" in error("--method", "old", "--at", "120%")
    assert "did you mean ridge_gallery?" in error("--method", "ridge_galery")
    assert "order and merge of old 'quantile'; known: random raw" in error("--method", "old", "--merge", "quantile")
    moved = tmp_path / "moved"
    shutil.copytree(run, moved)
    manifest = moved / "results" / "manifest.json"
    facts = read_json(manifest)
    write_json(manifest, facts | {"data": facts["data"] | {"path": str(tmp_path / "gone")}})
    assert f"are not in {tmp_path / 'gone'} any more; put them back" in error("--method", "old", of=moved)
    rb.write_folder(tmp_path / "gone", tied(240, 7, "item"), tied(40, 2, "query"), labelled(120, 5, 3, 3, 4))
    assert "different from the earlier run: gallery" in error("--method", "old", of=moved)
    how = facts["settings"]["evaluation"] | {"truth": ["clicks", "python:theirs:rows"]}
    write_json(manifest, facts | {"settings": facts["settings"] | {"evaluation": how}})
    assert "python:theirs:rows is not called again" in error("--method", "old", of=moved)
    write_json(manifest, facts)
    network = moved / "maps" / "ridge_gallery" / "model.safetensors"
    network.write_bytes(network.read_bytes()[:-40] + b"\x00" * 40)
    assert "the lists have nDCG@10" in error("--method", "ridge_gallery", "--merge", "raw", "--at", "50%", of=moved)
    shutil.rmtree(moved / "maps")
    assert "does not hold the fitted map any more" in error("--method", "ridge_gallery", of=moved)


@pytest.mark.full
@pytest.mark.parametrize(("column", "wrong"), [("id", "two words"), ("grades", 0.5)])
def test_what_a_file_of_words_cannot_hold(column: str, wrong: object, tmp_path: Path, command: Command) -> None:
    gallery, queries = tied(40, 1, "item"), tied(9, 2, "query")
    ids = [wrong if column == "id" and not row else id_ for row, id_ in enumerate(queries["id"].tolist())]
    positives = [[str(gallery["id"][row]), str(gallery["id"][-1])] for row in range(9)]
    grades = [[2.0, wrong if column == "grades" else 1.0]] * 9
    rb.write_folder(tmp_path / "data", gallery, queries | {"id": ids, "positives": positives, "grades": grades})
    run = simulated(tmp_path / "run", tmp_path / "data", methods=("rm_naive",))
    assert f"not {wrong!r}" in command("report", run, "--run", tmp_path / "x", "--method", "old").error
