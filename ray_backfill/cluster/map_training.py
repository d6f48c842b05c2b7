"""Trains the maps of methods by Ray Train, all in one start of workers."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.train.torch

from ray_backfill.cluster.progress import progress_bar
from ray_backfill.cluster.session import placed, session
from ray_backfill.cluster.settings import Workers
from ray_backfill.cluster.train import run_ddp
from ray_backfill.files import finish_stage
from ray_backfill.methods import Method, find_methods
from ray_backfill.models.checkpoints import save_network
from ray_backfill.models.gather import rank_and_size
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
) -> None:
    """Train these fits, by the names of their methods, into ``out/<method>``. See ``fit_stage``."""
    assert folder.train is not None
    data = TrainSet(folder.train.vectors, folder.train.label, folder.classifier)
    with session(), progress_bar("train maps", sum(fit.epochs(settings) for fit in trained.values()), "epochs") as bar:
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
            "progress": bar,
        }
        run_ddp(_worker, config, together, "_ray", out)
    shutil.rmtree(out / "_ray", ignore_errors=True)


def for_maps(workers: Workers) -> Workers:
    """As they are where there are GPUs; else one worker with the CPUs of all.

    Maps are small: on CPUs several workers mostly wait for each other (docs/log.md), and one trains the same.

    Raises:
        InputError: the connected cluster has too few CPUs.
    """
    number, on_gpu = placed(workers.number, workers.cpus, "--workers")
    return replace(workers, number=number) if on_gpu else replace(workers, number=1, cpus=number * workers.cpus)


def _worker(config: dict[str, Any]) -> None:
    """Runs on every DDP worker: one method after the other; rank 0 keeps each as soon as it is trained."""
    folder, out, settings = Path(config["data"]), Path(config["out"]), config["settings"]
    train = read_table(folder / "train.parquet", config["models"])
    data = TrainSet(train.vectors, train.label, read_classifier(folder))
    rank, size = rank_and_size()
    done = 0
    for method in find_methods(tuple(config["methods"])):
        assert method.fit is not None
        last_loss = math.nan

        def on_epoch(epoch: int, loss: float, method: Method = method, done: int = done) -> None:
            nonlocal last_loss
            last_loss = loss
            if rank == 0:
                config["progress"].set.remote(done + epoch, f"{method.title}, loss {loss:.3f}")

        fitted = method.fit.fit(data, settings, config["distance"], ray.train.torch.get_device(), on_epoch)
        done += method.fit.epochs(settings)
        if rank == 0 and math.isfinite(last_loss):
            save_network(out / method.name, fitted.network.cpu())
            finish_stage(out / method.name, {"loss": last_loss, "workers": size, "training_flops": fitted.flops})
