"""Runs a measurement as one Ray task, with the CPUs and the GPU that an embedding actor has."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import ray
from ray.actor import ActorHandle

from ray_backfill.core.errors import InputError, input_error_in
from ray_backfill.core.progress import task
from ray_backfill.workers.gpus import gpu_of_task
from ray_backfill.workers.progress import sent_to, shown_in
from ray_backfill.workers.session import placed, session
from ray_backfill.workers.settings import EmbedActors
from ray_backfill.workers.waiting import answer_of

ResultT = TypeVar("ResultT")


def run_as_actor(work: Callable[[str], ResultT], actors: EmbedActors) -> ResultT:
    """The result of the work in a task of the cluster. work: takes "cuda" or "cpu". Raises InputError as it does."""
    with session(), task("measure on the cluster") as shown:
        _, on_gpu = placed(replace(actors, number=1))
        run = ray.remote(num_cpus=actors.cpus, num_gpus=actors.gpus if on_gpu else 0, max_retries=0)(_run)
        try:
            with shown_in(shown) as board:
                result: ResultT = answer_of(run.remote(work, sys.path, board))
        except ray.exceptions.RayTaskError as error:
            raise input_error_in(error) or error from error
        except ray.exceptions.RayError as error:
            raise InputError("the process that measured died, perhaps for lack of memory; lower its batch") from error
    return result


def _run(work: Callable[[str], ResultT], path: list[str], board: ActorHandle) -> ResultT:
    sys.path[:0] = [folder for folder in path if folder not in sys.path]  # where modules of the user are found
    with sent_to(board, is_first=True):
        return work(gpu_of_task() or "cpu")
