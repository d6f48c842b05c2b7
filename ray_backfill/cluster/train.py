"""Runs a training function on DDP workers by Ray Train."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from ray_backfill.cluster.session import placed
from ray_backfill.cluster.settings import Workers


def run_ddp(
    function: Callable[[dict[str, Any]], Any], config: Mapping[str, Any], workers: Workers, name: str, storage: Path
) -> Any:
    """Run ``function(config)`` on every DDP worker; returns what it returns on rank 0.

    name: of the run; the same name and storage continue from the last reported checkpoint. storage: a folder that all
    nodes share. A worker that dies is replaced, and all continue from the last checkpoint, ``max_failures`` times.
    """
    number, use_gpu = placed(workers.number, workers.cpus, "--workers")
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
            storage_path=str(storage.absolute()),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
            failure_config=FailureConfig(max_failures=workers.max_failures),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": str(max(1, int(workers.cpus)))}},
        ),
    )
    return _fit_beside_main_thread(trainer).return_value


def _fit_beside_main_thread(trainer: TorchTrainer) -> Any:
    """``trainer.fit()`` in a thread of its own, so that Ctrl-C stays what it is everywhere else.

    In the main thread Ray Train 2.60 takes over SIGINT for good, and its handler can wait for a controller that never
    answers. Here KeyboardInterrupt leaves at once, and the end of the session ends the workers.
    """
    outcome: Future[Any] = Future()

    def fit() -> None:
        try:
            outcome.set_result(trainer.fit())
        except BaseException as error:  # handed over to the main thread whole
            outcome.set_exception(error)

    threading.Thread(target=fit, daemon=True).start()
    while not wait([outcome], timeout=0.5).done:
        pass  # a wait without timeout could not be interrupted on every platform
    return outcome.result()
