"""Fixtures of this room."""

from pathlib import Path

import numpy as np
import pytest

from tests.compare.folder import write_split


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_split(tmp_path / "data" / "gallery.parquet", 60, 0, old_score=np.linspace(1, 0, 60))
    write_split(tmp_path / "data" / "queries.parquet", 12, 1000)
    return tmp_path / "data"
