"""The notebook that serves from an export runs, and what it serves is what was replayed."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.full

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "from_export.ipynb"


def test_served_quality_is_the_replayed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [output for output in outputs if "image/png" in output.get("data", {})], "one picture"
    assert float(outputs[-1]["data"]["text/plain"]) < 1e-4
