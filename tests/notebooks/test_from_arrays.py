"""The notebook that walks from arrays to a decision runs, and what it ends with shows itself."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.full

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "from_arrays.ipynb"


def test_runs_and_shows_curves_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown: list[Any] = [o["data"] for cell in notebook.cells for o in cell.get("outputs", []) if "data" in o]
    assert len([data for data in shown if "image/png" in data]) == 2
    tables = [data["text/html"] for data in shown if "text/html" in data]
    for title in (
        "Curve: 11 points, 200 queries",
        "average of this curve",
        "mAP while the gallery is",
        "minus that of others",
        "<th>moments lost</th>",
    ):
        assert [table for table in tables if title in table], title
    assert (tmp_path / "runs" / "notebook" / "results" / "report.html").exists()
