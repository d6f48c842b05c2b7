"""The analysis notebook runs on a small results folder, shows its numbers, and is stored without outputs."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.report.folder import write_results

pytestmark = pytest.mark.slow

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "analysis.ipynb"


def test_runs_and_shows_the_right_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_BACKFILL_RESULTS", str(write_results(tmp_path / "results")))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 3  # curves, gain, flips
    table = next(o["data"]["text/html"] for o in outputs if "AUC mAP" in o.get("data", {}).get("text/html", ""))
    for number in ("53.0", "115.0 %", "40.0 ✓", "62.0 ✓", "by 2.0", "7.5"):
        assert f"<td>{number}</td>" in table
    assert "Full RM reaches 115 %" in outputs[0]["text"]


def test_is_stored_without_outputs_and_defines_nothing() -> None:
    cells = [c for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    assert not [node for cell in cells for node in ast.walk(ast.parse(cell.source)) if isinstance(node, defined)]
