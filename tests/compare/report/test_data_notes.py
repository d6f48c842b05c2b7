"""What was left out of the data is told at the end of a run, with the file that lists it."""

import io
import sys
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from ray_backfill.cli.main import main
from ray_backfill.compare.report import print_table
from ray_backfill.drill.report import print_live_table
from tests.compare.folder import write_split
from tests.compare.report.folder import MANIFEST, write_results
from tests.drill.report.folder import FACTS, write_drill

LACKS = {"queries_skipped": 9, "broken_images": 1234, "notes": ["old was stored as float16"]}
SKIPPED = "Queries without a right answer in the gallery, left out: 9; skipped_queries.parquet lists them."
WEIGHTED = "Every mean over queries is weighted by column weight."
BROKEN = "Images that could not be read, left out: 1,234; broken.parquet beside the embeddings lists them."


def lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.strip() for line in console.file.getvalue().splitlines()]


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=140)


def test_a_comparison_tells_each_in_one_line(tmp_path: Path, console: Console) -> None:
    print_table(write_results(tmp_path, data=MANIFEST["data"] | LACKS), console)
    assert [line for line in lines(console) if line in (SKIPPED, BROKEN, "old was stored as float16")] == (
        [SKIPPED, BROKEN, "old was stored as float16"]
    )


def test_a_drill_tells_them_too(tmp_path: Path, console: Console) -> None:
    print_live_table(write_drill(tmp_path, data=dict(FACTS.data) | LACKS), console)
    assert {SKIPPED, BROKEN, "old was stored as float16"} <= set(lines(console))


def test_of_whole_data_nothing_is_told(tmp_path: Path, console: Console) -> None:
    data = MANIFEST["data"] | {"queries_skipped": 0, "broken_images": 0, "notes": []}
    print_table(write_results(tmp_path / "simulate", data=data), console)
    print_live_table(write_drill(tmp_path / "drill"), console)
    assert "left out:" not in " ".join(line for line in lines(console) if not line.startswith("left out: fct"))


@pytest.mark.parametrize("items_are_queries", [False, True])
def test_a_run_lists_the_queries_that_it_skips(
    items_are_queries: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    positives = [[1], [], [3]] * 20
    write_split(tmp_path / "data" / "gallery.parquet", 60, 0, label=None, positives=positives)
    if not items_are_queries:
        write_split(tmp_path / "data" / "queries.parquet", 60, 1000, label=None, positives=positives)
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--methods", "rm_naive"]
    monkeypatch.setattr(sys, "argv", ["ray-backfill", "simulate", *arguments, "--points", "3"])
    main()
    assert "left out: 20; skipped_queries.parquet lists them." in " ".join(capsys.readouterr().out.split())
    listed = pd.read_parquet(tmp_path / "out" / "results" / "skipped_queries.parquet")
    first = 0 if items_are_queries else 1000
    assert listed.to_numpy().tolist() == [[str(first + row), row] for row in range(1, 60, 3)]


@pytest.mark.parametrize("weights", [[1, 2, 1], [2, 2, 2]])
def test_a_run_tells_that_queries_are_weighted_and_explains_its_metrics(
    weights: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_split(tmp_path / "data" / "gallery.parquet", 60, 0)
    write_split(tmp_path / "data" / "queries.parquet", 30, 1000, weight=weights * 10)
    arguments = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--methods", "rm_naive"]
    arguments += ["--points", "3", "--metrics", "MRR@5", "recall@20", "nDCG"]
    monkeypatch.setattr(sys, "argv", ["ray-backfill", "simulate", *arguments])
    main()
    page = (tmp_path / "out" / "results" / "report.html").read_text(encoding="utf-8")
    for shown in (capsys.readouterr().out, page):
        assert (WEIGHTED in " ".join(shown.split())) == (weights[0] != weights[1])
    for term in ("MRR, MRR@k", "recall@k", "nDCG, nDCG@k"):
        assert f"<dt>{term}</dt>" in page
    assert "CMC@k" not in page
