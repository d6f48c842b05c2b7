"""Asks each node with GPUs, before anything else, whether torch and FAISS can use what Ray counts there."""

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import detail
from ray_backfill.engine.stack import Stack, read_stack
from ray_backfill.workers.waiting import answers_of, living_nodes

# What nodes answered.
_ASKED: dict[str, Stack] = {}
# A process that imports torch and FAISS and starts CUDA takes seconds.
_PATIENCE_S = 300.0


def check_gpus(with_faiss: bool = False) -> None:
    """Ask every node with GPUs once. The driver may be on a node without.

    with_faiss: whether FAISS indexes on GPUs are needed, too. Cost: seconds, for each node starts CUDA.

    Raises:
        InputError: A node's torch, or its FAISS, cannot use its GPUs; with the command that mends it.
    """
    nodes = [node for node in living_nodes() if node.resources.get("GPU", 0) >= 1]
    if new := [node for node in nodes if node.id not in _ASKED]:
        # A process of its own, which ends and gives the memory back, and no GPU of Ray's: others may hold them all.
        ask = ray.remote(num_cpus=0, max_calls=1)(read_stack)
        there = [NodeAffinitySchedulingStrategy(node.id, soft=False) for node in new]
        with detail("look at GPUs"):
            try:
                stacks = answers_of([ask.options(scheduling_strategy=node).remote() for node in there], _give_up)
            except ray.exceptions.RayError as error:
                raise InputError(f"a node with GPUs did not say what torch finds there: {error}") from error
        _ASKED.update(zip([node.id for node in new], stacks, strict=True))
    for node in nodes:
        if problem := _ASKED[node.id].problem(int(node.resources["GPU"]), with_faiss):
            counted = f"Ray counts {node.resources['GPU']:g} GPU(s) on node {node}"
            raise InputError(f"{counted}, but {problem}; or hide them: CUDA_VISIBLE_DEVICES= before ray starts there")


def smallest_gpu() -> int:
    """Bytes of memory of the smallest GPU of the nodes that were asked; 0 if there is none."""
    return min((stack.memory for stack in _ASKED.values()), default=0)


def gpu_of_task() -> str | None:
    """The torch device of this task, if Ray gave it a GPU: each task sees its own alone."""
    return "cuda" if ray.get_gpu_ids() else None


def _give_up(waited_s: float) -> None:
    if waited_s > _PATIENCE_S:
        raise InputError(f"a node with GPUs did not answer in {_PATIENCE_S:g} s; see nvidia-smi there")
