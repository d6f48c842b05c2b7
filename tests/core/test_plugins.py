"""Another distribution adds a method, an order and a merge in one file; they appear in help, tables and reports."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.compare.report import read_results
from ray_backfill.compare.report.glossary import glossary
from ray_backfill.data.write import vector_column, write_parquet

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PLUGIN = """
import numpy as np
import ray_backfill as rb
from ray_backfill.learn.methods import Method, all_methods
from ray_backfill.learn.methods.adapters import METHODS as ADAPTERS
from ray_backfill.engine.orders import Order, high_first
from dataclasses import replace

METHODS = (
    replace(ADAPTERS[0], name="their_map", title="Their map", source="theirs", glossary={"Their map": "a rotation"}),
)
ORDERS = (Order("newest", "newest first", "", high_first("added"), ("added",), glossary={"Newest": "by date"}),)
MERGES = (
    rb.MergeKind(
        "their_merge", "their merge", "", lambda *_: rb.Merge("their_merge", by_rank=True), needs_train=False,
        is_by_rank=True, glossary={"Their merge": "by places"},
    ),
)
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
    assert all(word in page and meaning in page for word, meaning in words.items())
