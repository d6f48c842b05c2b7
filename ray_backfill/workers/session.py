"""Connects to Ray: to the cluster of the current job, or to a local Ray that it starts."""

import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.job_config import JobConfig

from ray_backfill.core.errors import InputError, Stopped
from ray_backfill.core.job import AT_END, current_job, job_name
from ray_backfill.core.progress import detail, say, step
from ray_backfill.core.secrets import cleaned
from ray_backfill.workers.gpus import check_gpus
from ray_backfill.workers.settings import EmbedActors, Workers, local_cpus, number_of
from ray_backfill.workers.versions import check_versions, rays_mismatch_as_line
from ray_backfill.workers.waiting import answers_at, check_disk, check_room, living_resources
from ray_backfill.workers.watch import write_targets
from ray_backfill.workers.watchdog import kill, rays_notices_as_lines, watch_cluster, watch_own, watched

_STARTS = 5
# What Ray says of a start that ran out of time: its servers, and the file that names the port of one.
_SLOW = ("timed out during startup", "Timed out waiting for file")

# Ray Data logs an alarming line whenever it starts actors (ray-project/ray#53727), which only this level suppresses.
# Python errors are not affected.
_LEVEL, _SILENT = "RAY_BACKEND_LOG_LEVEL", "fatal"

# Ray Train checks its workers every second and watches for cloud preemptions; locally both only delay the start.
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
    "ray.data._internal.progress": logging.ERROR,  # reports that its progress bars are disabled
    # Reports that CPUs and GPUs for one actor are experimental.
    "ray.data._internal.execution.operators.map_operator": logging.ERROR,
    "ray._private.authentication": logging.ERROR,  # reports at every start that a token protects the cluster
    "ray._private.services": logging.ERROR,  # reports in every container that /dev/shm is small
    "ray._private.worker": logging.WARNING,  # reports "Started a local Ray instance."
}


@contextmanager
def session() -> Iterator[None]:
    """A connection to Ray within the block. An existing connection is used.

    If RAY_ADDRESS is set (as by ``ray job submit``), it connects to that cluster, compares its nodes' versions with
    those of this process, and leaves it running; otherwise it starts a local Ray without a dashboard and stops it at
    the end.

    Raises:
        InputError: No Ray answers, or the cluster has other versions.
    """
    # Importing ray.data sets a level as well, so this must come after it.
    for name, level in _LOG_LEVELS.items():
        logging.getLogger(name).setLevel(level)
    if ray.is_initialized():
        yield
        return
    is_own, is_submitted = not os.environ.get("RAY_ADDRESS"), "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    # Ray's dashboard knows only the last connection of a submitted job, and fails to show trainings of others.
    with nullcontext(AT_END) if is_submitted and current_job().out else ExitStack() as stack:
        stack.enter_context(rays_notices_as_lines())
        stack.enter_context(nullcontext() if is_own else watched(watch_cluster))
        with step("start Ray"), _keeping_signal_handlers():
            _start()
        stack.callback(_stop)
        if is_own and (out := Path(current_job().out or "no run")).is_dir():
            write_targets(out / "prometheus_targets.json")
        if is_own:
            stack.enter_context(watched(watch_own))
        else:
            check_versions()
        yield


def _stop() -> None:
    with detail("stop Ray"):
        ray.shutdown()


def _start() -> None:
    """Connect to the cluster of RAY_ADDRESS, or start a local Ray."""
    os.environ.setdefault(_LEVEL, _SILENT)
    if address := os.environ.get("RAY_ADDRESS"):
        if not answers_at(address):  # Ray would try for minutes
            raise InputError(f"no Ray answers at RAY_ADDRESS={address}; start its head, or unset the variable")
        with _without_note_of_level(), rays_mismatch_as_line():
            os.environ.setdefault("RAY_TRAIN_ENABLE_STATE_TRACKING", "1")  # the dashboard's tab Train
            ray.init(
                log_to_driver=False,
                logging_level=logging.WARNING,
                job_config=JobConfig(metadata=cleaned(current_job().known)),
            )
        return
    for name, value in _LOCAL_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # It warns of actors that have not started in a minute. A local Ray has room for them; a busy machine is only slow.
    logging.getLogger("ray.data._internal.execution.resource_manager").setLevel(logging.ERROR)
    _start_local()
    # Ray lets all users of the machine read its token, and it permits running code here.
    if (token := Path.home() / ".ray" / "auth_token").exists():
        token.chmod(0o600)


def _start_local() -> None:
    """Start a local Ray. It gives itself 30 seconds, which a busy machine can exceed, so it is started again.

    Raises:
        InputError: It did not start in any of them.
    """
    before = {child.pid for child in psutil.Process().children()}
    for number in range(1, _STARTS + 1):
        try:
            with _without_note_of_level():
                ray.init(
                    address="local",  # even if a head node is running on this machine
                    num_cpus=local_cpus(),
                    include_dashboard=False,
                    object_store_memory=500 << 20,
                    log_to_driver=False,
                    logging_level=logging.WARNING,
                    job_config=JobConfig(metadata=cleaned(current_job().known)),
                )
            return
        except Exception as error:  # of no type of its own
            check_disk()
            if not any(slow in str(error) for slow in _SLOW):
                raise
            if number < _STARTS:
                say(f"Ray did not start in time, on a machine that may be busy: try {number + 1} of {_STARTS}")
            ray.shutdown()
            left = [child for child in psutil.Process().children() if child.pid not in before]
            kill([child.pid for child in left])
            psutil.wait_procs(left, timeout=5)
    raise InputError(f"Ray did not start in {_STARTS} tries: this machine is too busy; run the same command again")


@contextmanager
def _keeping_signal_handlers() -> Iterator[None]:
    """Keep the program's own handler of SIGTERM. Ray replaces it twice: by a silent exit, then by a trace in C++."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # Ray's handler, while Ray starts
        raise Stopped(signal.SIGTERM) from error
    finally:
        if callable(before) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _without_note_of_level() -> Iterator[None]:
    """Suppress the line "log level is set" that Ray's C++ code writes to stderr; delays all other output.

    Ray writes it before it applies the level, so no setting prevents it.
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


def has_gpus() -> bool:
    """Whether the connected cluster has a GPU. Raises InputError if torch cannot use it."""
    are_there = living_resources().get("GPU", 0) >= 1
    if are_there:
        check_gpus()
    return are_there


def placed(
    processes: EmbedActors | Workers, spare_cpus: float = 0, spare_gpus: int = 0, use_gpus: bool = True
) -> tuple[int, bool]:
    """Number of workers or actors to start on the connected cluster, and whether each gets a GPU.

    On a cluster with GPUs each gets one, or its share. A number that nobody gave is lowered to what the cluster has
    room for, and a line says so. spare_cpus, spare_gpus: of a drill's shards; spare_gpus of them have one or a share,
    too. use_gpus: False for those that compute nothing that a GPU could.

    Raises:
        InputError: The cluster has too few CPUs or GPUs, and Ray would wait for them forever; or torch cannot use the
            GPUs, or FAISS those of the shards.
    """
    resources, number, cpus = living_resources(), number_of(processes), processes.cpus + processes.decode_cpus
    option, title, per_gpu = "--workers", "training worker", 1
    if isinstance(processes, EmbedActors):
        option, title, per_gpu = "--actors", "embedding actor", processes.per_gpu
    # All shares are equal, so that Ray leaves none that is too small.
    gpus, available = int(resources.get("GPU", 0)) * per_gpu, resources.get("CPU", 0)
    if spare_gpus and spare_gpus + use_gpus > gpus:
        there = f"{gpus}{' shares of a GPU' * (per_gpu > 1)}"
        left = f"leave none of {there} for {option}" if use_gpus else f"need more than the {there} there are"
        raise InputError(
            f"{spare_gpus} shards on GPUs {left}; lower --live.shards.number or "
            "--actors.gpus, or set --live.old-index.device and --live.new-index.device to cpu"
        )
    if spare_gpus or (gpus and use_gpus):
        check_gpus(with_faiss=spare_gpus > 0)
    gpus = gpus - spare_gpus if use_gpus else 0
    if processes.number is None:
        number = max(1, min(number, int((available - spare_cpus) / cpus + 1e-9), gpus or number))
    lent = f" and {number} x {processes.decode_cpus} that decode" if processes.decode_cpus else ""
    others = f" and the drill's shards ({spare_cpus:g})" if spare_cpus else ""
    needs = {"CPU": number * cpus + spare_cpus} | ({"GPU": -(-(number + spare_gpus) // per_gpu)} if gpus else {})
    lower = f"{option}.number or {option}.{'decode-cpus' if lent else 'cpus'}"
    check_room(f"{title}s ({number} x {processes.cpus:g} CPUs{lent}){others}", needs, f"lower {lower}")
    if number < number_of(processes):
        has = f"{available:g} CPUs" + (f" and {resources['GPU']:g} GPUs" if gpus else "")
        say(f"{number} {title} instead of {number_of(processes)}: the Ray cluster has {has}")
    return number, gpus > 0


def embedded_parts(
    embedder: type, job: Any, parts: list[dict[str, Any]], actors: EmbedActors, on_gpu: bool
) -> Iterator[dict[str, Any]]:
    """What ``embedder(job)`` returns for each part, as parts are finished, from actors of Ray Data, roughly in order.

    It returns an InputError as the text ``problem``: Ray Data would wrap it in a long traceback and lose its type.

    Raises:
        InputError: That of an actor.
    """
    import ray.data  # slow to import; replays do without

    ray.data.DataContext.get_current().enable_progress_bars = False
    finished = ray.data.from_items(parts, override_num_blocks=len(parts)).map(
        embedder,
        fn_constructor_kwargs={"job": job},
        compute=ray.data.ActorPoolStrategy(size=number_of(actors)),
        num_cpus=actors.cpus,
        num_gpus=actors.gpus if on_gpu else 0,
    )
    finished.set_name(job_name("embed"))
    for row in finished.iter_rows():
        if problem := row.pop("problem"):
            raise InputError(problem)
        yield row


def all_of(*checks: Callable[[], Any]) -> list[Any]:
    """What each of the checks returns. Raises one InputError that says what all of them say."""
    results, problems = list[Any](), list[str]()
    for check in checks:
        try:
            results.append(check())
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError("; ".join(problems))
    return results
