"""Runs jobs side by side: each is a Ray task of one thread, as many at a time as there are CPUs, or GPUs if any."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import ray
from ray.actor import ActorHandle

from ray_backfill.core.errors import InputError, input_error_in
from ray_backfill.core.progress import Task
from ray_backfill.learn.methods import find_methods
from ray_backfill.workers.progress import shown_in
from ray_backfill.workers.session import has_gpus
from ray_backfill.workers.waiting import Room, answer_of, living_resources, wait_for_one


class OfMethod(Protocol):
    """A job that works on the map of one method."""

    @property
    def method(self) -> str:
        """Its name."""


# A task holds its vectors as they are read and as tensors, and some more while they are read.
_COPIES = 3
# Most jobs that share a GPU.
_JOBS_OF_GPU = 8


def run_side_by_side(
    run: Callable[[Any, ActorHandle], None], jobs: Sequence[OfMethod], train_bytes: int, shown: Task, max_failures: int
) -> None:
    """Run each job as a task.

    train_bytes: size of what every task reads (``EmbeddingFolder.train_bytes``). shown: counts the jobs on the
    terminal. max_failures: number of deaths of a task's process to recover from.

    Raises:
        InputError: A job failed. The others are stopped; what is finished is kept.
    """
    gpus = 0.0
    if has_gpus():  # shares in Ray's four digits; a step is so short that several jobs fill a GPU
        gpus = max(1 / _JOBS_OF_GPU, min(1.0, int(1e4 * living_resources()["GPU"] / len(jobs)) / 1e4))
    # Reserved, so that large data are not read more often than they fit; at most a whole node.
    of_nodes = (node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"])
    memory = int(min(_COPIES * train_bytes, max(of_nodes)))
    task = ray.remote(num_cpus=1, num_gpus=gpus, memory=memory, max_retries=max_failures)(run)
    room = Room("maps", {"CPU": 1, "GPU": gpus}, "start nodes again, and run the same command")
    with shown_in(shown) as board:
        job_of = {task.remote(job, board): job for job in jobs}
        running = list(job_of)
        try:
            while running:
                done, running = wait_for_one(running, room)
                for ended in done:
                    _check(ended, job_of[ended])
                    shown.advance()
        except BaseException:
            for unfinished in running:
                ray.cancel(unfinished, force=True)
            raise


def _check(task: ray.ObjectRef, job: OfMethod) -> None:
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
