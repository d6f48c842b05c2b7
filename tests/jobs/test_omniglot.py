"""The main job on real images shows what docs/results/omniglot.md says. Left out where the images are not there."""

from pathlib import Path

import pandas as pd
import pytest

from tests.jobs.conftest import ROOT, run

DATA = ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not (DATA / "omniglot_small1.zip").exists(), reason="the Omniglot files are not here")
def test_full_rm_on_real_images(tmp_path: Path) -> None:
    methods = ("--methods", "rm_naive", "rm")  # the others take another minute
    images = ("--recipe", "omniglot", "--data-root", str(DATA))
    result = run("simulate.py", *images, *methods, "--out", str(tmp_path / "run"))
    assert result.returncode == 0, result.stderr[-3000:]
    summary = pd.read_parquet(tmp_path / "run" / "results" / "summary.parquet")
    rows = summary[summary.metric == "mAP"].set_index("method")
    assert rows.gain["rm"] > 0.9
    assert rows.monotone["rm"]
    assert rows.ends_at_new["rm"]
    assert rows.auc["old"] < rows.auc["rm_naive"] < rows.auc["new"]
    assert rows.auc["rm"] >= 0.605, "a few lines of code reached this (docs/results/omniglot.md)"
