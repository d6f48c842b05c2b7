"""The main job at full scale, by its command, with small numbers."""

import re
from pathlib import Path

import pandas as pd
import pytest

from ray_backfill.cli.commands.backfills import ScaleJob
from ray_backfill.core.stages import read_json
from tests.jobs.conftest import run_here

SMALL = [
    "--scale", "full", "--gallery.items", "900", "--gallery.queries", "30", "--gallery.classes", "90",
    "--gallery.known-classes", "20", "--gallery.train-items", "300", "--gallery.groups", "9",
    "--methods", "rm_naive", "least_squares_gallery", "--points", "3",
]  # fmt: skip


@pytest.mark.full
def test_a_drawn_gallery_ends_in_the_same_table_and_says_that_it_is_invented(tmp_path: Path) -> None:
    first = run_here("simulate_gldv2.py", *SMALL, "--out", str(tmp_path))
    assert first.returncode == 0, first.stderr
    for words in ("These embeddings are synthetic", "RM naive", "least squares, gallery", "report: "):
        assert words in first.stdout
    assert not re.search(r"[\r\x1b]", first.stdout + first.stderr)
    ends = [line for line in first.stderr.splitlines() if not re.search(r" after |: running for", line)]
    assert [line.split(":")[0] for line in ends if not line.startswith("read embeddings")] == (
        ["draw", "fit maps", "replay", "intervals", "write report"]
    )
    manifest = read_json(tmp_path / "results" / "manifest.json")
    assert manifest["data"]["gallery_items"] == 900
    assert manifest["data"]["is_synthetic"] is True
    assert manifest["data"]["name"] == "synthetic gallery"
    assert manifest["data"]["notes"][0].startswith("The embeddings are invented")
    assert manifest["data"]["synthetic"]["classes"] == 90
    assert manifest["timings_s"].keys() == {"embeddings", "maps", "replay"}
    summary = pd.read_parquet(tmp_path / "results" / "summary.parquet")
    assert set(summary.order) == {"random", "classifier_score", "class_mean_distance"}
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    again = run_here("simulate_gldv2.py", *SMALL, "--out", str(tmp_path))
    assert again.returncode == 0
    assert {path: path.stat().st_mtime_ns for path in times} == times
    other = run_here("simulate_gldv2.py", *SMALL, "--out", str(tmp_path), "--gallery.seed", "1")
    assert other.returncode == 2
    assert "seed: 0 there, 1 requested" in other.stderr


def test_by_default_every_method_without_training_takes_part() -> None:
    kinds = ("procrustes", "procrustes_centred", "relaxed", "least_squares", "ridge", "low_rank")
    adapters = [f"{kind}_{direction}" for kind in kinds for direction in ("gallery", "query")]
    job = ScaleJob(out=Path("runs/full"))
    others = [
        "old",
        "new",
        "offline",
        "rm_naive",
        "drift_procrustes",
        "drift_low_rank",
        "slerp",
        "qdc",
        "local_gallery",
        "common_prefix",
    ]
    assert sorted(job.evaluation.methods) == sorted([*others, *adapters])
    assert (job.gallery.items, job.gallery.queries, job.gallery.classes) == (761_757, 1_129, 81_313)
