"""The forecast over Ray actors gives what one process gives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.resolve import resolve
from ray_backfill.core.errors import InputError
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import RetrievalSystem
from ray_backfill.forecast.estimate import area_weights
from ray_backfill.forecast.known_items import new_embeddings, with_stand_ins
from ray_backfill.forecast.methods import gallery_here
from ray_backfill.forecast.ray.shards import gallery_in_shards
from ray_backfill.forecast.run import forecast_methods
from ray_backfill.forecast.sample import closest_stand_ins, draw_sample, free_pairs, read_before_backfill
from ray_backfill.learn.models.apply import fit_stand_in, save_network
from ray_backfill.learn.papers.rank_merge import Heads
from ray_backfill.learn.training.settings import FitSettings
from tests.forecast.galleries import gallery

ITEMS = 4000


def write(path: Path) -> np.ndarray:
    """A folder whose gallery has old embeddings alone, in parts that no shard's edge meets; returns the new ones."""
    of, ids = gallery(ITEMS), np.arange(ITEMS)
    for part in range(3):
        rows = slice(part * 1500, (part + 1) * 1500)
        columns = {"id": ids[rows], "old": vector_column(of.old.gallery[rows])}
        write_parquet(path / "gallery.parquet" / f"part-{part}.parquet", pa.table(columns))
    queries = {"id": 9000 + np.arange(len(of.old.query)), "old": vector_column(of.old.query),
               "new": vector_column(of.new.query),
               "positives": [of.truth.positives_of(q).tolist() for q in range(len(of.old.query))]}  # fmt: skip
    write_parquet(path / "queries.parquet", pa.table(queries))
    train = {"id": 20_000 + np.arange(200), "old": vector_column(of.old.gallery[:200]),
             "new": vector_column(of.new.gallery[:200]), "label": np.arange(200) % 20}  # fmt: skip
    write_parquet(path / "train.parquet", pa.table(train))
    return of.new.gallery


@pytest.mark.parametrize(
    "merge", [*(pytest.param(name, marks=pytest.mark.heavy) for name in ("raw", "zscore")), "csls"]
)
def test_any_number_of_shards_gives_the_forecast_of_one_process(ray_session: None, tmp_path: Path, merge: str) -> None:
    torch.manual_seed(0)
    save_network(tmp_path / "rm", Heads(12, 24, learn_new=True).eval())
    new = write(tmp_path / "data")
    folder = read_before_backfill(tmp_path / "data")
    assert folder.queries is not None
    evaluation = Evaluation(
        ("rm_naive", "rm"), ("random", "class_mean_distance"), (merge,), metrics=("mAP", "recall@100"), points=4
    )
    truth = gallery(ITEMS).truth
    first = fit_stand_in(*free_pairs(folder), "cosine")(folder.gallery.old)
    close = closest_stand_ins(ProductForm.of(RetrievalSystem(folder.queries.new, first), "cosine"), truth)
    sample = draw_sample(truth, 400, close)
    items = new_embeddings(folder, sample, sample.position, new[sample.position], "cosine")
    comparison = resolve(with_stand_ins(folder, items), evaluation.named, FitSettings()).fitted({"rm": tmp_path / "rm"})
    here = forecast_methods(comparison, items, gallery_here(comparison))
    with gallery_in_shards(comparison, items, 2) as shards:
        there = forecast_methods(comparison, items, shards)
    assert {merged.method.name for merged in here} == {"new", "rm_naive", "rm"}
    for one, there_one in zip(here.values(), there.values(), strict=True):
        for order, by_metric in one.units.items():
            for metric, units in by_metric.items():
                other = there_one.units[order][metric]
                assert np.array_equal(units.start, other.start)
                # Products of different shapes are rounded differently, and an item may change its place.
                assert other.value == pytest.approx(units.value, abs=2e-3)
                a, b = (each.mean(area_weights(np.linspace(0, 1, 4))) for each in (units, other))
                assert b.value == pytest.approx(a.value, abs=1e-4)
                assert b.half_width() == pytest.approx(a.half_width(), rel=1e-2)


def test_more_shards_than_cpus_are_refused(ray_session: None, tmp_path: Path) -> None:
    new = write(tmp_path / "data")
    folder = read_before_backfill(tmp_path / "data")
    sample = draw_sample(gallery(ITEMS).truth, 300, lambda queries, taken_N: np.flatnonzero(~taken_N))
    items = new_embeddings(folder, sample, sample.position, new[sample.position], "cosine")
    evaluation = Evaluation(("rm_naive",), ("random",), metrics=("mAP",))
    comparison = resolve(with_stand_ins(folder, items), evaluation.named, FitSettings())
    with pytest.raises(InputError, match="lower --shards"), gallery_in_shards(comparison, items, 1000):
        pass
