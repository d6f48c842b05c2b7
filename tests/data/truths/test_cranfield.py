"""The example of text, as its first lines tell, against ir_measures. Left out where the collection is not at hand."""

import re
import runpy
import shlex
import sys
from pathlib import Path

import ir_measures
import numpy as np
import pandas as pd
import pytest
from ir_measures import AP, RR, R, nDCG

import ray_backfill as rb
from ray_backfill.cli.main import main
from ray_backfill.data.truth import find_truth
from ray_backfill.engine.replay import replay
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair

ROOT = Path(__file__).parents[3]
REAL = ROOT.parent / "shared" / "data" / "cranfield"
EXAMPLE = ROOT / "examples" / "text" / "cranfield.py"
METRICS = {"nDCG@10": nDCG @ 10, "recall@100": R @ 100, "MRR@10": RR @ 10, "mAP": AP}

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not REAL.is_dir(), reason="the Cranfield collection is not on this machine"),
]


def run_example(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the commands of the docstring in this process, with two methods instead of all."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(REAL)])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    text = re.sub(r" \\\\\n\s+", " ", EXAMPLE.read_text(encoding="utf-8"))
    commands = re.findall(r"^    (ray-backfill .*)$", text, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        monkeypatch.setattr(sys, "argv", shlex.split(command.replace("two_models", "old new rm_naive")))
        main()


def as_vectors(array: np.ndarray) -> np.ndarray:
    return (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float64)


def test_metrics_are_those_of_ir_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_example(tmp_path, monkeypatch)
    data = rb.read_folder(tmp_path / "runs/text/data")
    queries = data.queries
    assert queries is not None
    assert len(data.gallery) == 1398, "two abstracts have no word that the old model knows"
    scores = {
        model: as_vectors(queries.vectors[model]) @ as_vectors(data.gallery.vectors[model]).T
        for model in ("old", "new")
    }
    ids = [str(number) for number in data.gallery.id]
    qrels = [q for q in ir_measures.read_trec_qrels(str(tmp_path / "runs/text/qrels.txt")) if q.doc_id in set(ids)]

    def wanted(scores: np.ndarray) -> list[float]:
        run = [
            ir_measures.ScoredDoc(str(query), item, score)
            for query, row in zip(queries.id, scores, strict=True)
            for item, score in zip(ids, row.tolist(), strict=True)
        ]
        found = ir_measures.calc_aggregate(list(METRICS.values()), qrels, run)
        return [found[metric] for metric in METRICS.values()]

    curves = pd.read_parquet(tmp_path / "runs/text/run/results/curves.parquet")
    for method in ("old", "new"):
        for name, value in zip(METRICS, wanted(scores[method]), strict=True):
            found = curves[(curves.method == method) & (curves.metric == name)].value
            assert len(found) == (11 if name != "mAP" else 0)
            np.testing.assert_allclose(found, value, rtol=1e-6)

    half = np.random.default_rng(0).permutation(len(ids))
    systems = {m: RetrievalSystem(queries.vectors[m], data.gallery.vectors[m]) for m in ("old", "new")}
    truth = find_truth(data, ("qrels", str(tmp_path / "runs/text/qrels.txt"))).ground
    curve = replay(UpgradePair(systems["old"], systems["new"]), truth, half, 3, list(METRICS))
    merged = scores["old"].copy()
    done = half[: len(ids) // 2]
    merged[:, done] = scores["new"][:, done]
    np.testing.assert_allclose([curve.values(name)[1] for name in METRICS], wanted(merged), rtol=1e-6)
