"""Fits and trials of settings: side by side, or one map under DDP."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from ray.actor import ActorHandle

from ray_backfill.compare.fitted import MapJob
from ray_backfill.core.job import job_name
from ray_backfill.core.progress import State, Task, task
from ray_backfill.core.stages import remove_folder
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.models.gather import rank_and_size
from ray_backfill.learn.training.fit import fit_into, read_train_set, train_set
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.gpus import gpu_of_task
from ray_backfill.workers.progress import sent_as_row, sent_to, shown_in
from ray_backfill.workers.session import has_gpus, placed, session
from ray_backfill.workers.settings import Workers, number_of
from ray_backfill.workers.side_by_side import OfMethod, run_side_by_side
from ray_backfill.workers.train import run_ddp


class FitJob(OfMethod, Protocol):
    """A map to fit, or a trial of settings. out: a stage that has begun."""

    @property
    def out(self) -> Path: ...

    def run(self, device: str | None = None) -> None: ...


def fit_side_by_side(jobs: Sequence[FitJob], train_bytes: int, shown: Task, max_failures: int) -> None:
    """Fit every map, or try settings; a map whose training diverges is left unfinished.

    train_bytes: size of what every task reads (``EmbeddingFolder.train_bytes``). shown: counts the jobs on the
    terminal. max_failures: number of deaths of a task's process to recover from.

    Raises:
        InputError: A fit failed. The others are stopped; what is finished is kept.
    """
    run_side_by_side(_run_alone, jobs, train_bytes, shown, max_failures)


def _run_alone(job: FitJob, board: ActorHandle) -> None:
    with sent_as_row(board, str(job.out)):
        job.run(gpu_of_task())


def train_maps(
    out: Path,
    folder: EmbeddingFolder,
    methods: Sequence[Method],
    settings: Mapping[str, FitSettings],
    distance: str,
    workers: Workers,
    shown: Task,
    is_only: bool,
) -> None:
    """Train the maps of these methods into ``out/<method>``: side by side, or a single one by DDP on all GPUs.

    is_only: whether it is the only map of the run, so that a map does not depend on what is finished already. settings:
    method name -> its settings. shown: the row that counts methods on the terminal. See ``fit_stage``.
    """
    data = train_set(folder)
    with session():
        by_ddp = is_only and has_gpus()
        together = for_maps(workers) if by_ddp else replace(workers, number=1, cpus=1)
        for method in methods:
            assert method.fit is not None
            method.fit.check(data, settings[method.name], number_of(together))
        jobs = [MapJob(m.name, settings[m.name], distance, folder.train_path, out / m.name) for m in methods]
        if not by_ddp:
            fit_side_by_side(jobs, folder.train_bytes, shown, workers.max_failures)
            return
        with shown_in(shown) as board:
            config = {"job": jobs[0], "models": tuple(data.vectors), "board": board, "shown": shown.state()}
            run_ddp(_worker, config, together, job_name("fit", methods[0].name), out / "_ray")
        remove_folder(out / "_ray")


def for_maps(workers: Workers) -> Workers:
    """The workers that train one map: on a cluster with GPUs as many as it has, otherwise one CPU.

    Raises:
        InputError: The connected cluster has GPUs, but too few CPUs.
    """
    if not has_gpus():
        return replace(workers, number=1, cpus=1)
    number, _ = placed(replace(workers, decode_cpus=0))
    return replace(workers, number=number)


def _worker(config: dict[str, Any]) -> None:
    """Runs on every DDP worker: trains a map; the first worker reports progress."""
    from ray.train.torch import get_device  # takes a second to import, and shards do without

    job: MapJob = config["job"]
    before: State = config["shown"]
    with (
        sent_to(config["board"], rank_and_size()[0] == 0),
        task(before.title, before.total, before.unit, before.done) as shown,
    ):
        data, (method,) = read_train_set(job.data, config["models"]), find_methods((job.method,))
        assert method.fit is not None
        fit_into(job.out, method.title, method.fit, data, job.settings, job.distance, get_device())
        shown.advance()
