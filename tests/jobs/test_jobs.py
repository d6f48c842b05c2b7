"""The jobs as a user types them: local, submitted to a cluster, run again, and run wrongly."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.core.stages import read_json
from tests.jobs.conftest import TINY, run, run_here, start


def test_the_main_job_leaves_the_promised_files(finished: Path) -> None:
    results = finished / "results"
    names = {path.name for path in results.glob("[!.]*")}
    names_of_tables = ("curves", "moments", "summary", "differences", "costs", "queries", "query_values")
    tables = {f"{name}.parquet" for name in (*names_of_tables, "flips", "shown")}
    assert names == tables | {"curves.png", "report.html", "manifest.json"}
    manifest = read_json(results / "manifest.json")
    assert manifest["finished"]
    assert manifest["data"]["gallery_items"] == 60
    assert manifest["timings_s"].keys() == {"backbones/old", "backbones/new", "embeddings", "maps", "replay"}
    summary = pd.read_parquet(results / "summary.parquet")
    # {rho, rho} stands beside new, because a method trains rho.
    assert set(summary.method) == {"old", "new", "rho_alone", "rm_naive", "rm", "fastfill", "procrustes_query"}
    assert set(summary.metric) == {"mAP@100", "CMC@1"}


def test_the_same_command_reuses_and_other_settings_are_refused(finished: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in finished.rglob("*.safetensors")}
    again = run_here("simulate.py", "--recipe", "landmarks", "--out", str(finished), *TINY)
    assert again.returncode == 0, again.stderr
    assert "train" not in again.stderr
    assert {path: path.stat().st_mtime_ns for path in times} == times
    other = run_here("simulate.py", "--out", str(finished), *TINY, "--old.training.lr", "0.5")
    assert other.returncode == 2
    assert other.stderr.strip().splitlines()[-1].startswith("error: ")
    assert "training.lr: 0.1 there, 0.5 requested" in other.stderr


def test_the_embeddings_are_a_folder_that_anyone_could_bring(finished: Path, tmp_path: Path) -> None:
    """The same numbers come out of the chain and of its embeddings taken as a user's folder."""
    result = run(
        "simulate.py", "--data", "embeddings", "--out", str(tmp_path / "out"),
        "--methods", "rm_naive", "procrustes_query", "--orders", "classifier_score",
        "--merges", "raw", "--metrics", "mAP@100", "CMC@1", "--points", "3", cwd=finished,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    chain, mine = (pd.read_parquet(p / "results" / "curves.parquet") for p in (finished, tmp_path / "out"))
    assert {"rm_naive", "procrustes_query"} < set(mine.method)
    chain = chain[chain.method.isin(mine.method) & (chain.order == "classifier_score") & (chain["merge"] == "raw")]
    pd.testing.assert_frame_equal(chain.reset_index(drop=True), mine)


@pytest.mark.heavy
def test_all_lines_are_ours_also_after_ctrl_c(finished: Path, tmp_path: Path) -> None:
    """Starts a Ray, streams through its actors, is stopped, and trains when it is started again."""
    shutil.copytree(finished / "backbones", tmp_path / "backbones")
    arguments = ("train_mcl.py", "--out", str(tmp_path), *TINY)
    ours = re.compile(r"(start Ray|stop Ray|embed|fit maps)(, [^:]+)?: (\d|done in |running for ).*")
    with start(*arguments) as job:
        assert job.stderr is not None
        lines = [next(line for line in job.stderr if line.startswith("embed:"))]
        os.killpg(job.pid, signal.SIGINT)  # as a terminal does
        *lines, last = [*lines, *job.stderr]
    assert job.returncode == 130
    assert last == "stopped; the same command continues where it was\n"
    assert all(ours.fullmatch(line.strip()) for line in lines), lines
    listed = subprocess.run(["ps", "-eo", "sid,stat,args"], capture_output=True, text=True, check=True).stdout
    running = (line.split(maxsplit=2) for line in listed.splitlines())
    # Z: a process that has ended; the process that adopted it has not collected its exit status yet.
    left = [args for sid, state, args in running if sid == str(job.pid) and not state.startswith("Z")]
    assert not left, "processes are left over"

    # Ray Data warns at once of actors that have not started, as after a minute on a busy machine.
    result = run(*arguments, RAY_DATA_STARVATION_WARNING_DELAY_S="0")
    assert result.returncode == 0, result.stderr
    assert all(ours.fullmatch(line) for line in result.stderr.splitlines()), result.stderr
    assert result.stderr.splitlines()[-1].startswith("fit maps: 3 methods in ")
    assert {line.split(":")[0] for line in result.stdout.splitlines()} == {"rm", "fastfill", "procrustes_query"}
