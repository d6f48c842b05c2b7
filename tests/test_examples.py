"""Every example runs from start to end, in an empty folder."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

EXAMPLES = Path(__file__).parents[1] / "examples"
# What each prints.
SAID = {
    "numpy_to_decision.py": ("mAP@100 while the gallery is backfilled", "of the upgrade’s improvement", "95 % interval")
}


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert [words for words in SAID[name] if words not in result.stdout] == []
