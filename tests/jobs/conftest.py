"""A job in a process of its own, and one finished run for all tests of this folder."""

import io
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TINY = shlex.split("""
    --images.image-size 16 --images.landmarks 8 --images.train-images 200 --images.gallery-images 60
    --images.queries 16 --old.training.epochs 1 --new.training.epochs 1 --old.training.batch 32
    --new.training.batch 32 --heads.epochs 2 --heads.items 4
    --transforms.epochs 2 --transforms.hidden 16 --transforms.batch 32
    --methods rm_naive rm fastfill procrustes_query --orders classifier_score sigma --merges raw quantile --points 3
""")


def run(job: str, *arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a job in a process of its own."""
    with start(job, *arguments, cwd=cwd, **environment) as process:
        out, err = process.communicate(timeout=900)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(job: str, *arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    """Start a job in a process of its own, with a session of its own."""
    command = [sys.executable, str(ROOT / "jobs" / job), *arguments]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") or k == "RAY_worker_niceness"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, cwd=cwd, env=kept | environment, start_new_session=True,
        # Shells let their background jobs ignore Ctrl-C, and what these start inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


def run_here(job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a job in this process, with its Ray: what starts no process of its own is quicker."""
    said, shown = io.StringIO(), io.StringIO()
    code = 0
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(said), redirect_stderr(shown):
        patched.setattr(sys, "argv", [f"jobs/{job}", *arguments])
        try:
            runpy.run_path(str(ROOT / "jobs" / job), run_name="__main__")
        except SystemExit as end:
            code = int(str(end.code or 0))
    return subprocess.CompletedProcess([job, *arguments], code, said.getvalue(), shown.getvalue())


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, ray_session: None) -> Path:
    """A tiny run of the main job, stage by stage, each by its own job."""
    out = tmp_path_factory.mktemp("run") / "demo"
    for job, more, said, progress in [
        ("train_backbone.py", ["--model", "old"], "backbones/old", ["train old backbone"]),
        ("embed_gallery.py", [], " images", ["train new backbone", "embed"]),
        ("train_mcl.py", [], "maps/rm", ["fit maps"]),
        ("simulate_gldv2.py", [], "full RM", ["fit maps", "replay", "intervals", "write report"]),
    ]:
        result = run_here(job, *more, "--out", str(out), *TINY)
        assert result.returncode == 0, result.stderr[-3000:]
        assert said in result.stdout
        # Heartbeats and long steps depend on how fast the machine is.
        ends = [line for line in result.stderr.splitlines() if not re.search(r"^[^:]*, | after |: running for", line)]
        assert [line.split(":")[0] for line in ends] == progress, f"a line for each stage alone:\n{result.stderr}"
    return out
