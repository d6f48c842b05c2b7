"""The main job through `ray job submit` on a head of its own."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.core.stages import read_json
from tests.head import BIN, running_head
from tests.jobs.conftest import ROOT

Environment = dict[str, str]

# As typed in the documentation: the two commands of the mission.
MISSION = re.findall(
    r"^    ray job submit .* -- \\\n        (python jobs/\S+ --out) /shared/runs/demo$",
    (ROOT / "docs" / "cluster.md").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """The environment of a client of a head with two CPUs, protected by a token, where the default recipe is small."""
    small = {"RAY_BACKFILL_PLUGINS": "tests.jobs._small_landmarks", "PYTHONPATH": str(ROOT)}
    with running_head(tmp_path_factory.mktemp("head"), 2, True, **small) as head:
        yield head.environment | {"RAY_API_SERVER_ADDRESS": head.dashboard, "HEAD": head.address}


@pytest.fixture(scope="module")
def submitted(cluster: Environment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that both commands have made, one after the other."""
    out = tmp_path_factory.mktemp("run") / "demo"
    run_mission(cluster, out)
    return out


def submit(environment: dict[str, str], *entrypoint: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "ray"), "job", "submit", "--working-dir", str(ROOT), "--", *entrypoint]
    deadline = time.monotonic() + 180
    while True:
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, cwd=ROOT, timeout=900, check=False
        )
        # The dashboard answers some seconds before the agent that starts jobs is there.
        if "No available agent to submit job" not in result.stderr or time.monotonic() > deadline:
            return result
        time.sleep(1)


def run_mission(environment: Environment, out: Path) -> None:
    """Submit both commands of the mission with no option but --out."""
    assert [command.split()[1] for command in MISSION] == ["jobs/train_mcl.py", "jobs/simulate_gldv2.py"]
    fit, simulate = (command.split() for command in MISSION)
    fitted = submit(environment, *fit, str(out))
    assert fitted.returncode == 0, fitted.stdout[-3000:]
    assert " instead of 2" not in fitted.stdout
    assert read_json(out / "maps" / "mcl" / "manifest.json")["finished"]
    simulated = submit(environment, *simulate, str(out))
    assert simulated.returncode == 0, simulated.stdout[-3000:]
    assert "train old" not in simulated.stdout, "what the first job made is used"
    assert {"mcl", "rm"} < set(pd.read_parquet(out / "results" / "summary.parquet").method)


@pytest.mark.heavy
@pytest.mark.cluster
def test_both_commands_of_the_mission_need_no_option_on_two_cpus(submitted: Path) -> None:
    assert (submitted / "results" / "report.html").exists()


@pytest.mark.heavy
def test_they_need_none_for_the_recipe_as_it_is(tmp_path: Path) -> None:
    with running_head(tmp_path, 2) as head:
        run_mission(head.environment | {"RAY_API_SERVER_ADDRESS": head.dashboard}, tmp_path / "run")


_DRIVER = """
from ray_backfill.core.job import say_job
from ray_backfill.workers.session import session
import ray
say_job(command="fit", data="postgresql://me:tiger-of-siberia@host/db")
with session():
    print(ray.get_runtime_context().get_job_id())"""


@pytest.mark.heavy
@pytest.mark.cluster
def test_the_dashboard_names_what_has_run(submitted: Path, cluster: Environment) -> None:
    def shown(path: str) -> Any:
        token = (Path(cluster["HOME"]) / ".ray" / "auth_token").read_text().strip()
        address = f"{cluster['RAY_API_SERVER_ADDRESS']}/api/{path}"
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)

    trained = {run["name"]: run["status"] for run in shown("train/v2/runs/v1")["train_runs"]}
    assert trained == {"landmarks-train-old": "FINISHED", "landmarks-train-new": "FINISHED"}
    jobs = [job["job_id"] for job in shown("jobs/") if job["job_id"]]
    data = [of["dataset"] for job in jobs for of in shown(f"data/datasets/{job}")["datasets"]]
    assert data
    assert all(name.startswith("landmarks-embed_") for name in data)

    environment = cluster | {"RAY_ADDRESS": cluster["HEAD"]}
    done = subprocess.run(
        [sys.executable, "-c", _DRIVER], env=environment, capture_output=True, text=True, cwd=ROOT, check=True
    )
    (job,) = (job for job in shown("jobs/") if job["job_id"] == done.stdout.strip())
    assert job["metadata"] == {"command": "fit", "data": "postgresql://me@host/db"}


@pytest.mark.cluster
def test_a_submitted_job_compares_methods(cluster: Environment, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    new = rng.normal(size=(200, 12))
    rb.write_folder(tmp_path / "data", {"old": new[:, :8], "new": new, "label": np.arange(200) % 20})
    words = ["--data", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--methods", "rm_naive", "--points", "3"]
    submitted = submit(cluster, "python", "jobs/simulate.py", *words)
    assert submitted.returncode == 0, submitted.stdout[-3000:]
    assert "RM naive" in submitted.stdout
    assert (tmp_path / "run" / "results" / "report.html").exists()


@pytest.mark.cluster
def test_what_does_not_fit_is_refused_before_anything_is_trained(cluster: Environment, tmp_path: Path) -> None:
    asked = ["--workers.number", "3", "--actors.number", "4", "--shards", "5"]
    refused = submit(cluster, "python", "jobs/simulate_gldv2.py", "--out", str(tmp_path / "run"), *asked)
    assert refused.returncode == 1
    said = next(line for line in refused.stdout.splitlines() if line.startswith("error: "))
    for words in ("workers (3 x 1 CPUs) need 3", "actors (4 x 1 CPUs) need 4", "5 gallery shards need 5"):
        assert f"{words} CPUs, but the Ray cluster has 2; lower --" in said
    assert not (tmp_path / "run" / "backbones").exists()


@pytest.mark.cluster
def test_a_relative_folder_is_refused(cluster: Environment) -> None:
    relative = submit(cluster, "python", "jobs/simulate_gldv2.py", "--out", "runs/demo")
    assert relative.returncode == 1
    assert "error: --out runs/demo is relative; a submitted job needs an absolute path" in relative.stdout, (
        relative.stderr
    )


@pytest.mark.heavy
@pytest.mark.cluster
def test_a_submitted_drill_gives_what_was_replayed(submitted: Path, cluster: Environment) -> None:
    drill = submit(
        cluster, "python", "jobs/drill.py", "--out", str(submitted), "--points", "3",
        "--live.part-items", "10", "--live.quiet-s", "0", "--live.traffic.warm-up-s", "0",
    )  # fmt: skip
    assert drill.returncode == 0, drill.stdout[-3000:]
    assert drill.stdout.count("1 embedding actor instead of 2: the Ray cluster has 2 CPUs") == 1, (
        "shards have the other"
    )
    for words in ("t = 0.50: mAP@100", "Live quality equals the replayed curve at all 3 checkpoints", "report: "):
        assert words in drill.stdout, "progress and the end are in the job's log"
    quality = pd.read_parquet(submitted / "live" / "quality.parquet")
    assert (quality.live == quality.exact).all()
    curves = pd.read_parquet(submitted / "results" / "curves.parquet")
    curves = curves[(curves.method == "rm") & (curves.order == "classifier_score") & (curves["merge"] == "raw")]
    both = quality.merge(curves, on=["metric", "t"])
    assert len(both) == len(quality) == 6
    assert both.live.to_numpy() == pytest.approx(both.value.to_numpy(), abs=1e-9)
