"""The law of imports: a room imports only rooms below it, no modules import each other in a circle, and heavy libraries
stay where they load on demand.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ray_backfill"

# Rooms from the ground up. A room imports only rooms before it in this list, and its own modules.
ROOMS = [
    *(
        "core",
        "page",
        "engine",
        "data",
        "images",
        "learn",
        "workers",
        "encode",
        "compare",
        "forecast",
        "drill",
        "recipes",
    ),
    *("api", "cli", "__main__"),
]
FLOOR_OF = {room: floor for floor, room in enumerate(ROOMS)}
# What the package may weigh. Who adds a product raises these by what it names; 39,000 lines are the aim.
MOST_FILES, MOST_LINES, MOST_ROOMS, MOST_PAIRS = 260, 48_289, 19, 71
MOST_LINES_OF_A_FILE, MOST_LINES_OF_A_FUNCTION = 600, 50

# Library -> the rooms, or modules of rooms, that may import it.
ONLY_IN = {
    "ray": {"workers", "recipes", "compare.ray", "forecast.ray", "drill.ray", "encode.ray"},
    "faiss": {"engine.index"},
    "numba": {"core"},
    "threadpoolctl": {"engine", "forecast", "learn"},
    "torch": {"learn", "engine.device", "engine.stack", "workers", "recipes", "drill.ray", "encode.models"},
    "transformers": {"learn", "encode.models"},
    "sentence_transformers": {"encode.models"},
    "onnxruntime": {"encode.models"},
    "tokenizers": {"encode.models"},
    "httpx": {"encode.models"},
    "anyio": {"encode.models"},
    "tenacity": {"encode.models"},
    "cyclopts": {"cli"},
    "docstring_parser": {"cli"},
    "matplotlib": {"page", "compare", "drill", "forecast"},
    "jinja2": {"page"},
    "rich": {"page", "core", "compare", "drill", "forecast"},
    "PIL": {"images", "encode"},
    "pooch": {"images"},
    "sklearn": {"engine"},
    "scipy": {"engine", "images", "learn", "forecast"},
    "psycopg": {"data"},
    "qdrant_client": {"data"},
    "pymilvus": {"data"},
    "lance": {"data"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file: Path) -> str:
    """Name without the package: "engine.replay.block"; "" for the package itself."""
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def room_of(file: Path) -> str:
    return module_of(file).split(".")[0]


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imports(file: Path) -> set[str]:
    """Full names of all imported modules, also those inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imported_from_above(pairs: set[tuple[str, str]]) -> Iterator[str]:
    """Imports that no room below explains, and libraries outside of their rooms. pairs: fills in rooms that meet."""
    for file in FILES:
        room, module = room_of(file), module_of(file)
        if not module:  # the package itself: the table of public names
            continue
        if room not in FLOOR_OF:
            yield f"{module}: {room} has no floor; add it to ROOMS, docs/layout.md and docs/adr"
            continue
        for name in imports(file):
            library, *rest = name.split(".")
            if library == "ray_backfill" and rest and rest[0] in FLOOR_OF and rest[0] != room:
                pairs.add((room, rest[0]))
                if FLOOR_OF[rest[0]] > FLOOR_OF[room]:
                    yield f"{module} must not import {name}"
                if any(part.startswith("_") and not part.startswith("__") for part in rest):
                    yield f"{module} imports {name}, which is private to {rest[0]}"
            known = ONLY_IN.get(library)
            if known is not None and not any(module == each or module.startswith(f"{each}.") for each in known):
                yield f"{module} must not import {library}"


def circles() -> Iterator[str]:
    """Modules that import each other. Imports inside functions and for type checkers count, too."""
    files = {f"ray_backfill.{module_of(file)}": file for file in FILES if module_of(file)}
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        names = imports(file)
        # ``from package import module`` names both; only the module is meant.
        packages = {name.rpartition(".")[0] for name in names if name in files}
        graph[module] = {name for name in names if name in files and name not in packages - {module}} - {module}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as circle:
        yield " -> ".join(circle.args[1])


def too_long() -> Iterator[str]:
    for file in FILES:
        if (lines := len(file.read_text().splitlines())) > MOST_LINES_OF_A_FILE:
            yield f"{file.name} has {lines} lines"
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if not node.name.startswith("_") and isinstance(node.body[0], ast.Expr):  # examples, shapes, errors
                    lines -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    yield f"{file.name}: {node.name} has {lines} lines"


def thick_jobs() -> Iterator[str]:
    for job in (ROOT / "jobs").glob("*.py"):
        if len(job.read_text().splitlines()) > 50 or {name.split(".")[0] for name in imports(job)} != {"ray_backfill"}:
            yield f"{job.name} does more than call ray_backfill"


def test_structure() -> None:
    pairs = set[tuple[str, str]]()
    wrong = {*imported_from_above(pairs), *circles(), *too_long(), *thick_jobs()}
    lines, rooms = sum(len(file.read_text().splitlines()) for file in FILES), {room_of(file) for file in FILES}
    for what, number, most in (
        ("files", len(FILES), MOST_FILES),
        ("lines", lines, MOST_LINES),
        ("rooms", len(rooms - {"", "__main__"}), MOST_ROOMS),
        ("pairs of rooms", len(pairs), MOST_PAIRS),
    ):
        if number > most:
            wrong.add(f"{number} {what}, at most {most} are allowed")
    assert sorted(wrong) == []


def test_importing_the_library_loads_neither_torch_nor_ray() -> None:
    code = """
import sys, ray_backfill as rb
for name in rb.__all__:
    getattr(rb, name)
print({'torch', 'ray', 'faiss', 'transformers', 'matplotlib'} & set(sys.modules))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
