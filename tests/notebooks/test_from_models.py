"""The notebook that walks from two models to a decision runs, and what it ends with shows itself."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.full

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "from_models.ipynb"


def test_runs_and_shows_the_folder_the_table_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown: list[Any] = [o["data"] for cell in notebook.cells for o in cell.get("outputs", []) if "data" in o]
    assert "1,950 gallery, 300 queries" in shown[0]["text/plain"]
    assert "dimensions: old 24, new 96" in shown[0]["text/plain"]
    assert "mAP while the gallery is" in shown[1]["text/html"]
    assert "image/png" in shown[2]
    assert (tmp_path / "runs" / "notebook_models" / "results" / "report.html").exists()
