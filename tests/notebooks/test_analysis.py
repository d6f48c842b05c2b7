"""The analysis notebook runs on a small results folder and shows its numbers; no notebook is stored with outputs."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.report.folder import write_results

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_runs_and_shows_the_right_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_BACKFILL_RESULTS", str(write_results(tmp_path / "results")))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOKS / "analysis.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 3  # curves, gain, flips
    table = next(o["data"]["text/html"] for o in outputs if "AUC mAP" in o.get("data", {}).get("text/html", ""))
    for number in ("53.0", "115.0 %", "40.0 ✓", "62.0 ✓", "2.0 ✗", "15.0"):
        assert f"<td>{number}</td>" in table
    assert "Full RM gives users 115 %" in outputs[0]["text"]
    assert any("full RM: AUC of mAP minus that of others" in o.get("data", {}).get("text/html", "") for o in outputs)
    assert any("nothing for the figure 'orders'" in o.get("text", "") for o in outputs)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_define_nothing(path: Path) -> None:
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
    assert not [node for cell in cells for node in ast.walk(ast.parse(cell.source)) if isinstance(node, defined)]
