"""A page that cannot be made takes no results with it, and the next call makes it from them."""

import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ray_backfill as rb
from ray_backfill.cli.main import main
from ray_backfill.compare import write as simulating
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import is_finished
from ray_backfill.drill import run as drill
from ray_backfill.drill.tables import FORMAT
from ray_backfill.forecast.report import read_forecast
from tests.compare.folder import labelled
from tests.drill.report.folder import SETTINGS, write_drill
from tests.forecast.test_forecasting import embed, write

PAGES = ("report.html", "curves.png")


class NoPageError(Exception):
    """What a mistake in a template raises."""


def no_page(*_: Any) -> str:
    raise NoPageError


def no_replay(*_: Any) -> None:
    raise AssertionError("nothing is computed again")


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["ray-backfill", *map(str, words)])
    main()


def without_page(monkeypatch: pytest.MonkeyPatch, page: str, *words: object) -> None:
    """A call that fails at its page, and says what is left. page: the module of its function ``render``."""
    with monkeypatch.context() as broken:
        broken.setattr(import_module(page), "render", no_page)
        with pytest.raises(NoPageError) as failed:
            call(monkeypatch, *words)
    assert "The results in " in failed.value.__notes__[0]


def test_simulate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = rb.write_folder(tmp_path / "data", labelled(40, 4))
    words = ["simulate", "--data", data, "--out", tmp_path / "run", "--methods", "rm_naive"]
    without_page(monkeypatch, "ray_backfill.compare.report.html", *words)
    results = tmp_path / "run" / "results"
    assert is_finished(results)
    assert {row.method for row in rb.read_results(results).rows} == {"old", "new", "rm_naive"}
    assert not any((results / name).exists() for name in PAGES)
    monkeypatch.setattr(simulating, "tabulate", no_replay)
    call(monkeypatch, *words)
    assert all((results / name).exists() for name in PAGES)


def test_forecast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, new = tmp_path / "data", tmp_path / "new.parquet"
    write(data)
    call(monkeypatch, "sample", data, "--budget", 150)
    embed(data, new)
    words = ["forecast", data, "--new", new, "--methods", "rm_naive", "--points", 3, "--out", tmp_path / "run"]
    without_page(monkeypatch, "ray_backfill.forecast.report", *words)
    results = tmp_path / "run" / "forecast"
    assert {row.method for row in read_forecast(results).rows} == {"rm_naive"}
    assert not any((results / name).exists() for name in PAGES)
    for folder in (tmp_path / "run", results):
        call(monkeypatch, "report", folder)
        for name in PAGES:
            (results / name).unlink()


def test_drill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage of a drill, on what another one recorded."""
    folder = write_drill(tmp_path / "live", stage="live", finished=False)
    for name in drill._MADE_AFTER:
        if not (folder / f"{name}.parquet").exists():
            shutil.copy(folder / "quality.parquet", folder / f"{name}.parquet")
    entries = SimpleNamespace(entries=lambda: [SimpleNamespace(elapsed_s=1.0)])
    monkeypatch.setattr(drill, "drill_tables", lambda *_: {})
    monkeypatch.setattr(drill, "Journal", lambda _: entries)
    monkeypatch.setattr(drill, "asdict", lambda _: {})
    monkeypatch.setattr(drill, "replace", lambda *_, **__: None)
    facts: Any = None
    with monkeypatch.context() as broken:
        broken.setattr("ray_backfill.drill.report.html.render", no_page)
        with pytest.raises(NoPageError):
            drill._conclude(folder, facts, facts, facts, facts, facts, {})
    assert is_finished(folder)
    assert not any((folder / name).exists() for name in PAGES)
    assert drill._is_there(folder, RunKey("live", SETTINGS, format=FORMAT), overwrite=False)
    assert all((folder / name).exists() for name in PAGES)
