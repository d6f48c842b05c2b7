"""What is kept of compiled loops, and that a machine without a writable folder compiles in every process."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

INNER = "from ray_backfill.core.kernels import kernel\n@kernel\ndef inner(x):\n    return x + 1\n"
OUTER = (
    "from inner import inner\nfrom ray_backfill.core.kernels import kernel\nfrom steps import STEP\n"
    "@kernel\ndef outer(x):\n    return inner(x) + 10 * STEP\n"
)


def printed(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def outer_of_1(folder: Path, kept: Path) -> str:
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from outer import outer; print(outer(1))"
    return printed(code, NUMBA_CACHE_DIR=str(kept))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "inner.py").write_text(INNER)
    (folder / "steps.py").write_text("STEP = 1\n")
    (folder / "outer.py").write_text(OUTER)
    return folder


def test_compiling_is_a_row_of_its_own_once_after_an_installation(package: Path, tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(package)!r})
from ray_backfill.core import progress
progress.HEARTBEAT_S = progress.LONGEST_HEARTBEAT_S = progress.VISIBLE_S["detail"] = progress.Lines.pause_s = 0.01
from outer import outer
with progress.task("replay"):
    outer(1)
outer(1.0)  # where nothing is shown, it says nothing
"""

    def said() -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        return done.stderr

    first = said()
    assert "; compile loops, once after an installation: running for " in first
    *_, last = first.splitlines()
    assert last.startswith("replay: done in "), "the row has no line of its own"
    assert "compile loops" not in said(), "compiled code is read"


def test_a_call_changes_no_names_of_modules_and_threads_compile_once(package: Path, tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(package)!r})
from concurrent.futures import ThreadPoolExecutor
import inner, outer
from ray_backfill.core import kernels
before = [dict(vars(module)) for module in (inner, outer, kernels)]
assert "numba" not in sys.modules
with ThreadPoolExecutor(4) as pool:
    found = set(pool.map(outer.outer, range(1, 9)))
assert found == set(range(12, 20)), found
assert [dict(vars(module)) for module in (inner, outer, kernels)] == before
print(len(outer.outer.compiled.signatures), len(inner.inner.compiled.signatures))
"""
    assert printed(code, NUMBA_CACHE_DIR=str(tmp_path / "kept")) == "1 1"


@pytest.mark.full
def test_a_changed_import_is_compiled_again(package: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    assert outer_of_1(package, kept) == "12"
    (package / "inner.py").write_text(INNER.replace("x + 1", "x + 2"))
    assert outer_of_1(package, kept) == "13"
    (package / "steps.py").write_text("STEP = 30\n")
    assert outer_of_1(package, kept) == "303"


def test_a_copy_of_the_package_compiles_nothing(package: Path, tmp_path: Path) -> None:
    kept, copy = tmp_path / "kept", tmp_path / "copy"
    assert outer_of_1(package, kept) == "12"
    compiled = {path: path.stat().st_mtime_ns for path in kept.rglob("*.nb?")}
    assert compiled
    shutil.copytree(package, copy)
    assert outer_of_1(copy, kept) == "12"
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.nb?")} == compiled


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [b"", bytes(400)], ids=["empty", "zeroed"])
def test_code_that_a_power_cut_has_damaged_is_compiled_again(tmp_path: Path, kind: str, left: bytes) -> None:
    """numba ended every process with a traceback of pickle until somebody deleted the folder."""
    words = "import numpy as np; from ray_backfill.core.kernels import sum_of; print(sum_of(np.ones(30)))"
    environment = dict(os.environ) | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", words], env=environment, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == ("30.0\n", "")
        files = list(tmp_path.rglob(f"*.{kind}"))
        assert files
        assert all(file.stat().st_size > 400 for file in files)
        for file in files:
            file.write_bytes(left)


def test_without_a_writable_cache_folder_code_is_kept_beside_the_source(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert outer_of_1(package, tmp_path / "file" / "kept") == "12"
    assert list((package / "__pycache__").rglob("*.nbc"))


def test_a_machine_without_a_writable_folder_compiles_in_every_process(package: Path) -> None:
    code = (
        "from ray_backfill.core.kernels import KernelCache\n"
        "KernelCache.from_function = classmethod(lambda *_: None)\n"  # as if no folder could be written
        f"import ray_backfill, sys; sys.path.insert(0, {str(package)!r}); from outer import outer; print(outer(1))"
    )
    assert printed(code) == "12"
    assert not list(package.rglob("*.nbc"))
