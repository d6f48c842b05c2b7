"""Experiment trackers: TensorBoard, MLflow and Weights & Biases get the metrics of each epoch (docs/watching.md).

A tracker works in a thread of the driver. So workers need no library and no credentials, and no training waits for it.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal

from ray_backfill.core.job import TrainedEpoch, reported_to
from ray_backfill.core.progress import say, step
from ray_backfill.core.secrets import without_secrets
from ray_backfill.core.store_path import in_store

# Seconds at the end of a training in which the tracker may still write.
_PATIENCE_S = 30.0
# Variables of the trackers, where the user has set none: everything stays in the folder of the run.
_VARIABLES = {
    "MLFLOW_EXPERIMENT_NAME": "ray_backfill", "MLFLOW_LOGGING_LEVEL": "WARNING", "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_PROJECT": "ray_backfill", "WANDB_MODE": "offline", "WANDB_ERROR_REPORTING": "false",
}  # fmt: skip
# Logs a metric of one training: its name, its value and the epoch.
_Log = Callable[[str, float, int], Any]


@contextmanager
def _tensorboard(out: Path, name: str) -> Iterator[_Log]:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(out / "tensorboard" / name), flush_secs=5) as writer:
        yield writer.add_scalar


@contextmanager
def _mlflow(out: Path, name: str) -> Iterator[_Log]:
    import mlflow

    client = mlflow.MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_on_disk(out) / 'mlflow.db'}")
    there = client.get_experiment_by_name(title := os.environ["MLFLOW_EXPERIMENT_NAME"])
    experiment = there.experiment_id if there else client.create_experiment(title)
    run = client.create_run(experiment, run_name=f"{out.name}/{name}").info.run_id
    yield lambda metric, value, epoch: client.log_metric(run, metric, value, step=epoch)
    client.set_terminated(run)


@contextmanager
def _wandb(out: Path, name: str) -> Iterator[_Log]:
    import wandb

    quiet = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
    quiet |= {"x_disable_meta": True, "x_disable_stats": True}  # the command line with secrets, and the machine's load
    with wandb.init(name=f"{out.name}/{name}", dir=_on_disk(out), reinit="create_new", settings=quiet) as run:
        yield lambda metric, value, epoch: run.log({metric: value}, step=epoch)


def _on_disk(out: Path) -> Path:
    """The folder of the run; the working directory if that is in a store, where a database cannot be."""
    return Path.cwd() if in_store(out) else out


_TRACKERS = {"tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb}


@contextmanager
def tracked(out: Path, tracker: Literal["tensorboard", "mlflow", "wandb"] | None) -> Iterator[None]:
    """Within the block, the metrics of epochs go to a tracker; what fails there is said once. None: to nobody.

    out: folder of the run; a training is named after its own folder in there, such as maps/rm.
    """
    if tracker is None:
        yield
        return
    epochs: SimpleQueue[TrainedEpoch | None] = SimpleQueue()
    without = f"--workers.log-to {tracker}: %s; the run goes on without it"
    open_log, logs = _TRACKERS[tracker], dict[Path, _Log]()

    def log() -> None:
        try:
            os.environ.update(_VARIABLES | os.environ)
            with ExitStack() as running:
                while epoch := epochs.get():
                    if epoch.folder not in logs:
                        name = str(epoch.folder.relative_to(out))
                        logs[epoch.folder] = running.enter_context(open_log(out, name))
                    for metric, value in epoch.metrics.items():
                        logs[epoch.folder](metric, value, epoch.number)
        except Exception as error:
            say(without % without_secrets(f"{type(error).__name__}: {error}").splitlines()[0], "warning")

    thread = Thread(target=log, daemon=True)
    thread.start()
    try:
        with reported_to(epochs.put):
            yield
    finally:
        epochs.put(None)
        with step(f"write to {tracker}"):
            thread.join(_PATIENCE_S)
        if thread.is_alive():
            say(without % f"it does not answer for {_PATIENCE_S:g} s", "warning")
