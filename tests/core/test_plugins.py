"""Another distribution adds a method, an order, a merge and an analysis in one file: in help, tables and reports."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ray_backfill.compare.report import read_results
from ray_backfill.compare.selection import glossary
from ray_backfill.data.write import vector_column, write_parquet

ROOT = Path(__file__).parents[2]
PLUGIN = """
import numpy as np
import ray_backfill as rb
from ray_backfill.learn.methods import Method, all_methods
from ray_backfill.learn.methods.adapters import METHODS as ADAPTERS
from ray_backfill.engine.orders import Order, high_first
from dataclasses import dataclass, replace
from typing import Annotated
from ray_backfill.compare.analyses import Analysis
from ray_backfill.page.sections import Cell, Section, number, table_of

METHODS = (
    replace(
        ADAPTERS[0], name="their_map", title="Their map", source="theirs", glossary={"Their map": "a rotation"},
        is_recommended=True,
    ),
)
ORDERS = (Order("newest", "newest first", "", high_first("added"), ("added",), glossary={"Newest": "by date"}),)
MERGES = (
    rb.MergeKind(
        "their_merge", "their merge", "", lambda *_: rb.Merge("their_merge", by_rank=True), needs_train=False,
        is_by_rank=True, glossary={"Their merge": "by places"},
    ),
)

@dataclass(frozen=True)
class Moments:
    method: Annotated[str, "as everywhere"]
    order: str
    merge: str
    moments: Annotated[int, "how many of them were judged"]

def compute(comparison, curves, so_far):
    assert so_far.best() is not None and so_far.table_of("costs")
    return [Moments(*key, len(found.t)) for key, found in curves.items()]

def section(results):
    rows = results.table_of("their_moments")
    lines = [[("method", Cell(row.method)), ("moments", number(str(row.moments), row.moments))] for row in rows]
    parts = ["How many?", table_of("Moments", lines)] if rows else []
    return Section("<Their moments>", parts, said=["Their sentence."])

ANALYSES = (Analysis("their_moments", Moments, compute, section, needs=("costs",), place=0),)
"""

READ = """
import sys
import ray_backfill as rb
from ray_backfill.compare.analyses import described, sections

results = rb.read_results(sys.argv[1])
assert [row.moments for row in results.table_of("their_moments")] == [101] * 6
assert {row.method for row in results.only("rm_naive").table_of("their_moments")} == {"old", "new", "rm_naive"}
assert sections(results)[0].title == "<Their moments>"
assert "| moments | int64 | how many of them were judged |" in described()["their_moments"]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a process in which that distribution is installed."""
    site = tmp_path_factory.mktemp("site")
    (site / "their_plugin.py").write_text(PLUGIN)
    info = site / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ray_backfill]\ntheirs = their_plugin\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


def simulate(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "jobs" / "simulate.py"), *arguments]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_help_lists_them(environment: dict[str, str], tmp_path: Path) -> None:
    text = simulate(environment, "--data", str(tmp_path), "--help")
    for name in ("their_map", "newest", "their_merge"):
        assert name in text


@pytest.mark.full
def test_a_run_takes_them_to_table_report_and_glossary(environment: dict[str, str], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, rows in (("gallery", 80), ("train", 60)):
        vectors = {model: vector_column(rng.normal(size=(rows, 6)).astype(np.float32)) for model in ("old", "new")}
        columns = {"id": np.arange(rows), "label": np.arange(rows) % 5, "added": rng.random(rows)}
        write_parquet(tmp_path / "data" / f"{name}.parquet", pa.table(columns | vectors))
    choice = ("--methods", "rm_naive", "their_map", "--orders", "newest", "--merges", "raw", "their_merge")
    table = simulate(environment, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), *choice)
    assert "Their map" in table
    assert "their_merge" in table
    results = read_results(tmp_path / "out" / "results")
    assert {"their_map", "rm_naive"} < set(results.methods)
    assert (results.orders, results.merges) == (("newest",), ("raw", "their_merge"))
    words = {"Their map": "a rotation", "Newest": "by date", "Their merge": "by places"}
    assert words.items() <= glossary(results).items()
    page = (tmp_path / "out" / "results" / "report.html").read_text()
    assert pd.read_parquet(tmp_path / "out" / "results" / "their_moments.parquet").moments.tolist() == [101] * 6
    assert "&lt;Their moments&gt;" in page
    assert "Their sentence." in table
    assert {"their_moments": ["their_moments"]}.items() <= results.manifest.analyses.items()
    assert results.table_of("their_moments") == (), "in a process where that distribution is not installed"
    done = subprocess.run([sys.executable, "-c", READ, str(tmp_path / "out")], env=environment, check=False)
    assert done.returncode == 0
    assert all(word in page and meaning in page for word, meaning in words.items())


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("import ray_backfill.gone.deep", "ray_backfill.gone"),
        ("from ray_backfill.engine.gone import Thing", "ray_backfill.engine.gone"),
        ("from ray_backfill.engine.orders import Gone", "ray_backfill.engine.orders.Gone"),
    ],
)
def test_a_plugin_for_another_version_is_named_in_one_line(
    environment: dict[str, str], tmp_path: Path, line: str, missing: str
) -> None:
    (tmp_path / "their_plugin.py").write_text(f"{line}\n")
    older = environment | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    command = [sys.executable, str(ROOT / "jobs" / "simulate.py"), "--data", str(tmp_path), "--help"]
    found = subprocess.run(command, env=older, capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert found.stderr == (
        "error: the plugin theirs (module their_plugin) was written for another version of ray_backfill: it imports "
        f"{missing}, which is not there any more; see CHANGELOG.md\n"
    )


def test_a_module_is_tried_without_a_distribution(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('METHODS = ("a row",)\n')
    command = [
        sys.executable,
        "-c",
        "from ray_backfill.core.plugins import rows_from_outside as r; print(r('METHODS'))",
    ]
    for named, shown in (("mine", "'a row'"), ("", "[]"), ("mine, yours.all", "names yours.all, which is not on")):
        own = os.environ | {"RAY_BACKFILL_PLUGINS": named, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        found = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
        assert shown in found.stdout + found.stderr


def test_a_plugin_that_lacks_another_library_fails_as_any_import(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "their_plugin.py").write_text("import library_of_theirs\n")
    older = environment | {"PYTHONPATH": os.pathsep.join([str(tmp_path), environment["PYTHONPATH"]])}
    command = [sys.executable, "-c", "from ray_backfill.core.plugins import rows_from_outside as r; r('METHODS')"]
    found = subprocess.run(command, env=older, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: No module named 'library_of_theirs'" in found.stderr
