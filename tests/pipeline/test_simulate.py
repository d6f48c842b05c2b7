"""simulate behind a service's stages, from files to tables."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import ray_backfill as rb
from ray_backfill.compare.trec import write_lists
from ray_backfill.core.errors import InputError

WORDS = np.array(["wing", "shock", "flow", "heat", "plate", "jet", "wave", "cone", "layer", "drag", "lift", "tube"])
SERVICE = """
retrieve: 20
hybrid:
  list: bm25
  fusion: rrf
rerank:
  top: 10
  scores: scores.csv
"""


def folder_of(path: Path) -> Path:
    """Items and queries of 12 words; a text has three, and its vectors are noisy counts of them."""
    rng = np.random.default_rng(0)

    def split(n: int) -> dict[str, np.ndarray]:
        words = np.stack([rng.choice(12, 3, replace=False) for _ in range(n)])
        counts = np.zeros((n, 12))
        np.put_along_axis(counts, words, 1.0, axis=1)
        return {
            "id": np.array([f"{n}-{row}" for row in range(n)]),
            "text": np.array([" ".join(WORDS[row]) for row in words]),
            "label": words[:, 0],
            "old": counts + rng.normal(0, 1.0, counts.shape),
            "new": counts + rng.normal(0, 0.5, counts.shape),
        }

    gallery, queries = split(200), split(50)
    rb.write_folder(path, gallery, queries, train=split(300))
    pairs = pd.DataFrame([(f"50-{q}", f"200-{i}") for q in range(50) for i in range(200)], columns=["query", "item"])
    pairs["score"] = (queries["label"][:, None] == gallery["label"]).ravel() + 0.0
    pairs.to_csv(path.parent / "scores.csv", index=False)
    (path.parent / "service.yaml").write_text(SERVICE)
    return path


def test_a_comparison_behind_a_service(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data")
    how: dict[str, Any] = {
        "methods": ["rm_naive", "ridge_gallery"],
        "merges": ["raw", "rrf"],
        "metrics": ["nDCG@10", "CMC@1"],
    }
    plain = rb.simulate(folder, out=tmp_path / "plain", **how)
    behind = rb.simulate(folder, out=tmp_path / "behind", service=tmp_path / "service.yaml", **how)
    assert behind.manifest.settings["evaluation"]["service"]["hybrid"]["list"] == "bm25"
    one, other = (results.summary.set_index(["method", "merge", "metric"])["auc"] for results in (plain, behind))
    # The re-ranker knows all right answers: the first result is right if there is one among the first ten.
    assert other["rm_naive", "raw", "CMC@1"] > one["rm_naive", "raw", "CMC@1"] + 0.3
    assert behind.summary.loc[behind.summary["metric"] == "CMC@1", "auc"].max() < 1
    with pytest.raises(InputError, match="service"):
        write_lists(tmp_path / "behind" / "results", tmp_path / "run.trec", "ridge_gallery", "", "raw", "50%", 0)
    rb.export(tmp_path / "behind", tmp_path / "export", method="ridge_gallery", merge="raw")
    exported = json.loads((tmp_path / "export" / "service.json").read_text())
    assert exported["pipeline"]["rerank"]["top"] == 10
    again = rb.simulate(folder, out=tmp_path / "behind", service=tmp_path / "service.yaml", **how)
    pd.testing.assert_frame_equal(again.summary, behind.summary)


BAD = {
    "unknown key": ("retrieve: 10\nfuse: rrf", "fuse"),
    "no number": ("retrieve: ten", "retrieve"),
    "a fraction": ("retrieve: 10.5", "whole"),
    "nothing retrieved": ("retrieve: 0", "greater than 0"),
    "no list": ("hybrid: {fusion: rrf}", "list"),
    "no such file": ("hybrid: {list: run.trec}", "run.trec"),
    "unknown fusion": ("hybrid: {list: bm25, fusion: borda}", "borda"),
    "two collections": ("hybrid: {list: bm25, collections: two}", "one collection"),
    "one weight": ("hybrid: {list: bm25, weights: [1]}", "two numbers"),
    "negative weight": ("hybrid: {list: bm25, weights: [1, -1]}", "weights"),
    "a cut beyond the lists": ("retrieve: 10\ncut: 21", "21"),
    "a fused cut beyond the lists": ("retrieve: 10\nhybrid: {list: bm25, cut: 31}", "31"),
    "no texts": ("hybrid: {list: bm25, text: body}", "body"),
    "numbers for texts": ("hybrid: {list: bm25, text: label}", "label"),
    "model and scores": ("rerank: {top: 5, model: 'cross-encoder:x', scores: scores.csv}", "one of them"),
    "neither model nor scores": ("rerank: {top: 5}", "model"),
    "no top": ("rerank: {scores: scores.csv}", "top"),
    "more is re-ranked than kept": ("retrieve: 10\nrerank: {top: 11, scores: scores.csv}", "11"),
    "fewer results than the metric needs": ("retrieve: 5\ncut: 5", "nDCG@10"),
    "no YAML": ("retrieve: [", "YAML"),
    "a list": ("- retrieve", "keys and values"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_service_is_one_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data")
    content, named = BAD[case]
    (tmp_path / "service.yaml").write_text(content)
    with pytest.raises(InputError, match=named) as raised:
        rb.simulate(
            folder, out=tmp_path / "out", service=tmp_path / "service.yaml", methods=["rm_naive"], metrics=["nDCG@10"]
        )
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out" / "results").exists()


def test_what_a_service_cannot_have_is_left_out_or_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "data")
    (tmp_path / "minmax.yaml").write_text("hybrid: {list: bm25, fusion: minmax}")
    results = rb.simulate(
        folder, out=tmp_path / "out", service=tmp_path / "minmax.yaml", methods=["rm_naive", "cascade@100"],
        merges=["raw", "rrf"], metrics=["nDCG@10"],
    )  # fmt: skip
    assert {missing.name for missing in results.manifest.left_out} == {"cascade@100", "rrf"}
    for metrics, named in ((["mAP"], "mAP@100"), (["recall@101"], "101")):
        with pytest.raises(InputError, match=named):
            rb.simulate(
                folder, out=tmp_path / "other", service=tmp_path / "minmax.yaml", methods=["rm_naive"], metrics=metrics
            )
