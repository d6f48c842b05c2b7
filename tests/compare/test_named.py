"""Names are looked up once in a run, and once more where it extends earlier results."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

import ray_backfill as rb
from ray_backfill.cli.main import main
from ray_backfill.compare import evaluation as settings
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.drill import run as drill
from ray_backfill.learn.methods import Method, all_methods
from tests.compare.folder import labelled
from tests.forecast.test_forecasting import embed
from tests.forecast.test_forecasting import write as write_old

Run = Callable[..., int]


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command, and returns how often it looked names of methods up."""
    counted: list[int] = []

    def counting() -> dict[str, Method]:
        counted.append(1)
        return all_methods()

    def run(*words: object) -> int:
        counted.clear()
        monkeypatch.setattr("sys.argv", ["ray-backfill", *map(str, words)])
        main()
        return len(counted)

    monkeypatch.setattr(settings, "all_methods", counting)
    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    splits = (labelled(rows, 4, rows, new=4) for rows in (40, 12, 60))
    return rb.write_folder(tmp_path / "data", *splits)


def test_simulate(data: Path, tmp_path: Path, look_ups: Run) -> None:
    command = ["simulate", "--data", data, "--out", tmp_path / "run", "--methods"]
    assert look_ups(*command, "rm_naive") == 1
    assert look_ups(*command, "offline", "procrustes_gallery", "--merges", "rrf") == 2
    assert {"rm_naive", "offline"} < set(rb.read_results(tmp_path / "run" / "results").methods)


def test_drill(data: Path, tmp_path: Path, look_ups: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for what is asked, and once for the part of it that a drill can have. Nothing is drilled."""
    monkeypatch.setattr("ray_backfill.drill.run.check_room", lambda *_: (1, False))
    for name in ("workers.session.session", "drill.ray.driver.run_drill"):
        monkeypatch.setattr(f"ray_backfill.{name}", lambda *_: nullcontext())
    monkeypatch.setattr(drill, "_conclude", lambda folder, *_: folder)
    monkeypatch.setattr("ray_backfill.drill.report.print_live_table", lambda _: None)
    command = ["drill", "--data", data, "--out", tmp_path / "run", "--live.method", "procrustes_gallery"]
    assert look_ups(*command) == 2


def test_forecast(tmp_path: Path, look_ups: Run) -> None:
    """Once for what is asked, and once with the truth and the distance of the sample."""
    data = tmp_path / "data"
    write_old(data)
    assert look_ups("sample", data, "--budget", 150) == 0
    embed(data, tmp_path / "new.parquet")
    command = ["forecast", data, "--new", tmp_path / "new.parquet", "--methods", "rm_naive", "--out", tmp_path / "run"]
    assert look_ups(*command) <= 2


def test_words_stand_for_several_and_methods_are_those_that_take_part() -> None:
    named = Evaluation(methods=("fct", "rqt_rho"), orders=("random", "given"), merges=("raw", "best")).named
    assert [method.name for method in named.methods] == ["old", "new", "rho_alone", "fct", "rqt_rho"]
    assert [method.name for method in named.asked] == ["old", "new", "fct", "rqt_rho"]
    assert [order.name for order in named.orders] == ["random", "given"]
    assert [merge.name for merge in named.merges] == ["raw", "best"]
