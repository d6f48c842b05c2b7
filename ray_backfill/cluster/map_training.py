"""Trains the maps of several methods on the connected cluster: side by side on CPUs, or together on its GPUs."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray.train.torch

from ray_backfill.cluster.progress import sent_to, shown_in
from ray_backfill.cluster.session import has_gpus, placed, session
from ray_backfill.cluster.settings import Workers
from ray_backfill.cluster.side_by_side import MapJob, fit_side_by_side
from ray_backfill.cluster.train import run_ddp
from ray_backfill.methods import Method, find_methods
from ray_backfill.models.gather import rank_and_size
from ray_backfill.progress import Stage, State, stage
from ray_backfill.store import EmbeddingFolder
from ray_backfill.training.fit import read_train_set, train_set
from ray_backfill.training.fit_into import fit_into
from ray_backfill.training.settings import FitSettings


def train_maps(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: Mapping[str, FitSettings],
    distance: str,
    workers: Workers,
    shown: Stage,
) -> None:
    """Train the maps of these methods into ``out/<method>``. See ``fit_stage``.

    settings: method name -> its settings. shown: the stage that counts methods on the terminal.
    """
    data = train_set(folder)
    with session():
        together = for_maps(workers)
        for method in methods:
            assert method.fit is not None
            method.fit.check(data, settings[method.name], together.number)
        if has_gpus():
            _train_together(out, folder, methods, settings, distance, together, shown)
        else:
            jobs = [MapJob(m.name, settings[m.name], distance, folder.path, out / m.name) for m in methods]
            fit_side_by_side(jobs, folder.train_bytes, shown, workers.max_failures)


def for_maps(workers: Workers) -> Workers:
    """The workers that train one map: on a cluster with GPUs as many as it has, otherwise one CPU.

    Raises:
        InputError: The connected cluster has GPUs, but too few CPUs.
    """
    if not has_gpus():
        return replace(workers, number=1, cpus=1)
    number, _ = placed(workers.number, workers.cpus, "--workers")
    return replace(workers, number=number)


def _train_together(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: Mapping[str, FitSettings],
    distance: str,
    workers: Workers,
    shown: Stage,
) -> None:
    """Train one map after the other in one group of DDP workers."""
    assert folder.train is not None
    with shown_in(shown) as board:
        config = {
            "data": str(folder.path),
            "models": tuple(folder.train.vectors),
            "methods": [method.name for method in methods],
            "settings": {method.name: settings[method.name] for method in methods},
            "distance": distance,
            "out": str(out),
            "board": board,
            "shown": shown.state(),
        }
        run_ddp(_worker, config, workers, "_ray", out)
    shutil.rmtree(out / "_ray", ignore_errors=True)


def _worker(config: dict[str, Any]) -> None:
    """Runs on every DDP worker: trains one method after the other; the first worker reports progress."""
    before: State = config["shown"]
    with (
        sent_to(config["board"], rank_and_size()[0] == 0),
        stage(before.title, before.total, before.unit, before.done) as shown,
    ):
        folder, out = Path(config["data"]), Path(config["out"])
        data, device = read_train_set(folder, config["models"]), ray.train.torch.get_device()
        for method in find_methods(tuple(config["methods"])):
            assert method.fit is not None
            settings = config["settings"][method.name]
            fit_into(out / method.name, method.title, method.fit, data, settings, config["distance"], device)
            shown.advance()
