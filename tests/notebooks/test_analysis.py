"""The analysis notebook runs on a small results folder and shows its numbers; no notebook is stored with outputs."""

import ast
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.compare.report.folder import write_results

pytestmark = pytest.mark.full

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def test_runs_and_shows_the_right_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path / "run" / "results")
    monkeypatch.setenv("RAY_BACKFILL_RESULTS", str(tmp_path / "run"))  # what --out was
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOKS / "analysis.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs: list[Any] = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 4  # curves, the method beside the best one, gain, flips
    tables = [o["data"]["text/html"] for o in outputs if "text/html" in o.get("data", {})]
    table = next(table for table in tables if "<th>average</th>" in table)
    for number in ("53.0", "115 %", "40.0 ✓", "62.0 ✓", "2.0 ✗", "15.0"):
        assert f"<td>{number}</td>" in table
    assert "Merge online with full RM: users get 23.0 points more mAP than the old service" in outputs[0]["text"]
    for title in ("full RM", "BCT"):
        assert any(f"{title}: average mAP minus that of others" in table for table in tables)
    (crossings,) = [table for table in tables if "<th>lead</th>" in table]
    assert crossings.count("<td>rm_naive</td>") == 2, "before and after it falls"
    (flips,) = [table for table in tables if "<th>lost against old</th>" in table]
    assert "<td>0.05</td>" in flips
    (numbers,) = [table for table in tables if "<th>lost</th>" in table and "<td>0.53</td>" in table]
    assert "<th>largest fall</th>" in numbers
    others = ("<th>auc", "<th>AUC", "negative_flips", "M_0")
    assert not [word for word in others if any(word in table for table in tables)], "the words of the terminal"
    assert any("nothing for the figure 'orders'" in o.get("text", "") for o in outputs)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs_and_define_nothing(path: Path) -> None:
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [node.name for cell in cells for node in ast.walk(ast.parse(cell.source)) if isinstance(node, defined)]
    assert names == ["search"] * (path.stem == "from_export"), "a service brings its own search"
