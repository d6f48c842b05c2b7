"""A forecast of formula methods needs neither torch nor Ray nor FAISS."""

from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb
from ray_backfill.forecast.report import read_forecast
from tests.compare.test_light import without


@pytest.mark.full
def test_a_sample_and_its_forecast(tmp_path: Path) -> None:
    rng, label = np.random.default_rng(0), np.arange(400) % 40
    centres = rng.normal(size=(40, 6))
    columns = {name: centres[label] + 0.5 * rng.normal(size=(400, 6)) for name in ("old", "new")} | {"label": label}
    queries = {name: values[:60] for name, values in columns.items()}
    data = rb.write_folder(tmp_path / "data", columns, queries)
    main = "from ray_backfill.cli.main import main; main()"
    without(main, "sample", data, "--budget", 100)
    methods = ("rm_naive", "ridge_gallery")
    without(main, "forecast", data, "--out", tmp_path / "run", "--methods", *methods, "--points", 3)
    found = read_forecast(tmp_path / "run" / "forecast")
    assert {row.method for row in found.rows} == set(methods)
    assert (tmp_path / "run" / "forecast" / "report.html").exists()


def test_every_module_but_that_of_ray_can_be_imported() -> None:
    for package in ("core", "page", "forecast"):
        files = (Path(rb.__file__).parent / package).glob("*.py")
        names = sorted(f"ray_backfill.{package}.{file.stem}" for file in files if file.stem not in ("ray", "__init__"))
        without(f"import importlib\nfor name in {names}: importlib.import_module(name)")
