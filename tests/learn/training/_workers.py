"""DDP tests in two processes."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from ray_backfill.learn.models.gather import rank_and_size


def on_two_workers(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """What both workers return. work: a function of a module, of the worker's rank; it returns tensors or numbers."""
    spawn(_run, (work, str(folder)), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in (0, 1)]


def _run(rank: int, work: Callable[[int], Any], folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    torch.save(work(rank), Path(folder) / f"{rank}.pt")
    # gloo aborts a worker whose peer leaves first, and also one that takes the group apart while its peer still does:
    # both end together.
    Path(folder, f"done-{rank}").touch()
    while not Path(folder, f"done-{1 - rank}").exists():
        time.sleep(0.01)
    os._exit(0)


def average(tensors: Iterable[torch.Tensor]) -> None:
    """Replace each by its mean over all workers, as DDP does with gradients."""
    _, size = rank_and_size()
    for tensor in tensors:
        if size > 1:
            dist.all_reduce(tensor)
        tensor /= size
