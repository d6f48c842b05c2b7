"""The main job through `ray job submit` on a head of its own."""

import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.head import BIN, running_head
from tests.jobs.conftest import ROOT, TINY


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a client of a running head, protected by a token."""
    with running_head(tmp_path) as head:
        yield head.environment | {"RAY_API_SERVER_ADDRESS": head.dashboard}


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


def test_a_submitted_drill_gives_what_was_replayed(finished: Path, cluster: dict[str, str], tmp_path: Path) -> None:
    relative = submit(cluster, "python", "jobs/simulate_gldv2.py", "--out", "runs/demo")
    assert relative.returncode == 1
    assert "error: --out runs/demo is relative; a submitted job needs an absolute path" in relative.stdout, (
        relative.stderr
    )

    # Backbones are there; the rest of the chain is made on the cluster.
    out = tmp_path / "submitted"
    shutil.copytree(finished / "backbones", out / "backbones")
    drill = submit(
        cluster, "python", "jobs/drill.py", "--out", str(out), *TINY,
        "--actors.cpus", "0.5", "--live.part-items", "10", "--live.quiet-s", "0", "--live.traffic.warm-up-s", "0",
    )  # fmt: skip
    assert drill.returncode == 0, drill.stdout[-3000:]
    for words in ("t = 0.50: mAP@100", "Live quality equals the replayed curve at all 3 checkpoints", "report: "):
        assert words in drill.stdout, "progress and the end are in the job's log"
    quality = pd.read_parquet(out / "live" / "quality.parquet")
    assert (quality.live == quality.exact).all()
    curves = pd.read_parquet(finished / "results" / "curves.parquet")
    curves = curves[(curves.method == "rm") & (curves.order == "classifier_score") & (curves["merge"] == "raw")]
    both = quality.merge(curves, on=["metric", "t"])
    assert len(both) == len(quality) == 6
    assert both.live.to_numpy() == pytest.approx(both.value.to_numpy(), abs=1e-9)
