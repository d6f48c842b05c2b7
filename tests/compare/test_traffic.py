"""The order lazy: what traffic retrieves is backfilled first."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.orders import SEEN, first_retrieved, resolve_orders
from ray_backfill.core.errors import InputError
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.learn.training.settings import ClassificationSettings

N = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    old = rng.normal(size=(N, 8))
    gallery = {"id": np.arange(N), "old": old, "new": old + rng.normal(size=(N, 8))}
    rb.write_folder(tmp_path, gallery | {"label": np.arange(N) % 5})
    return tmp_path


def write_log(folder: Path, weights: list[float], dim: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(1).normal(size=(len(weights), dim)).astype(np.float32)
    columns = {"id": range(len(weights)), "old": vector_column(vectors), "weight": weights}
    write_parquet(folder / "log.parquet", pa.table(columns))
    return vectors


def seen_by(folder: Path, query: np.ndarray) -> list[int]:
    old = rb.read_folder(folder).gallery.old.astype(np.float64)
    cosine = (old / np.linalg.norm(old, axis=1, keepdims=True)) @ (query / np.linalg.norm(query))
    return np.argsort(-cosine, kind="stable")[:SEEN].tolist()


def test_what_frequent_queries_find_comes_first(folder: Path) -> None:
    queries = write_log(folder, [1e9, 1e-9, 1e-9])
    place = first_retrieved(rb.read_folder(folder), "cosine", 0)
    assert place is not None
    order = np.argsort(place).tolist()
    assert order[:SEEN] == seen_by(folder, queries[0]), "by their ranks"
    assert sorted(order) == list(range(N))


def test_what_nobody_finds_comes_last_and_at_random(folder: Path) -> None:
    queries = write_log(folder, [1.0] * 12)
    seen = {item for query in queries for item in seen_by(folder, query)}
    orders = [np.argsort(first_retrieved(rb.read_folder(folder), "cosine", seed)).tolist() for seed in range(3)]  # type: ignore[arg-type]
    for order in orders:
        assert set(order[: len(seen)]) == seen
    assert orders[0][len(seen) :] != orders[1][len(seen) :]


def test_under_a_filter_traffic_finds_only_its_own_part(folder: Path) -> None:
    write_log(folder, [1.0] * 12)
    for name, rows in (("gallery", N), ("log", 12)):
        file = folder / f"{name}.parquet"
        table = pq.read_table(file)
        # Part 2 has three items only.
        parts = np.where(np.arange(rows) < 3, 2, np.arange(rows) % 2) if name == "gallery" else np.arange(rows) % 3
        pq.write_table(table.append_column("tenant", pa.array(parts)), file)
    place = first_retrieved(rb.read_folder(folder), "cosine", 0, "tenant")
    assert place is not None
    old = rb.read_folder(folder).gallery.old.astype(np.float64)
    old /= np.linalg.norm(old, axis=1, keepdims=True)
    queries, tenants = write_log(folder, [1.0] * 12), np.where(np.arange(N) < 3, 2, np.arange(N) % 2)
    seen = set()
    for row, query in enumerate(queries):
        own = np.flatnonzero(tenants == row % 3)
        seen |= set(own[np.argsort(-(old[own] @ query), kind="stable")[:SEEN]].tolist())
    assert set(np.argsort(place)[: len(seen)].tolist()) == seen
    with pytest.raises(InputError, match=r"log.parquet has no column 'tenant'"):
        first_retrieved(rb.read_folder(folder), "cosine", 0, "tenant")


def test_without_a_log_it_says_what_is_missing(folder: Path) -> None:
    named, how = Evaluation(methods=("rm_naive",), orders=("lazy",)).named, ClassificationSettings()
    with pytest.raises(InputError, match=r"order 'lazy' needs log\.parquet in the folder"):
        resolve_orders(rb.read_folder(folder), named, how)
    write_log(folder, [1.0], dim=5)
    with pytest.raises(InputError, match=r"5 dimensions in .* and 8 in"):
        resolve_orders(rb.read_folder(folder), named, how)
    write_log(folder, [1.0, 2.0])
    order = resolve_orders(rb.read_folder(folder), named, how).of_gallery["lazy"]
    assert sorted(order.tolist()) == list(range(N))
