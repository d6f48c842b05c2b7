"""Trains the maps of all methods with Ray Train in one group of workers."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.train.torch

from ray_backfill.cluster.progress import sent_to, shown_in
from ray_backfill.cluster.session import placed, session
from ray_backfill.cluster.settings import Workers
from ray_backfill.cluster.train import run_ddp
from ray_backfill.files import finish_stage
from ray_backfill.methods import Method, find_methods
from ray_backfill.models.checkpoints import save_network
from ray_backfill.models.gather import rank_and_size
from ray_backfill.progress import Stage, State, stage, step
from ray_backfill.store import EmbeddingFolder, read_classifier, read_table
from ray_backfill.training.fit import Fit, TrainSet
from ray_backfill.training.settings import FitSettings


def train_maps(
    out: Path,
    folder: EmbeddingFolder,
    trained: Mapping[str, Fit],
    settings: FitSettings,
    distance: str,
    workers: Workers,
    shown: Stage,
) -> None:
    """Train these fits (method name -> fit) into ``out/<method>``. See ``fit_stage``.

    shown: the stage that counts methods on the terminal.
    """
    assert folder.train is not None
    data = TrainSet(folder.train.vectors, folder.train.label, folder.classifier)
    with session(), shown_in(shown) as board:
        together = for_maps(workers)
        for fit in trained.values():
            fit.check(data, settings, together.number)
        config = {
            "data": str(folder.path),
            "models": tuple(folder.train.vectors),
            "methods": list(trained),
            "settings": settings,
            "distance": distance,
            "out": str(out),
            "board": board,
            "shown": shown.state(),
        }
        run_ddp(_worker, config, together, "_ray", out)
    shutil.rmtree(out / "_ray", ignore_errors=True)


def for_maps(workers: Workers) -> Workers:
    """The workers unchanged on a cluster with GPUs; otherwise one worker with the CPUs of all.

    Maps are small. On CPUs several workers mostly wait for each other (docs/log.md), and one gives the same result.

    Raises:
        InputError: The connected cluster has too few CPUs.
    """
    number, on_gpu = placed(workers.number, workers.cpus, "--workers")
    return replace(workers, number=number) if on_gpu else replace(workers, number=1, cpus=number * workers.cpus)


def _worker(config: dict[str, Any]) -> None:
    """Runs on every DDP worker: trains one method after the other; the first worker reports progress."""
    before: State = config["shown"]
    with (
        sent_to(config["board"], rank_and_size()[0] == 0),
        stage(before.title, before.total, before.unit, before.done) as shown,
    ):
        folder = Path(config["data"])
        train = read_table(folder / "train.parquet", config["models"])
        data = TrainSet(train.vectors, train.label, read_classifier(folder))
        for method in find_methods(tuple(config["methods"])):
            _train(method, data, config)
            shown.advance()


def _train(method: Method, data: TrainSet, config: dict[str, Any]) -> None:
    """Train one method; rank 0 stores the network."""
    assert method.fit is not None
    folder, settings, last_loss = Path(config["out"]) / method.name, config["settings"], math.nan
    rank, size = rank_and_size()
    epochs = method.fit.epochs(settings)
    with step(method.title) as shown:

        def on_epoch(epoch: int, loss: float) -> None:
            nonlocal last_loss
            last_loss = loss
            shown.note(f"epoch {epoch} of {epochs}, loss {loss:.3f}")

        fitted = method.fit.fit(data, settings, config["distance"], ray.train.torch.get_device(), on_epoch)
    if rank == 0 and math.isfinite(last_loss):
        save_network(folder, fitted.network.cpu())
        finish_stage(folder, {"loss": last_loss, "workers": size, "training_flops": fitted.flops})
