"""Connects to Ray: to the cluster of the job that we run in, else to a Ray started here."""

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray

from ray_backfill.errors import InputError
from ray_backfill.progress import detail, step

# A local Ray counts at least this many logical CPUs. On fewer, Ray Data's reads starve beside the embedding actors.
_LOCAL_CPUS = 4
_OBJECT_STORE_BYTES = 500 << 20

# Ray Data logs an alarming line whenever it starts actors (ray-project/ray#53727), which only this level silences.
# Python errors are not affected.
_LEVEL, _SILENT = "RAY_BACKEND_LOG_LEVEL", "fatal"

# Ray Train checks its workers every second and watches for cloud preemptions; here both only lengthen the start.
_LOCAL_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_metrics_report_interval_ms": "1000",
}

_LOG_LEVELS = {
    "ray.train": logging.WARNING,
    "ray.data": logging.WARNING,
    "ray.data._internal.progress": logging.ERROR,  # says that there are no bars: ray_backfill.progress shows its own
    "ray._private.authentication": logging.ERROR,  # says at every start that the cluster is protected by a token
}


@contextmanager
def session() -> Iterator[None]:
    """A connection to Ray for the length of the block.

    With RAY_ADDRESS set (as ``ray job submit`` does) it connects there and leaves the cluster running; otherwise it
    starts a Ray of its own on this machine, without dashboard, and stops it at the end. A running connection is used.
    """
    # Importing ray.data sets a level, too: this must come after it.
    for name, level in _LOG_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    if ray.is_initialized():
        yield
        return
    with step("start Ray"), _without_note_of_level():
        _start()
    try:
        yield
    finally:
        with detail("stop Ray"):
            ray.shutdown()


def _start() -> None:
    os.environ.setdefault(_LEVEL, _SILENT)
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False, logging_level=logging.WARNING)
        return
    for name, value in _LOCAL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    ray.init(
        address="local",  # also where a head is running on this machine
        num_cpus=max(_LOCAL_CPUS, os.cpu_count() or 1),
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    _protect_token()


@contextmanager
def _without_note_of_level() -> Iterator[None]:
    """Ray's C++ part writes to the descriptor of stderr that a log level is set. What else is written is only delayed.

    It does so before it obeys the level, so no setting prevents it.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            lines = written.read().decode(errors="replace").splitlines(keepends=True)
            sys.stderr.write("".join(line for line in lines if _LEVEL not in line))


def _protect_token() -> None:
    """Ray writes the token that lets anyone run code here readable by all users of the machine."""
    token = Path.home() / ".ray" / "auth_token"
    if token.exists():
        token.chmod(0o600)


def placed(number: int, cpus: float, option: str, spare_cpus: float = 0, spare_gpus: int = 0) -> tuple[int, bool]:
    """How many workers or actors to start on the connected cluster, and whether each gets a GPU.

    Where there are GPUs, each gets one, and there are no more of them than GPUs. spare_...: left to others.

    Raises:
        InputError: the cluster has too few CPUs or GPUs: Ray would wait for them for ever.
    """
    resources = ray.cluster_resources()
    gpus, available = int(resources.get("GPU", 0)), resources.get("CPU", 0)
    if spare_gpus and spare_gpus >= gpus:
        raise InputError(f"{spare_gpus} shards on GPUs leave none of {gpus} for {option}; use fewer, or device cpu")
    gpus -= spare_gpus
    number = min(number, gpus) if gpus else number
    if number * cpus + spare_cpus > available:
        raise InputError(
            f"{number} x {cpus:g} CPUs ({option}) and {spare_cpus:g} for Ray's own tasks were asked for, but the Ray "
            f"cluster has {available:g}; lower {option}.number or {option}.cpus"
        )
    return number, gpus > 0
