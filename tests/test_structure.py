"""The law of imports: a room imports only rooms below it, no modules import each other in a circle, and heavy libraries
stay where they load on demand.
"""

import ast
import re
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
        "pipeline",
        "compare",
        "forecast",
        "drill",
        "export",
        "recipes",
        "plan",
    ),
    *("api", "cli", "__main__"),
]
FLOOR_OF = {room: floor for floor, room in enumerate(ROOMS)}
# Library -> the rooms, or modules of rooms, that may import it.
ONLY_IN = {
    "ray": {"workers", "recipes", "compare.ray", "forecast.ray", "drill.ray", "encode.ray", "plan.ray"},
    "faiss": {"engine.index", "engine.stack"},
    "numba": {"core"},
    "threadpoolctl": {"engine", "forecast", "learn"},
    "torch": {"learn", "engine.device", "engine.stack", "workers", "recipes", "drill.ray", "encode.models"},
    "transformers": {"learn", "encode.models"},
    "sentence_transformers": {"encode.models"},
    "onnx": {"export"},
    "onnxruntime": {"encode.models"},
    "tokenizers": {"encode.models"},
    "httpx": {"encode.models"},
    "anyio": {"encode.models"},
    "tenacity": {"encode.models"},
    "cyclopts": {"cli"},
    "docstring_parser": {"cli"},
    "matplotlib": {"page", "compare", "drill", "forecast"},
    "jinja2": {"page", "export"},
    "rich": {"page", "core", "compare", "drill", "forecast", "plan"},
    "PIL": {"images", "encode"},
    "pooch": {"images"},
    "sklearn": {"engine"},
    "scipy": {"engine", "images", "learn", "forecast", "plan"},
    "psycopg": {"data", "plan.builds"},
    "yaml": {"core.yamls"},
    "qdrant_client": {"data"},
    "pymilvus": {"data"},
    "lance": {"data"},
    "ir_datasets": {"encode"},
    "bm25s": {"pipeline"},
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


def deferred(file: Path) -> set[str]:
    """Modules that are imported by name: by ``import_module``, or when a ``Deferred`` is called."""
    calls = (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call) and node.args)
    return {
        str(call.args[0].value)
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", "")) in ("import_module", "Deferred")
        and isinstance(call.args[0], ast.Constant)
    }


def imported_from_above() -> Iterator[str]:
    """Imports that no room below explains, and libraries outside of their rooms."""
    for file in FILES:
        room, module = room_of(file), module_of(file)
        if not module:  # the package itself: the table of public names
            continue
        if room not in FLOOR_OF:
            yield f"{module}: {room} has no floor; add it to ROOMS, docs/layout.md and docs/adr"
            continue
        for name in imports(file) | deferred(file):
            library, *rest = name.split(".")
            if library == "ray_backfill" and rest and rest[0] in FLOOR_OF and rest[0] != room:
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


def thick_jobs() -> Iterator[str]:
    for job in (ROOT / "jobs").glob("*.py"):
        if len(job.read_text().splitlines()) > 50 or {name.split(".")[0] for name in imports(job)} != {"ray_backfill"}:
            yield f"{job.name} does more than call ray_backfill"


def test_structure() -> None:
    assert sorted({*imported_from_above(), *circles(), *thick_jobs()}) == []


def test_a_deferred_import_is_an_import(tmp_path: Path) -> None:
    file = tmp_path / "one.py"
    file.write_text('import_module("ray_backfill.drill")\nDeferred("torch", "nn")\nx.load("faiss")\nprint("ray")')
    assert imports(file) == set()
    assert deferred(file) == {"ray_backfill.drill", "torch"}


def test_importing_the_library_loads_neither_torch_nor_ray() -> None:
    code = """
import sys, ray_backfill as rb
for name in rb.__all__:
    getattr(rb, name)
print({'torch', 'ray', 'faiss', 'transformers', 'matplotlib'} & set(sys.modules))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_a_process_of_a_shard_loads_no_torch() -> None:
    """There are many of them, and torch takes 200 MB and two seconds of each."""
    actors = ("compare.ray.actor", "forecast.ray.actor", "drill.ray.shards", "drill.ray.traffic")
    code = f"""
import sys
from importlib import import_module
for name in {actors}:
    import_module(f"ray_backfill.{{name}}")
print({{'torch', 'ray.train', 'ray.data'}} & set(sys.modules))"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


# Writes that are not by ``stages``: a rename of what is whole, marks of attempts and journals, which grow, and what is
# made in a folder on the disk of one process and then published.
OWN_WRITES = {
    "data.importing: (unfinished / 'manifest.json').rename",
    "data.importing: (unfinished / _MANIFEST).rename",
    "data.importing: replaced.rename",
    "drill.journal: self.path.open",
    "drill.journal: self.path.write_bytes",
    "drill.ray.embedding: mark.write_text",
    "encode.part: mark.write_text",
    "encode.ray: mark.write_text",
    "images.download: unpacked.rename",
    "learn.training.backbone_loop: (folder / 'epoch.json').write_text",
    "learn.training.backbone_loop: torch.save",
}
WRITE = {"write_text", "write_bytes", "rename", "touch", "symlink_to"}
OF_OS = {"open", "replace", "rename", "remove", "link", "symlink", "truncate"}
HARMLESS = {"shutil.disk_usage", "shutil.which"}


def writes(file: Path) -> Iterator[str]:
    """Calls that write to a path, but for those that fill the temporary file of ``write_whole``."""
    for call in (node for node in ast.walk(tree_of(file)) if isinstance(node, ast.Call)):
        library, name = getattr(getattr(call.func, "value", None), "id", ""), getattr(call.func, "attr", "")
        modes = [
            value.value for value in (*call.args, *(k.value for k in call.keywords)) if isinstance(value, ast.Constant)
        ]
        is_open = "open" in (name, getattr(call.func, "id", "")) and any(
            isinstance(mode, str) and re.fullmatch(r"[rwaxbt+]*[wax+][bt+]*", mode) for mode in modes
        )
        is_write = is_open or name in WRITE or library == "shutil" or (library == "os" and name in OF_OS)
        is_write |= (library, name) == ("torch", "save")
        names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        if is_write and "temporary" not in names and ast.unparse(call.func) not in HARMLESS:
            yield f"{module_of(file)}: {ast.unparse(call.func)}"


def test_files_of_runs_are_written_by_stages() -> None:
    """Whole or not at all, also in a store, whose paths the functions of the system do not know."""
    below = {"core.stages", "core.stores", "core.store_path", "core.run_lock", "core.streams", "core.schema"}
    found = {line for file in FILES if module_of(file) not in below for line in writes(file)}
    assert found == OWN_WRITES


def test_a_write_is_found(tmp_path: Path) -> None:
    file = PACKAGE / "core" / "stages.py"
    assert {"core.stages: shutil.rmtree", "core.stages: folder.rename"} <= set(writes(file))
