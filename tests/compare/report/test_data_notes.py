"""What was left out of the data is told at the end of a run, with the file that lists it."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import ray_backfill as rb
from ray_backfill.cli.main import main
from ray_backfill.compare.report import print_table, read_data, write_report
from ray_backfill.compare.report.as_json import as_json
from ray_backfill.data.leakage import leakage_notes
from ray_backfill.data.truth import find_truth
from ray_backfill.drill.report import print_live_table
from tests.compare.folder import write_split
from tests.compare.report.folder import MANIFEST, printed, write_results
from tests.drill.report.folder import FACTS, write_drill

LACKS = {"queries_skipped": 9, "broken_images": 1234, "notes": ["old was stored as float16"]}
SKIPPED = "Queries without a right answer in the gallery, left out: 9; skipped_queries.parquet lists them."
WEIGHTED = "Every mean over queries is weighted by column weight."
BROKEN = "Images that could not be read, left out: 1,234; broken.parquet beside the embeddings lists them."


def lines(print_it: Callable[[Console], None]) -> list[str]:
    return [line.strip() for line in printed(print_it, 140).splitlines()]


def test_a_comparison_and_a_drill_tell_each_in_one_line(tmp_path: Path) -> None:
    told = [SKIPPED, BROKEN, "old was stored as float16"]
    results = write_results(tmp_path / "simulate", data=MANIFEST["data"] | LACKS)
    assert [line for line in lines(lambda console: print_table(results, console)) if line in told] == told
    drill = write_drill(tmp_path / "drill", data=dict(FACTS.data) | LACKS)
    assert {*told} <= set(lines(lambda console: print_live_table(drill, console)))


def test_of_whole_data_nothing_is_told(tmp_path: Path) -> None:
    data = MANIFEST["data"] | {"queries_skipped": 0, "broken_images": 0, "notes": []}
    results, drill = write_results(tmp_path / "simulate", data=data), write_drill(tmp_path / "drill")
    said = lines(lambda console: print_table(results, console))
    said += lines(lambda console: print_live_table(drill, console))
    assert "left out:" not in " ".join(line for line in said if not line.startswith("left out: fct"))


def simulate(monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> Path:
    """Run the command on ``folder``/data; returns the folder of its results."""
    arguments = ["--data", str(folder / "data"), "--out", str(folder / "out"), "--methods", "rm_naive", "--points", "3"]
    monkeypatch.setattr(sys, "argv", ["ray-backfill", "simulate", *arguments, *words])
    main()
    return folder / "out" / "results"


@pytest.mark.parametrize("items_are_queries", [False, True])
def test_a_run_lists_the_queries_that_it_skips(
    items_are_queries: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    positives = [[1], [], [3]] * 20
    write_split(tmp_path / "data" / "gallery.parquet", 60, 0, label=None, positives=positives)
    if not items_are_queries:
        write_split(tmp_path / "data" / "queries.parquet", 60, 1000, label=None, positives=positives)
    results = simulate(monkeypatch, tmp_path)
    assert "left out: 20; skipped_queries.parquet lists them." in " ".join(capsys.readouterr().out.split())
    listed = pd.read_parquet(results / "skipped_queries.parquet")
    first = 0 if items_are_queries else 1000
    assert listed.to_numpy().tolist() == [[str(first + row), row] for row in range(1, 60, 3)]


@pytest.mark.parametrize("weights", [[1, 2, 1], [2, 2, 2]])
def test_a_run_tells_that_queries_are_weighted_and_explains_its_metrics(
    weights: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_split(tmp_path / "data" / "gallery.parquet", 60, 0)
    write_split(tmp_path / "data" / "queries.parquet", 30, 1000, weight=weights * 10)
    results = simulate(monkeypatch, tmp_path, "--metrics", "MRR@5", "recall@20", "nDCG")
    page = (results / "report.html").read_text(encoding="utf-8")
    for shown in (capsys.readouterr().out, page):
        assert (WEIGHTED in " ".join(shown.split())) == (weights[0] != weights[1])
    for term in ("MRR, MRR@k", "recall@k", "nDCG, nDCG@k"):
        assert f"<dt>{term}</dt>" in page
    assert "CMC@k" not in page


def test_only_what_can_change_the_decision_is_a_warning(tmp_path: Path) -> None:
    told = {"notes": ["half of the rows are lost"], "remarks": ["three of 900 items are there twice"]}
    folder = write_results(tmp_path, data=MANIFEST["data"] | told)
    write_report(folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    box = page.split('aria-label="warnings"')[1].split("</div>")[0]
    assert told["notes"][0] in box
    assert told["remarks"][0] not in box
    assert f"<li>{told['remarks'][0]}</li>" in page.split("Good to know</summary>")[1].split("</details>")[0]
    assert f"good to know: {told['remarks'][0]}" in lines(lambda console: print_table(folder, console))
    document = as_json(read_data(folder), folder)
    assert told["notes"][0] in document["warnings"]
    assert told["remarks"] == document["good_to_know"][-1:]


@pytest.mark.parametrize(("copies", "matters"), [(1, False), (3, False), (30, True)])
def test_a_few_copies_are_good_to_know_and_many_are_a_warning(copies: int, matters: bool, tmp_path: Path) -> None:
    """In a gallery of 400: the limit is 1 % of what is measured."""
    rng = np.random.default_rng(0)
    gallery, queries, train = (
        {"old": rng.normal(size=(n, 4)), "new": rng.normal(size=(n, 4)), "label": np.arange(n) % 5}
        for n in (400, 50, 300)
    )
    for model in ("old", "new"):
        train[model][:copies] = gallery[model][:copies]
    folder = rb.read_folder(rb.write_folder(tmp_path / "data", gallery, queries, train))
    (note,) = leakage_notes(folder, find_truth(folder).ground, is_fitted=True)
    assert note.matters == matters
    assert pickle.loads(pickle.dumps(note)).matters == matters
