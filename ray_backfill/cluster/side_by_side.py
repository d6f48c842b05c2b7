"""Fits maps side by side: each is a Ray task of one thread, as many at a time as there are CPUs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.actor import ActorHandle

from ray_backfill.cluster.progress import sent_as_row, shown_in
from ray_backfill.cluster.waiting import Room, answer_of, wait_for_one
from ray_backfill.comparison.trial import Trial, run_trial
from ray_backfill.errors import InputError, input_error_in
from ray_backfill.methods import find_methods
from ray_backfill.progress import Stage
from ray_backfill.training.fit import read_train_set
from ray_backfill.training.fit_into import fit_into, one_thread
from ray_backfill.training.settings import FitSettings

# A task holds its vectors as they are read and as tensors, and some more while they are read.
_COPIES = 3


@dataclass(frozen=True)
class MapJob:
    """A map to fit. data: a folder of the data contract. out: a stage that has begun; both on storage of all nodes."""

    method: str
    settings: FitSettings
    distance: str
    data: Path
    out: Path


def fit_side_by_side(jobs: Sequence[MapJob], train_bytes: int, shown: Stage, max_failures: int) -> None:
    """Fit every map; one whose training diverges is left unfinished.

    train_bytes: size of what every task reads (``EmbeddingFolder.train_bytes``). shown: counts the maps on the
    terminal. max_failures: number of deaths of a task's process to recover from.

    Raises:
        InputError: A fit failed. The others are stopped; what is finished is kept.
    """
    run_side_by_side(_fit_alone, jobs, train_bytes, shown, max_failures)


def try_side_by_side(trials: Sequence[Trial], train_bytes: int, shown: Stage, max_failures: int) -> None:
    """Run trials of settings; see ``fit_side_by_side``."""
    run_side_by_side(_try_alone, trials, train_bytes, shown, max_failures)


def run_side_by_side(
    run: Callable[[Any, ActorHandle], None],
    jobs: Sequence[MapJob] | Sequence[Trial],
    train_bytes: int,
    shown: Stage,
    max_failures: int,
) -> None:
    """Run each job as a task; see ``fit_side_by_side``."""
    options = {"num_cpus": 1, "memory": _memory(train_bytes), "max_retries": max_failures}
    task = ray.remote(**options)(run)
    with shown_in(shown) as board:
        jobs_of = {task.remote(job, board): job for job in jobs}
        running, room = (
            list(jobs_of),
            Room("maps", {"CPU": 1}, "start nodes again, and run the same command"),
        )
        try:
            while running:
                done, running = wait_for_one(running, room)
                for each in done:
                    _check(each, jobs_of[each])
                    shown.advance()
        except BaseException:
            for each in running:
                ray.cancel(each, force=True)
            raise


def _memory(train_bytes: int) -> int:
    """Memory to reserve for a task, so that large data are not read more often than they fit; at most a whole node."""
    nodes = (node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
    return int(min(_COPIES * train_bytes, max(nodes)))


def _check(task: ray.ObjectRef, job: MapJob | Trial) -> None:
    """Raise what ended the task, if it did not succeed."""
    title = find_methods((job.method,))[0].title
    try:
        answer_of(task)
    except ray.exceptions.RayTaskError as error:
        if problem := input_error_in(error):
            raise InputError(f"{title}: {problem}") from error
        raise
    except ray.exceptions.RayError as error:
        raise InputError(
            f"{title}: the process that fitted its map died, perhaps for lack of memory; the same command fits what is "
            "missing"
        ) from error


def _fit_alone(job: MapJob, board: ActorHandle) -> None:
    """Runs as a task."""
    (method,) = find_methods((job.method,))
    assert method.fit is not None
    with sent_as_row(board, str(job.out)), one_thread():
        data = read_train_set(job.data, method.fit.models)
        fit_into(job.out, method.title, method.fit, data, job.settings, job.distance)


def _try_alone(trial: Trial, board: ActorHandle) -> None:
    """Runs as a task."""
    with sent_as_row(board, str(trial.out)), one_thread():
        run_trial(trial)
