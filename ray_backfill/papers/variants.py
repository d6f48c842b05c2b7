"""Fits variants of methods in parallel for ablations, each on one CPU."""

from collections.abc import Sequence
from pathlib import Path

import ray
import torch

from ray_backfill.cluster.session import session
from ray_backfill.files import begin_stage, finish_stage
from ray_backfill.methods import find_methods
from ray_backfill.models.checkpoints import save_network
from ray_backfill.progress import stage
from ray_backfill.store import read_classifier, read_table
from ray_backfill.training.fit import TrainSet
from ray_backfill.training.settings import FitSettings


def fit_side_by_side(data: Path, wanted: Sequence[tuple[str, FitSettings]], distance: str, out: Path) -> list[Path]:
    """Fit methods by name, each with its own settings and on one CPU, as many in parallel as there are CPUs.

    data: a folder of the data contract. Returns: the folder of each network, ``out/<number>``; finished ones are kept.
    """
    folders = [out / str(i) for i in range(len(wanted))]
    with session(), stage("fit variants", len(wanted), "variants") as bar:
        task = ray.remote(num_cpus=1)(_fit_alone)
        waiting = [
            task.remote(data, name, settings, distance, folder)
            for (name, settings), folder in zip(wanted, folders, strict=True)
        ]
        while waiting:
            done, waiting = ray.wait(waiting)
            ray.get(done)
            bar.advance(len(done))
    return folders


def _fit_alone(data: Path, name: str, settings: FitSettings, distance: str, folder: Path) -> None:
    torch.set_num_threads(1)
    (method,) = find_methods((name,))
    assert method.fit is not None
    if begin_stage(folder, "map", method.fit.recorded(settings, distance)):
        return
    train = read_table(data / "train.parquet", method.models)
    fitted = method.fit.fit(TrainSet(train.vectors, train.label, read_classifier(data)), settings, distance)
    save_network(folder, fitted.network)
    finish_stage(folder, {"training_flops": fitted.flops})
