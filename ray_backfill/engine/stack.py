"""Whether torch and FAISS can use the GPUs of this machine; if not, why, and what mends it.

Ray counts GPUs through the driver, torch and FAISS through CUDA: a build for CPUs, or for a newer driver, sees none of
those that Ray hands out. Two distributions of FAISS overwrite each other's files.
"""

import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError

# Oldest driver of each major version of CUDA. Source: CUDA Compatibility, NVIDIA, table 1: minor versions are
# compatible with all drivers of their major version.
OLDEST_DRIVER = {12: 525, 13: 580}
_FAISS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
INSTALL = "pip uninstall -y torch; pip install -c constraints-gpu.txt '.[gpu]'"
MEND_FAISS = f"pip uninstall -y {' '.join(_FAISS)}; pip install --no-deps -c constraints-gpu.txt faiss-gpu"
ROUNDED = "float32 products on the GPU are rounded, so that no result is exact; unset NVIDIA_TF32_OVERRIDE"
_DRIVER = Path("/proc/driver/nvidia")


@dataclass(frozen=True)
class Stack:
    """What one process sees.

    torch: version. cuda: that torch is built for; "" for CPUs. driver: of the GPUs; "" if there is none. gpus: number
    that torch can use. is_exact: whether float32 products on the first one are not rounded. faiss: distributions that
    are installed. faiss_gpus: number that FAISS can use; -1 for a build for CPUs. memory: bytes of the smallest GPU.
    error: what torch raised when it computed on the first one.
    """

    torch: str
    cuda: str
    driver: str
    gpus: int
    is_exact: bool
    faiss: tuple[str, ...]
    faiss_gpus: int
    memory: int = 0
    error: str = ""

    def problem(self, gpus: int, with_faiss: bool = False) -> str:
        """What keeps this process from using ``gpus`` GPUs, and what mends it; "" if nothing does.

        gpus: that Ray or the driver counts. with_faiss: whether FAISS needs them, too.
        """
        if not self.cuda:
            return f"torch {self.torch} is built for CPUs; {INSTALL}"
        if gpus and not self.gpus:
            return f"torch {self.torch} for CUDA {self.cuda} finds no GPU{self._why()}"
        if self.gpus < gpus:
            return f"torch finds {self.gpus} of {gpus} GPUs; compare nvidia-smi and CUDA_VISIBLE_DEVICES"
        if self.error:
            return f"torch {self.torch} cannot compute on a GPU ({self.error}); see nvidia-smi"
        if not self.is_exact:
            return ROUNDED
        if len(self.faiss) > 1:
            return f"{' and '.join(self.faiss)} are installed, and each overwrites files of the other; {MEND_FAISS}"
        if with_faiss and self.faiss_gpus < gpus:
            problem = "is built for CPUs" if self.faiss_gpus < 0 else f"finds {self.faiss_gpus} of {gpus} GPUs"
            return f"FAISS {problem}; {MEND_FAISS}"
        return ""

    def _why(self) -> str:
        needed = OLDEST_DRIVER.get(int(self.cuda.split(".")[0]))
        if not self.driver:
            return ": no NVIDIA driver is loaded; see nvidia-smi"
        if needed and int(self.driver.split(".")[0]) < needed:
            return f": it needs driver {needed} or newer, and this is {self.driver}; update it, or {INSTALL}"
        return f" with driver {self.driver}; see nvidia-smi and CUDA_VISIBLE_DEVICES"


def read_stack() -> Stack:
    """Look at this process. Cost: seconds, for CUDA starts."""
    import torch

    from ray_backfill.engine.device import is_exact

    gpus, exact, error = torch.cuda.device_count() if torch.cuda.is_available() else 0, True, ""
    try:
        exact = not gpus or is_exact("cuda")
    except torch.OutOfMemoryError:
        pass  # another program has it all; Ray may hand out another GPU
    except RuntimeError as raised:
        error = str(raised).splitlines()[0]
    faiss_gpus = -1
    with suppress(ImportError):
        faiss: Any = import_module("faiss")
        faiss_gpus = faiss.get_num_gpus() if hasattr(faiss, "StandardGpuResources") else -1
    return Stack(
        torch.__version__, torch.version.cuda or "", driver_version(), gpus, exact,
        tuple(name for name in _FAISS if any(distributions(name=name))), faiss_gpus,
        min((torch.cuda.get_device_properties(i).total_memory for i in range(gpus)), default=0), error,
    )  # fmt: skip


def check_gpu(device: str) -> None:
    """Raise InputError if torch cannot use ``device``, or only with rounded products."""
    import torch

    from ray_backfill.engine.device import is_exact

    if not (n := torch.cuda.device_count() if torch.cuda.is_available() else 0):
        raise InputError(f"device {device!r}: use device cpu, or mend this: {read_stack().problem(1)}")
    if (torch.device(device).index or 0) >= n:
        raise InputError(f"there is no device {device!r}; this machine has {n} CUDA GPU(s), numbered from 0")
    if not is_exact(device):
        raise InputError(f"device {device!r}: {ROUNDED}")


def driver_version() -> str:
    """Version of the NVIDIA driver; "" if none is loaded."""
    try:
        version = re.search(r"Module(?: for \S+)?\s+(\d+\.[\d.]+)", (_DRIVER / "version").read_text())
    except OSError:
        return ""
    return version.group(1) if version else ""


def expects_gpu() -> bool:
    """Whether this process is meant to use a GPU: there is a driver, and its GPUs are not hidden."""
    return bool(driver_version()) and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


if __name__ == "__main__":  # the last step of `EXTRA=gpu make setup`
    if problem := read_stack().problem(int(expects_gpu()), with_faiss=expects_gpu()):
        sys.exit(f"error: {problem}")
