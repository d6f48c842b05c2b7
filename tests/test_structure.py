"""The law of imports: a module imports only what stands before it, and heavy libraries stay in their rooms."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ray_backfill"

# Rooms from the ground up. A room may import those on lower lines, and its own modules; never one beside or above it.
FLOORS = [
    {"secrets"},
    {"errors", "printable", "runkey"},
    {"plugins", "files", "kernels", "display", "progress"},
    {"tables", "claim"},
    {"systems"},
    {"distances", "metrics", "statistics", "store", "protocols"},
    {"orders", "merges", "index"},
    {"replay"},
    {"forecast"},
    {"models", "images", "report", "sources"},
    {"datasets", "training", "truths"},
    {"losses"},
    {"methods"},
    {"live"},
    {"comparison"},
    {"cluster"},
    {"recipes", "doctor"},
    {"runs"},
    {"papers"},
    {"cli", "face"},
    {"__main__"},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Library -> the rooms that may import it.
ONLY_IN = {
    "ray": {"cluster"},
    "faiss": {"index"},
    "numba": {"kernels"},
    "threadpoolctl": {"replay", "forecast", "training"},
    "torch": {"models", "losses", "training", "cluster", "replay"},
    "transformers": {"models"},
    "tyro": {"cli", "recipes"},
    "matplotlib": {"display", "report", "papers"},
    "jinja2": {"report", "papers"},
    "rich": {"report", "progress", "doctor"},
    "PIL": {"images", "datasets"},
    "pooch": {"datasets"},
    "sklearn": {"merges"},
    "scipy": {"datasets", "papers", "training", "forecast"},
    "psycopg": {"sources"},
    "qdrant_client": {"sources"},
    "pymilvus": {"sources"},
    "lance": {"sources"},
}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """Full names of all imported modules, also those inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


FILES = [file for file in sorted(PACKAGE.rglob("*.py")) if file != PACKAGE / "__init__.py"]


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_modules_import_only_what_stands_before_them(file: Path) -> None:
    room = room_of(file)
    assert room in FLOOR_OF, f"{room} has no floor: add it to FLOORS, the README tree and docs/adr"
    for name in imports(file):
        library, *rest = name.split(".")
        if library == "ray_backfill" and rest and rest[0] in FLOOR_OF and rest[0] != room:
            assert FLOOR_OF[rest[0]] < FLOOR_OF[room], f"{room} must not import {rest[0]}"
            assert not any(part.startswith("_") for part in rest), f"{name} is private to {rest[0]}"
        assert room in ONLY_IN.get(library, {room}), f"{library} must not be imported in {room}"


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(file: Path) -> None:
    text = file.read_text()
    assert len(text.splitlines()) <= 350
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 50, f"{node.name} has more than 50 lines"


def test_importing_the_library_loads_neither_torch_nor_ray() -> None:
    code = """
import sys, ray_backfill as rb
for name in rb.__all__:
    getattr(rb, name)
print({'torch', 'ray', 'faiss', 'transformers', 'matplotlib'} & set(sys.modules))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_jobs_are_thin() -> None:
    for job in (ROOT / "jobs").glob("*.py"):
        assert len(job.read_text().splitlines()) <= 50, job
        libraries = {name.split(".")[0] for name in imports(job)}
        assert libraries <= {"ray_backfill"}, job
