"""The base install has neither torch nor Ray nor FAISS: formula methods are simulated without them, as from a wheel."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ray_backfill as rb

ROOT = Path(__file__).parents[1]
# What only extras install.
EXTRAS = ("torch", "ray", "faiss", "transformers", "pooch", "psutil", "matplotlib")
# As if these were not installed: neither importable nor known to importlib.metadata.
ABSENT = f"""
import importlib.metadata, sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
known = importlib.metadata.version

def version(name):
    if name.split("-")[0] in {EXTRAS}:
        raise importlib.metadata.PackageNotFoundError(name)
    return known(name)

importlib.metadata.version = version
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(ABSENT)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)

    def items(n: int) -> dict[str, np.ndarray]:
        label = np.arange(n) % 10
        signal = np.random.default_rng(1).normal(size=(10, 12))[label]
        old = signal[:, :8] + rng.normal(size=(n, 8))
        return {"old": old, "new": signal + 0.5 * rng.normal(size=(n, 12)), "label": label}

    return rb.write_folder(tmp_path / "data", items(300), items(40), items(200))


def run(environment: dict[str, str], *words: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ray_backfill", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_every_formula_method_is_simulated_and_reported(environment: dict[str, str], data: Path) -> None:
    table = rb.methods()
    formulas = [name for name in table.index[~table.is_trained] if not table.needs[name].count("further model")]
    out = data.parent / "run"
    said = run(environment, "simulate", "--data", data, "--out", out, "--methods", *formulas)
    assert "ridge, gallery" in said
    results = rb.read_results(out)
    assert {"ridge_gallery", "procrustes_gallery", "rm_naive"} <= set(results.methods)
    page = (out / "results" / "report.html").read_text()
    assert "python -m pip install &#39;matplotlib" in page
    assert "<svg" not in page
    assert not (out / "results" / "curves.png").exists()
    run(dict(os.environ) | {"PYTHONPATH": str(ROOT)}, "report", out)  # with matplotlib
    assert "<svg" in (out / "results" / "report.html").read_text()
    assert (out / "results" / "curves.png").exists()
    assert "torch" not in results.manifest.versions


@pytest.mark.full
def test_the_doctor_and_a_forecast_work(environment: dict[str, str], data: Path) -> None:
    run(environment, "doctor", data)
    run(environment, "sample", data, "--budget", "150")
    said = run(environment, "forecast", data, "--out", data.parent / "run", "--methods", "rm_naive", "ridge_gallery")
    assert "ridge" in said


@pytest.mark.full
@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "--methods", "fct"),
        ("simulate", "--shards", "2"),
        ("simulate", "--device", "cuda"),
        ("drill",),
        ("fit", "--methods", "rqt"),
    ],
    ids=lambda words: " ".join(words),
)
def test_what_is_missing_is_named_with_the_line_to_type(
    environment: dict[str, str], data: Path, words: tuple[str, ...]
) -> None:
    command, *options = words
    said = run(environment, command, "--data", data, "--out", data.parent / "run", *options, code=2)
    assert "python -m pip install 'ray[data,default,train]" in said
    assert "Traceback" not in said


def test_images_need_the_extra(environment: dict[str, str], tmp_path: Path) -> None:
    said = run(environment, "simulate", "--out", tmp_path / "run", code=2)
    assert "python -m pip install 'ray[data,default,train]" in said
