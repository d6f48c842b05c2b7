"""The pinned versions: they install on the oldest Python that we name, and differ for GPUs only by what CUDA needs."""

import re
import subprocess
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
OF_CUDA = re.compile(r"torch|triton|cuda-.*|nvidia-.*")


def pins(file: str) -> dict[str, str]:
    lines = [line for line in (ROOT / file).read_text().splitlines() if line and not line.startswith("#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def test_every_pin_installs_on_the_oldest_python_that_is_named() -> None:
    least = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    wrong, looked = [], 0
    for name, version in pins("constraints.txt").items():
        try:
            found = distribution(name)
        except PackageNotFoundError:  # faiss-gpu
            continue
        if found.version.partition("+")[0] == version:
            looked += 1
            needs = found.metadata["Requires-Python"] or ""
            if f"{least}.0" not in SpecifierSet(needs):
                wrong.append(f"{name} {version} needs Python {needs}")
    assert looked > 150
    assert wrong == []


def test_gpus_need_another_torch_and_nothing_else() -> None:
    cpu, gpu = pins("constraints.txt"), pins("constraints-gpu.txt")
    assert {n: v for n, v in cpu.items() if not OF_CUDA.fullmatch(n)} == {
        n: v for n, v in gpu.items() if not OF_CUDA.fullmatch(n)
    }
    assert {name for name in gpu if name.startswith("nvidia-")} >= {"nvidia-cublas-cu12", "nvidia-nccl-cu12"}
    assert all(name.endswith("-cu12") for name in gpu if name.startswith("nvidia-")), "one CUDA, that of faiss-gpu"


def test_a_setup_for_gpus_ends_with_one_faiss_and_looks_at_it() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "EXTRA=gpu", "setup"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    steps = [
        next(i for i, line in enumerate(lines) if re.search(step, line))
        for step in (
            r"install .*constraints-gpu.txt .*\.\[gpu,dev,docs\]",
            r"uninstall --quiet --yes faiss-cpu faiss-gpu$",
            r"install .*--no-deps .*constraints-gpu.txt faiss-gpu$",
            r"touch \.venv/\.ready-gpu",
            r"python -m ray_backfill.engine.stack$",
        )
    ]
    assert steps == sorted(steps)
    assert "constraints.txt" not in done.stdout
