"""The README's examples run as they stand, and its tree is the code's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_structure import FLOORS, ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", README, re.DOTALL))
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "mAP" in result.stdout
    command = re.search(r"^    \.venv/bin/python (jobs/simulate\.py --data my_embeddings .*)$", README, re.MULTILINE)
    assert command is not None
    job, *arguments = command[1].split()
    result = subprocess.run(
        [sys.executable, str(ROOT / job), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "RM naive" in result.stdout
    assert (tmp_path / "runs" / "mine" / "results" / "report.html").exists()


def test_the_tree_names_every_room_from_the_ground_up() -> None:
    tree = README.split("    ray_backfill/\n")[1].split("    jobs/")[0]
    named = [line.split()[0].strip("/").removesuffix(".py") for line in tree.splitlines()]
    floor_of = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
    assert set(named) == set(floor_of)
    assert [floor_of[room] for room in named] == sorted(floor_of[room] for room in named)


def test_files_that_the_readme_links_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
