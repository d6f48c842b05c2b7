"""What keeps torch and FAISS from GPUs that Ray counts is said in one line, with what mends it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import faiss
import pytest
import torch

from ray_backfill.core.errors import InputError
from ray_backfill.engine import stack
from ray_backfill.engine.device import is_exact
from ray_backfill.engine.replay import check_device
from ray_backfill.engine.stack import Stack, driver_version, expects_gpu, read_stack

GOOD = Stack("2.10.0", "12.8", "535.104.05", 8, True, ("faiss-gpu",), 8)


def test_a_stack_that_agrees_has_no_problem() -> None:
    assert GOOD.problem(8, with_faiss=True) == ""
    assert replace(GOOD, faiss=(), faiss_gpus=-1).problem(8) == "", "without FAISS indexes on GPUs"
    assert replace(GOOD, gpus=0, driver="", faiss_gpus=0).problem(0) == "", "an image is built without a GPU"


@pytest.mark.parametrize(
    ("change", "problem", "mend"),
    [
        ({"torch": "2.13.0+cpu", "cuda": "", "gpus": 0}, "torch 2.13.0+cpu is built for CPUs", stack.INSTALL),
        (
            {"torch": "2.13.0", "cuda": "13.0", "gpus": 0},
            "torch 2.13.0 for CUDA 13.0 finds no GPU: it needs driver 580 or newer, and this is 535.104.05",
            stack.INSTALL,
        ),
        ({"gpus": 0, "driver": ""}, "finds no GPU: no NVIDIA driver is loaded", "nvidia-smi"),
        ({"gpus": 0}, "torch 2.10.0 for CUDA 12.8 finds no GPU with driver 535.104.05", "CUDA_VISIBLE_DEVICES"),
        ({"gpus": 4}, "torch finds 4 of 8 GPUs", "CUDA_VISIBLE_DEVICES"),
        ({"error": "CUDA error: no kernel image"}, "cannot compute on a GPU (CUDA error: no kernel", "nvidia-smi"),
        ({"is_exact": False}, "float32 products on the GPU are rounded", "unset NVIDIA_TF32_OVERRIDE"),
        ({"faiss": ("faiss-cpu", "faiss-gpu")}, "faiss-cpu and faiss-gpu are installed", stack.MEND_FAISS),
        ({"faiss": ("faiss-cpu",), "faiss_gpus": -1}, "FAISS is built for CPUs", stack.MEND_FAISS),
        ({"faiss_gpus": 0}, "FAISS finds 0 of 8 GPUs", stack.MEND_FAISS),
    ],
)
def test_each_problem_is_named_with_what_mends_it(change: dict[str, object], problem: str, mend: str) -> None:
    found = replace(GOOD, **change).problem(8, with_faiss=True)  # type: ignore[arg-type]
    assert problem in found
    assert mend in found
    assert "\n" not in found


def test_this_process_is_read_as_it_is() -> None:
    found = read_stack()
    assert (found.torch, found.cuda) == (torch.__version__, torch.version.cuda or "")
    assert len(found.faiss) == 1, "one FAISS"
    assert (found.faiss_gpus >= 0) == hasattr(faiss, "StandardGpuResources") == (found.faiss == ("faiss-gpu",))
    assert is_exact("cpu")


def test_the_driver_is_read_from_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "_DRIVER", tmp_path)
    assert driver_version() == ""
    assert not expects_gpu()
    for line in (
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  535.104.05  Release Build",
    ):
        (tmp_path / "version").write_text(f"{line}\nGCC version: gcc version 12.2.0\n")
        assert driver_version() == "535.104.05"
    for hidden, expected in ((None, True), ("0", True), ("", False)):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if hidden is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert expects_gpu() == expected


def test_a_device_without_a_gpu_says_why() -> None:
    with pytest.raises(InputError, match=r"device 'cuda': use device cpu, or mend this: torch \S+ "):
        check_device("cuda")


@pytest.mark.parametrize(
    ("raised", "exact", "error"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True, ""),  # another program has it; Ray may give another GPU
        (RuntimeError("CUDA error: all devices are busy\nCompile with"), True, "CUDA error: all devices are busy"),
    ],
)
def test_a_gpu_that_cannot_compute_is_no_traceback(
    raised: Exception, exact: bool, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(device: str) -> bool:
        raise raised

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(total_memory=40 << 30))
    monkeypatch.setattr("ray_backfill.engine.device.is_exact", fails)
    found = read_stack()
    assert (found.gpus, found.is_exact, found.error, found.memory) == (1, exact, error, 40 << 30)
