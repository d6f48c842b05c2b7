"""The jobs as a user types them: local, submitted to a cluster, run again, and run wrongly."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.stages import read_json

ROOT = Path(__file__).parents[2]
TINY = shlex.split("""
    --images.image-size 16 --images.landmarks 8 --images.train-images 200 --images.gallery-images 60
    --images.queries 16 --old.training.epochs 1 --new.training.epochs 1 --old.training.batch 32
    --new.training.batch 32 --heads.epochs 2 --heads.items 4 --methods rm_naive rqt rm --points 3
""")


def run(job: str, *arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a job in a process of its own."""
    command = [sys.executable, str(ROOT / "jobs" / job), *arguments]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=env, timeout=240, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of the main job."""
    out = tmp_path_factory.mktemp("run") / "demo"
    result = run("simulate_gldv2.py", "--out", str(out), *TINY)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "full RM" in result.stdout
    assert "report.html" in result.stdout.splitlines()[-1]
    for title in ("train old backbone", "train new backbone", "embed", "train heads", "replay"):
        assert title in result.stderr, "no progress was shown for this stage"
    return out


def test_the_main_job_leaves_the_promised_files(finished: Path) -> None:
    results = finished / "results"
    names = {path.name for path in results.iterdir()}
    assert names == {"curves.parquet", "summary.parquet", "curves.png", "report.html", "manifest.json"}
    manifest = read_json(results / "manifest.json")
    assert manifest["finished"]
    assert manifest["data"]["gallery_items"] == 60
    assert manifest["timings_s"].keys() == {"backbones/old", "backbones/new", "embeddings", "heads", "replay"}
    summary = pd.read_parquet(results / "summary.parquet")
    assert set(summary.method) == {"old", "new", "rm_naive", "rqt", "rm"}
    assert set(summary.metric) == {"mAP@100", "CMC@1"}


def test_the_same_command_reuses_and_other_settings_are_refused(finished: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    again = run("simulate.py", "--recipe", "landmarks", "--out", str(finished), *TINY)
    assert again.returncode == 0, again.stderr
    assert "train" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in times} == times
    other = run("simulate.py", "--out", str(finished), *TINY, "--old.training.lr", "0.5")
    assert other.returncode == 2
    assert other.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "training.lr: 0.1 there, 0.5 asked" in other.stderr


def test_the_embeddings_are_a_folder_that_anyone_could_bring(finished: Path, tmp_path: Path) -> None:
    """The same numbers come out of the chain and of its embeddings taken as a user's folder."""
    result = run(
        "simulate.py", "--data", str(finished / "embeddings"), "--out", str(tmp_path / "out"), "--methods", "rm_naive",
        "--orders", "classifier_score", "--metrics", "mAP@100", "CMC@1", "--points", "3",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    chain, mine = (pd.read_parquet(p / "results" / "curves.parquet") for p in (finished, tmp_path / "out"))
    pd.testing.assert_frame_equal(
        chain[chain.method == "rm_naive"].reset_index(drop=True), mine[mine.method == "rm_naive"].reset_index(drop=True)
    )


def test_each_stage_has_its_job(finished: Path) -> None:
    common = ("--out", str(finished), *TINY)
    for job, more, shown in [
        ("train_backbone.py", ("--model", "old"), "backbones/old"),
        ("embed_gallery.py", (), " images"),
        ("train_mcl.py", (), "heads/rm"),
    ]:
        result = run(job, *more, *common)
        assert result.returncode == 0, result.stderr
        assert "train" not in result.stderr
        assert shown in result.stdout
