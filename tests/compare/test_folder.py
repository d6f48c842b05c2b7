"""Runs on a folder of embeddings: the table before the training, and what comes after it."""

from pathlib import Path

import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.compare import run as runs
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.results import ResultsData
from ray_backfill.core import progress
from ray_backfill.core.progress import Task
from ray_backfill.learn.training.settings import FitSettings, HeadTraining, TransformTraining
from ray_backfill.workers.settings import Context
from tests.compare.folder import labelled

FITS = FitSettings(heads=HeadTraining(epochs=1, classes=4), transforms=TransformTraining(epochs=1, hidden=8))


@pytest.fixture(autouse=True)
def nothing_but_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single map is trained here if there is neither a cluster nor a GPU; otherwise the test fails."""
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("ray.init", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    splits = (labelled(80, 8, seed) for seed in range(3))
    return rb.write_folder(tmp_path_factory.mktemp("data") / "mine", *splits)


def tables(results: Path) -> dict[str, pd.DataFrame]:
    return {path.stem: pd.read_parquet(path) for path in results.glob("*.parquet")}


def test_what_follows_the_comparison_is_counted(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Task] = []
    ends = progress.Lines.end

    def end(lines: progress.Lines, closed: Task, line: str, running: list[Task]) -> None:
        opened.append(closed)
        ends(lines, closed, line, running)

    monkeypatch.setattr(progress.Lines, "end", end)
    evaluation = Evaluation(methods=("rm_naive", "offline"), orders=("random",), points=3)
    runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "out"))
    rows = {(row.title, row.total): row.done for row in opened}
    assert rows["judge", 4] == rows["summary", 4] == 4, "the curves of two methods and two references"
    ((total, done),) = [(total, done) for (title, total), done in rows.items() if title == "analyse"]
    assert total == done > 5
    titles = [row.title for row in opened]
    assert titles.index("compare") < titles.index("judge") < titles.index("replay"), "a part of it"


def test_what_needs_no_training_is_shown_first_and_changes_nothing(data: Path, tmp_path: Path) -> None:
    evaluation = Evaluation(methods=("mcl", "rm_naive", "least_squares_gallery"), orders=("random",), points=3)
    shown: list[tuple[ResultsData, list[str]]] = []

    def show(results: ResultsData, to_come: list[str]) -> None:
        assert not (tmp_path / "out" / "maps" / "mcl").exists(), "it is shown before the training"
        shown.append((results, to_come))

    at_once = runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "at_once"))
    in_two = runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "out"), show_first=show)
    for name, table in tables(at_once).items():
        pd.testing.assert_frame_equal(tables(in_two)[name], table)
    ((first, to_come),) = shown
    assert to_come == ["RM MCL"]
    assert first.methods == ("old", "new", "rm_naive", "least_squares_gallery")
    whole = rb.read_results(in_two)
    assert whole.methods == ("old", "new", "mcl", "rm_naive", "least_squares_gallery")
    assert {row.method: row.auc for row in first.rows} == {
        row.method: row.auc for row in whole.rows if row.method in first.methods
    }
    runs.evaluate_folder(data, evaluation, FITS, Context(tmp_path / "out"), show_first=show)
    assert len(shown) == 1, "nothing is left to train"


@pytest.mark.parametrize(
    ("methods", "order"),
    [
        (("mcl",), "random"),  # nothing to show
        (("rm_naive",), "random"),  # nothing to train
        (("rm_naive", "fastfill"), "sigma"),  # the order needs what is trained
    ],
)
def test_no_first_table(data: Path, tmp_path: Path, methods: tuple[str, ...], order: str) -> None:
    evaluation = Evaluation(points=2, methods=methods, orders=(order,))
    shown: list[ResultsData] = []
    results = runs.evaluate_folder(
        data, evaluation, FITS, Context(tmp_path), show_first=lambda results, to_come: shown.append(results)
    )
    assert not shown
    assert rb.read_results(results).methods == ("old", "new", *methods)
