"""The wheel works where the checkout is not: built, installed into a folder of its own, and run from another one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.data.write import vector_column, write_parquet

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


def files_below(folder: Path) -> set[str]:
    return {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file() and "__pycache__" not in f.parts}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel is installed into, built from a copy without anything else of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    shutil.copytree(ROOT / "ray_backfill", source / "ray_backfill", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    run(*PIP, "install", "--no-deps", "--no-index", "--target", folder / "site", wheel, cwd=folder)
    return folder / "site"


def test_templates_types_and_licence_are_in_it(site: Path) -> None:
    files = files_below(ROOT / "ray_backfill")
    assert {"py.typed", "compare/report/report.html.jinja", "page/page.js"} <= files
    assert not (site / "reproduction").exists(), "it is part of a checkout only"
    assert files_below(site / "ray_backfill") == files
    (info,) = site.glob("*.dist-info")
    assert "License-Expression: Apache-2.0" in (info / "METADATA").read_text().splitlines()
    assert (info / "licenses" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_the_command_simulates_from_another_folder(site: Path, tmp_path: Path) -> None:
    code = "import ray_backfill; print(ray_backfill.__file__)"
    where = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(site))
    assert Path(where.strip()).is_relative_to(site), "tests another installation"
    rng = np.random.default_rng(0)
    vectors = {model: vector_column(rng.normal(size=(60, 6)).astype(np.float32)) for model in ("old", "new")}
    write_parquet(
        tmp_path / "data" / "gallery.parquet", pa.table({"id": np.arange(60), "label": np.arange(60) % 5} | vectors)
    )
    choice = ("--methods", "old", "new", "rm_naive", "--out", "out")
    command = (site / "bin" / "ray-backfill", "simulate", "--data", "data", *choice)
    assert "RM naive" in run(*command, cwd=tmp_path, PYTHONPATH=str(site))
    assert (tmp_path / "out" / "results" / "report.html").stat().st_size > 10_000
