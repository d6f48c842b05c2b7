"""Measures as one Ray task, with the CPUs and the GPU that an embedding actor has."""

import sys
from dataclasses import replace

import ray
from ray.actor import ActorHandle

from ray_backfill.core.errors import InputError, input_error_in
from ray_backfill.core.progress import task
from ray_backfill.plan.measure import Job, measure_here
from ray_backfill.plan.rates import Rates
from ray_backfill.workers.gpus import gpu_of_task
from ray_backfill.workers.progress import sent_to, shown_in
from ray_backfill.workers.session import placed, session
from ray_backfill.workers.waiting import answer_of


def measure_on_cluster(job: Job) -> Rates:
    """See ``measure``. The folder of scratch files must be on storage that the nodes share."""
    with session(), task("measure on the cluster") as shown:
        _, on_gpu = placed(replace(job.actors, number=1))
        gpus = job.actors.gpus if on_gpu else 0
        run = ray.remote(num_cpus=job.actors.cpus, num_gpus=gpus, max_retries=0)(_run)
        try:
            with shown_in(shown) as board:
                rates: Rates = answer_of(run.remote(replace(job, path=tuple(sys.path)), board))
        except ray.exceptions.RayTaskError as error:
            if problem := input_error_in(error):
                raise problem from error
            raise
        except ray.exceptions.RayError as error:
            raise InputError(
                f"the process that measured {job.spec} died, perhaps for lack of memory; lower its batch"
            ) from error
    return rates


def _run(job: Job, board: ActorHandle) -> Rates:
    sys.path[:0] = [folder for folder in job.path if folder not in sys.path]
    with sent_to(board, is_first=True):
        return measure_here(job, gpu_of_task() or "cpu")
