"""What ends a run while Ray works: a server of Ray that dies, and SIGTERM. One line, and nothing is left."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ray_backfill.cli import LINE
from ray_backfill.core.errors import InputError
from ray_backfill.workers.settings import ReplayPlace, local_cpus
from ray_backfill.workers.watchdog import _without_rays_threads
from tests.head import kill_servers, running_head

# A run that waits for Ray in its main thread.
WAITING = """
import ray, threading, time
from ray_backfill.cli import interruptible, run_job
from ray_backfill.workers.session import session

@ray.remote
def wait():
    time.sleep(100)

def main():
    with interruptible(), session():
        servers = ray._private.worker._global_node.all_processes
        threading.Thread(target=int, args=("what Ray's own threads raise",), name="ray_listens").start()
        print(*(servers[name][0].process.pid for name in ("gcs_server", "raylet")), flush=True)
        ray.get(wait.remote())

run_job(main)
"""


def processes_of(session: int) -> list[str]:
    """Command lines of the processes in this session that are alive."""
    listed = subprocess.run(["ps", "-eo", "sid,stat,args"], capture_output=True, text=True, check=True).stdout
    found = (line.split(None, 2) for line in listed.splitlines())
    return [args for sid, stat, args in found if sid == str(session) and not stat.startswith("Z")]


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("victim", "number", "code", "last"),
    [
        (
            "gcs_server", signal.SIGKILL, 1,
            r"error: Ray's gcs_server died \(process \d+, signal SIGKILL, perhaps for lack of memory\), so the run "
            r"cannot go on; Ray's logs are in /\S+/logs; the same command continues where it was",
        ),
        pytest.param("driver", signal.SIGTERM, 143, LINE, marks=pytest.mark.heavy),
    ],
)  # fmt: skip
def test_the_end_is_one_line(victim: str, number: int, code: int, last: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(
        [sys.executable, "-c", WAITING], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as driver:  # fmt: skip
        assert driver.stdout is not None
        gcs_server, _ = map(int, driver.stdout.readline().split())
        began = time.monotonic()
        os.kill(gcs_server if victim == "gcs_server" else driver.pid, number)
        _, said = driver.communicate(timeout=60)
        took_s = time.monotonic() - began
    assert driver.returncode == code
    lines = [line for line in said.splitlines() if not line.startswith("start Ray: ")]
    assert len(lines) == 1
    assert re.fullmatch(last, lines[0])
    assert took_s < 40, "Ray itself would wait for a minute"
    deadline = time.monotonic() + 20
    while (left := processes_of(driver.pid)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left


# The same on a cluster, which may be silent for two seconds.
ON_A_CLUSTER = """
import ray, time
from ray_backfill.cli import interruptible, run_job
from ray_backfill.workers import watchdog
from ray_backfill.workers.session import session
watchdog._SILENT_S = watchdog._GONE_S = 2.0

@ray.remote
def wait():
    time.sleep(100)

def main():
    with interruptible(), session():
        print("connected", flush=True)
        ray.get(wait.remote())

run_job(main)
"""


@pytest.mark.heavy
@pytest.mark.cluster
@pytest.mark.parametrize(
    ("victim", "said"), [("gcs_server", "head of the Ray cluster"), ("raylet", "Ray of this node")]
)
def test_servers_of_a_cluster_that_die_end_the_command(tmp_path: Path, victim: str, said: str) -> None:
    with running_head(tmp_path, 1, has_dashboard=False) as head:
        environment = head.environment | {"RAY_ADDRESS": head.address}
        # As Ray's C++ code ends a driver that calls the dead server of its node.
        silent = ON_A_CLUSTER.replace("ray.get(wait.remote())", "import os; os._exit(1)")
        ended = subprocess.run([sys.executable, "-c", silent], env=environment, capture_output=True, text=True)
        (line,) = ended.stderr.splitlines()[-1:]
        assert line.startswith("error: this process was killed, or the Ray of this node died; start Ray again, and ")
        pipe = subprocess.PIPE
        with subprocess.Popen(
            [sys.executable, "-c", ON_A_CLUSTER], env=environment, stdout=pipe, stderr=pipe, text=True
        ) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "connected\n"
            time.sleep(4)  # it goes on for longer than it may be silent
            assert driver.poll() is None
            kill_servers(head.temp_dir, victim)
            _, err = driver.communicate(timeout=50)  # Ray itself would wait for a minute
    assert driver.returncode == 1
    (line,) = (line for line in err.splitlines() if not line.startswith("start Ray: "))
    assert re.fullmatch(
        rf"error: the {said} \([\d.]+:\d+\) has not answered for 2 s; start Ray again, and the same command continues "
        "where it was",
        line,
    )


def test_exceptions_of_other_threads_are_still_told() -> None:
    told: list[str] = []
    hook = _without_rays_threads(lambda raised: told.append(str(raised.exc_value)))
    for name in ("ray_print_logs", "StreamingExecutor-dataset_1_0", "sender"):
        error = ValueError(name)
        thread = threading.Thread(name=name)
        hook(threading.ExceptHookArgs((ValueError, error, None, thread)))
    assert told == ["sender"]


def test_too_many_shards_are_refused_before_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    ReplayPlace(local_cpus()).check_local()
    with pytest.raises(InputError, match=r"--shards 500 needs 500 CPUs, but a Ray on this machine has \d+; lower"):
        ReplayPlace(500).check_local()
    monkeypatch.setenv("RAY_ADDRESS", "a larger cluster")
    ReplayPlace(500).check_local()
