"""Trains heads by Ray Train on stored embeddings. All methods share one start of the workers."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray.train.torch

from ray_backfill.cluster.progress import progress_bar
from ray_backfill.cluster.session import placed, session
from ray_backfill.cluster.train import Workers, run_ddp
from ray_backfill.errors import InputError
from ray_backfill.methods import Method
from ray_backfill.models.checkpoints import save_heads
from ray_backfill.models.gather import rank_and_size
from ray_backfill.stages import begin_stage, finish_stage, is_finished
from ray_backfill.store import EmbeddingTable, read_table
from ray_backfill.training.head_loop import HeadTraining, TrainSet, anchors_per_worker, train_heads


def train_heads_stage(
    folder: Path,
    train: EmbeddingTable,
    fingerprint: str,
    methods: Sequence[Method],
    training: HeadTraining,
    workers: Workers,
) -> dict[str, Path]:
    """Train the heads of those methods that have any; each ends in ``folder/<method>`` and is trained once.

    train: the train split, which every worker reads again. fingerprint: of the data, for the manifests.
    folder: on storage that all nodes share, like the train split.
    Returns: method name -> folder, as ``load_heads`` reads it.

    Raises:
        InputError: a folder of other settings, or a split that cannot be trained on.
    """
    data, in_batches = _train_set(train, training)
    anchors_per_worker(data.label, in_batches, 1)  # fails here, not in a worker with a long trace
    wanted = [method for method in methods if method.head is not None]
    folders = {method.name: folder / method.name for method in wanted}
    missing = [
        method
        for method in wanted
        if not begin_stage(
            folders[method.name],
            "heads",
            {"data": fingerprint, "head": asdict(method.head), "training": asdict(training)},  # type: ignore[arg-type]
        )
    ]
    if not missing:
        return folders
    with session(), progress_bar("train heads", training.epochs * len(missing), "epochs") as progress:
        anchors_per_worker(data.label, in_batches, placed(workers.number, workers.cpus, "--workers")[0])
        config = {
            "train_path": str(train.path),
            "methods": [(method.name, method.title, method.head) for method in missing],
            "training": training,
            "folder": str(folder),
            "progress": progress,
        }
        run_ddp(_worker, config, workers, "_ray", folder)
    for method in missing:
        if not is_finished(folders[method.name]):
            raise InputError(
                f"training {method.name} diverged (its loss is not finite); delete {folder} and lower --heads.lr"
            )
    shutil.rmtree(folder / "_ray", ignore_errors=True)
    return folders


def _train_set(table: EmbeddingTable, training: HeadTraining) -> tuple[TrainSet, HeadTraining]:
    """The train split as numbers. Without labels every item is its own class, once in a batch of the same size."""
    if table.label is None:
        whole = replace(training, classes=training.classes * training.items, items=1)
        return TrainSet(table.old, table.new, np.arange(len(table))), whole
    return TrainSet(table.old, table.new, np.unique(table.label, return_inverse=True)[1]), training


def _worker(config: dict[str, Any]) -> None:
    """Runs on every DDP worker: one method after the other; rank 0 keeps each as soon as it is trained."""
    data, training = _train_set(read_table(Path(config["train_path"])), config["training"])
    last_loss: dict[str, float] = {}
    for i, (name, title, head) in enumerate(config["methods"]):

        def on_epoch(epoch: int, loss: float, i: int = i, name: str = name, title: str = title) -> None:
            last_loss[name] = loss
            if rank_and_size()[0] == 0:
                config["progress"].set.remote(i * training.epochs + epoch, f"{title}, loss {loss:.3f}")

        heads, shape = train_heads(data, head, training, ray.train.torch.get_device(), on_epoch)
        if rank_and_size()[0] == 0 and math.isfinite(last_loss[name]):
            save_heads(Path(config["folder"]) / name, heads, shape)
            finish_stage(Path(config["folder"]) / name, {"loss": last_loss[name], "workers": rank_and_size()[1]})
