"""The examples of README and guide run as they stand, and the tree of docs/layout.md is the code's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_structure import ROOMS, ROOT

README = (ROOT / "README.md").read_text()


def code_of(page: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))


def run(arguments: list[str], folder: Path) -> str:
    result = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def simulate_of(text: str, option: str) -> list[str]:
    """The arguments of the command of a page that compares methods on my_embeddings with this option."""
    command = re.search(
        rf"^    (?:\.venv/bin/)?ray-backfill (simulate --data my_embeddings .*{option}.*)$", text, re.MULTILINE
    )
    assert command is not None
    return command[1].split()


@pytest.mark.full
def test_the_example_of_the_readme_runs(tmp_path: Path) -> None:
    run(["-c", code_of(ROOT / "README.md")], tmp_path)
    printed = run(["-m", "ray_backfill", *simulate_of(README, "--methods")], tmp_path)
    assert "RM naive" in printed
    assert "ridge, gallery" in printed
    assert "Now training" not in printed, "a wheel without extras runs it"
    assert (tmp_path / "runs" / "mine" / "results" / "report.html").exists()


@pytest.mark.heavy
@pytest.mark.cluster  # it trains
def test_the_methods_of_a_folder_are_shown_in_two_steps(tmp_path: Path) -> None:
    run(["-c", code_of(ROOT / "README.md")], tmp_path)
    command = simulate_of((ROOT / "docs" / "simulate.md").read_text(), "--metrics")
    # The rest of a minute would be the same.
    quick = ["--transforms.epochs", "2", "--heads.epochs", "2", "--points", "3"]
    printed = run(["-m", "ray_backfill", *command, *quick], tmp_path)
    first, last = printed.split("These methods need no training. Now training: {rho, rho}, rho alone, FCT, full RM.")
    assert "RM naive" in first
    assert "full RM" not in first
    assert "full RM" in last
    assert (tmp_path / "runs" / "mine" / "results" / "report.html").exists()


def test_the_examples_of_the_guide_run(tmp_path: Path) -> None:
    run(["-c", code_of(ROOT / "README.md")], tmp_path)
    printed = run(["-c", "\n".join(code_of(ROOT / "docs" / page) for page in ("embeddings.md", "python.md"))], tmp_path)
    assert "average" in printed
    assert "ridge, gallery" in printed
    assert (tmp_path / "tiny_embeddings" / "gallery.parquet").exists()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 900


def test_the_tree_names_every_room_from_the_ground_up() -> None:
    tree = (ROOT / "docs" / "layout.md").read_text().split("    ray_backfill/\n")[1].split("    reproduction/")[0]
    named = [line.split()[0].strip("/").removesuffix(".py") for line in tree.splitlines()]
    assert named == ROOMS


def test_files_that_the_readme_links_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
