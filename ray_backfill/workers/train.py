"""Runs a training function on DDP workers with Ray Train."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_backfill.workers.session import placed
from ray_backfill.workers.settings import Workers, threads_of

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer


def run_ddp(
    function: Callable[[dict[str, Any]], Any], config: Mapping[str, Any], workers: Workers, name: str, storage: Path
) -> Any:
    """Run ``function(config)`` on every DDP worker; returns the result of rank 0.

    A worker that dies is replaced, and all resume from the last checkpoint, up to ``max_failures`` times.
    name: name of the run; with the same name and storage it resumes from the last reported checkpoint. storage: a
    folder that all nodes share, or one in a store.
    """
    # They take more than a second to import, and every process that embeds or fits alone imports this module.
    from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    from ray_backfill.workers.storage import train_storage

    number, use_gpu = placed(workers)
    path, system = train_storage(storage)
    trainer = TorchTrainer(
        function,
        train_loop_config=dict(config),
        torch_config=TorchConfig(backend="nccl" if use_gpu else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=number,
            use_gpu=use_gpu,
            resources_per_worker={"CPU": workers.cpus} | ({"GPU": 1} if use_gpu else {}),
        ),
        run_config=RunConfig(
            name=name,
            storage_path=path,
            storage_filesystem=system,
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=workers.max_failures),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(threads_of(workers))}},
        ),
    )
    return _fit_beside_main_thread(trainer).return_value


def _fit_beside_main_thread(trainer: "TorchTrainer") -> Any:
    """Run ``trainer.fit()`` in its own thread, so that Ctrl-C works as everywhere else.

    In the main thread Ray Train 2.60 replaces the SIGINT handler permanently, and its handler can wait for a controller
    that never answers. Here KeyboardInterrupt takes effect at once, and the end of the session stops the workers.
    """
    outcome: Future[Any] = Future()

    def fit() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as error:  # passed to the main thread unchanged
            outcome.set_exception(error)

    threading.Thread(target=fit, daemon=True).start()
    while not wait([outcome], timeout=0.5).done:
        pass  # a wait without timeout could not be interrupted on every platform
    return outcome.result()
