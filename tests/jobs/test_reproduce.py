"""A part of `make reproduce`: one seed and few methods on real images. Left out where the images are not there."""

from pathlib import Path

import pandas as pd
import pytest

from tests.jobs.conftest import ROOT, run

DATA = ROOT.parent / "shared" / "data"


@pytest.mark.skipif(not (DATA / "omniglot_small1.zip").exists(), reason="the Omniglot files are not here")
def test_a_part_of_the_reproduction(tmp_path: Path) -> None:
    result = run(
        "reproduce.py", "--recipe", "omniglot", "--data-root", str(DATA), "--seeds", "0", "--no-ablation",
        "--methods", "rm_naive", "procrustes_query", "least_squares_gallery", "fastfill", "rm",
        "--out", str(tmp_path / "runs"), "--page", str(tmp_path / "page.md"),
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    summary = pd.read_parquet(tmp_path / "runs" / "seed-0" / "results" / "summary.parquet")
    rows = summary[(summary.metric == "mAP") & (summary.order == "classifier_score")].set_index("method")
    assert rows.gain["rm"] > 0.9
    assert rows.monotone["rm"]
    assert rows.ends_at_new["rm"]
    assert rows.auc["old"] < rows.auc["rm_naive"] < rows.auc["procrustes_query"] < rows.auc["least_squares_gallery"]
    assert rows.auc["least_squares_gallery"] < rows.auc["fastfill"] < rows.auc["rm"]
    merged = pd.read_parquet(tmp_path / "runs" / "seed-0" / "results_merges" / "summary.parquet")
    naive = merged[(merged.metric == "mAP") & (merged.method == "rm_naive")].set_index("merge")
    assert naive.auc["rrf"] < naive.auc["raw"] < naive.auc["quantile"] < naive.auc["csls"]
    page = (tmp_path / "page.md").read_text()
    assert (tmp_path / "page.png").exists()
    for words in ("| Full RM is better than RM naive |", "## Beside the papers' tables", "## Merges", "## Costs"):
        assert words in page
