"""The plugins of docs/contributing work as they stand: they pass their own tests and the contracts of their kind."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
KINDS = {"analysis", "backbone", "dataset", "merge", "method", "order", "recipe", "sources"}
# Name of the example's row -> the contract that finds it by itself.
ROWS = {
    "matched_means": "test_methods.py",
    "distilled": "test_backbones.py",
    "mean_scaled": "test_merges.py",
    "quick_landmarks": "test_recipes.py",
}
# Modules of the examples are found in our packages as if they stood there.
FINDER = """
import importlib, pathlib
for room in ("images.datasets", "learn.papers", "learn.methods", "recipes"):
    folder = pathlib.Path(__file__).parent.joinpath("ray_backfill", *room.split("."))
    importlib.import_module(f"ray_backfill.{room}").__path__.append(str(folder))
"""


def code_blocks(page: Path) -> dict[str, str]:
    """The name of each file that the page shows, and its text."""
    blocks = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", page.read_text(), re.DOTALL)
    assert len(blocks) == page.read_text().count("```python"), f"{page}: a block does not name its file"
    return dict(blocks)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of all pages; those at the top are modules of another distribution, registered by entry points."""
    site = tmp_path_factory.mktemp("site")
    files = {name: text for page in PAGES for name, text in code_blocks(page).items()}
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    (site / "finder.py").write_text(FINDER)
    info = site / "theirs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    modules = [Path(name).stem for name in files if "/" not in name and not name.startswith("test_")]
    (info / "entry_points.txt").write_text("[ray_backfill]\n" + "".join(f"{name} = {name}\n" for name in modules))
    return site


def test_there_is_a_page_for_each_kind() -> None:
    assert {page.stem for page in PAGES} == KINDS


def test_the_examples_pass_their_tests_and_the_contracts(site: Path) -> None:
    tests = sorted(site.rglob("test_*.py"))
    assert len(tests) == len(PAGES)
    of_examples = {name for test in tests for name in re.findall(r"^def (test_\w+)", test.read_text(), re.MULTILINE)}
    contracts = [ROOT / "tests" / "contracts" / file for file in set(ROWS.values())]
    choice = ["-k", " or ".join([*ROWS, *of_examples]), f"--junitxml={site / 'results.xml'}"]
    command = [sys.executable, "-m", "pytest", "-p", "finder", "-p", "no:cacheprovider", "--import-mode=importlib"]
    done = subprocess.run(
        [*command, *choice, *map(str, [*tests, *contracts])],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    ran = [
        (case.get("classname"), case.get("name", ""))
        for case in ElementTree.parse(site / "results.xml").iter("testcase")
    ]
    assert of_examples <= {name for _, name in ran}
    for row, file in ROWS.items():
        assert any(contract == f"tests.contracts.{Path(file).stem}" and row in name for contract, name in ran), row
