"""Fits one map and keeps it in its folder: alone, side by side with others, or on the workers of a DDP group."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from threadpoolctl import threadpool_limits

from ray_backfill.core.plugins import Deferred
from ray_backfill.core.progress import step
from ray_backfill.core.stages import finish_stage
from ray_backfill.learn.models.apply import save_network
from ray_backfill.learn.training.fit import Device, Fit, TrainSet
from ray_backfill.learn.training.settings import FitSettings

_rank_and_size = Deferred("ray_backfill.learn.models.gather", "rank_and_size")


@contextmanager
def one_thread(by_torch: bool = True) -> Iterator[None]:
    """Within the block, BLAS computes in one thread, and so does torch. by_torch: False leaves torch alone.

    Sums in several threads round differently, so a map would depend on the number of cores. Threads do not pay either:
    a step of a small map takes a millisecond, and on a busy machine threads wait for each other much longer.
    """
    with ExitStack() as stack:
        if by_torch:
            import torch

            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        stack.enter_context(threadpool_limits(1, user_api="blas"))
        yield


def fit_into(
    folder: Path, title: str, fit: Fit, data: TrainSet, settings: FitSettings, distance: str, device: Device = None
) -> None:
    """Fit a map and finish its stage in ``folder``, unless its training diverged; under DDP rank 0 writes it.

    title: of the method, for the terminal.
    """
    last_loss, epochs = math.nan, fit.epochs(settings)
    rank, size = _rank_and_size() if fit.is_trained else (0, 1)
    with step(title) as shown:

        def on_epoch(epoch: int, loss: float) -> None:
            nonlocal last_loss
            last_loss = loss
            shown.note(f"epoch {epoch} of {epochs}, loss {loss:.3f}")

        fitted = fit.fit(data, settings, distance, device, on_epoch)
    if rank == 0 and (math.isfinite(last_loss) or not fit.is_trained):
        save_network(folder, fitted.network)
        of_training = {"loss": last_loss, "workers": size} if fit.is_trained else {}
        finish_stage(folder, of_training | {"training_flops": fitted.flops})
