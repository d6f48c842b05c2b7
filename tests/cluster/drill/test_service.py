"""Live drills behind a service's stages: live equals the replay, and what cannot be live is refused."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.data.folder import read_folder
from ray_backfill.drill.plan import read_plan
from ray_backfill.engine.replay import Served
from ray_backfill.pipeline.lexical import bm25_lists
from ray_backfill.pipeline.lists import Fusion, Stages
from ray_backfill.pipeline.replay import replay_service
from ray_backfill.pipeline.rerank import PairScores
from ray_backfill.pipeline.service import Service
from tests.cluster.drill._drill import EVALUATION, ITEMS, run, write_folder
from tests.pipeline import _rerankers

pytestmark = pytest.mark.usefixtures("ray_session")

SERVICE = """
retrieve: 20
cut: 15
hybrid: {list: bm25, fusion: relativeScoreFusion, retrieve: 10}
rerank: {top: 8, model: "python:tests.pipeline._rerankers:score"}
"""
WORDS = np.array(["wing", "shock", "flow", "heat", "plate", "jet", "wave", "cone", "layer", "drag", "lift", "tube"])


@pytest.mark.heavy
def test_a_hybrid_with_a_reranker_is_that_of_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each item of the gallery is a query, and ignores itself."""
    data, rng = write_folder(tmp_path / "data"), np.random.default_rng(1)
    (data / "queries.parquet").unlink()
    table = pq.read_table(data / "gallery.parquet")
    texts = [" ".join([WORDS[label % 12], *rng.choice(WORDS, 3)]) for label in table["label"].to_pylist()]
    pq.write_table(table.append_column("text", [texts]), data / "gallery.parquet")
    (tmp_path / "service.yaml").write_text(SERVICE)
    evaluation = replace(EVALUATION, metrics=("nDCG@10", "CMC@1", "recall@15"), service=tmp_path / "service.yaml")
    drill = run(data, tmp_path / "out", monkeypatch, evaluation=evaluation)

    folder = read_folder(data)
    old, new, label = folder.gallery.old, folder.gallery.new, folder.gallery.label
    assert label is not None
    truth = rb.GroundTruth.from_labels(label, label, exclude_self=True)
    query, item = np.divmod(np.arange(ITEMS**2), ITEMS)
    relevance = _rerankers.score([texts[row] for row in query], [texts[row] for row in item])
    fusion = Fusion("relativeScoreFusion", 60, (0.75, 0.25), False, 10, 15)
    service = Service(
        Stages(20, 15, fusion, 8), bm25_lists(folder, "text", 10, truth), PairScores(query, item, np.array(relevance))
    )
    systems = [rb.RetrievalSystem(of, of) for of in (old, new)]
    served = Served(0, 1, {"": read_plan(drill.folder / "plan").order})
    how = evaluation.points, evaluation.metrics, "cosine"
    ((curves,),) = replay_service(systems, [served], truth, *how, service)
    ((unranked,),) = replay_service(systems, [served], truth, *how, replace(service, stages=Stages(20, 15)))
    quality, replayed = drill.table("quality"), drill.table("replayed").query("serving == 'backfill'")
    assert len(quality) == len(replayed) == evaluation.points * 3
    for moment, metric, live, exact in quality[["moment", "metric", "live", "exact"]].itertuples(index=False):
        values = curves[""].per_query[str(metric)][:, int(str(moment))]
        assert live == exact == math.fsum(values) / len(values)
    assert (curves[""].values("nDCG@10") != unranked[""].values("nDCG@10")).all(), "text and re-ranker count"
    checkpoints = drill.table("checkpoints")
    assert (checkpoints[["old_recall", "new_recall"]].stack().dropna() == 1).all()
    assert checkpoints[["unanswered", "violations"]].to_numpy().sum() == 0
