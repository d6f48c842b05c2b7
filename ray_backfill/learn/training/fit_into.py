"""Fits one map and keeps it in its folder: alone, side by side with others, or on the workers of a DDP group."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from threadpoolctl import threadpool_limits

from ray_backfill.core.progress import step
from ray_backfill.core.stages import finish_stage
from ray_backfill.learn.models.checkpoints import save_network
from ray_backfill.learn.models.gather import rank_and_size
from ray_backfill.learn.training.fit import Device, Fit, TrainSet
from ray_backfill.learn.training.settings import FitSettings


@contextmanager
def one_thread() -> Iterator[None]:
    """Within the block, torch and BLAS compute in one thread.

    Sums in several threads round differently, so a map would depend on the number of cores. Threads do not pay either:
    a step of a small map takes a millisecond, and on a busy machine threads wait for each other much longer.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def fit_into(
    folder: Path, title: str, fit: Fit, data: TrainSet, settings: FitSettings, distance: str, device: Device = None
) -> None:
    """Fit a map and finish its stage in ``folder``, unless its training diverged; under DDP rank 0 writes it.

    title: of the method, for the terminal.
    """
    last_loss, epochs = math.nan, fit.epochs(settings)
    rank, size = rank_and_size()
    with step(title) as shown:

        def on_epoch(epoch: int, loss: float) -> None:
            nonlocal last_loss
            last_loss = loss
            shown.note(f"epoch {epoch} of {epochs}, loss {loss:.3f}")

        fitted = fit.fit(data, settings, distance, device, on_epoch)
    if rank == 0 and (math.isfinite(last_loss) or not fit.is_trained):
        save_network(folder, fitted.network.cpu())
        of_training = {"loss": last_loss, "workers": size} if fit.is_trained else {}
        finish_stage(folder, of_training | {"training_flops": fitted.flops})
