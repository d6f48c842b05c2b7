"""The order lazy: what traffic retrieves is backfilled first."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ray_backfill as rb
from ray_backfill.comparison.orders import resolve_orders
from ray_backfill.comparison.traffic import SEEN, first_retrieved
from ray_backfill.errors import InputError
from ray_backfill.methods import find_methods
from ray_backfill.store import vector_column, write_parquet
from ray_backfill.training.settings import ClassificationSettings

N = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    gallery = {"id": np.arange(N), "old": rng.normal(size=(N, 8)), "new": rng.normal(size=(N, 8))}
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


def test_without_a_log_it_says_what_is_missing(folder: Path) -> None:
    methods, how = find_methods(("old", "new", "rm_naive")), ClassificationSettings()
    with pytest.raises(InputError, match=r"order 'lazy' needs log\.parquet in the folder"):
        resolve_orders(rb.read_folder(folder), ("lazy",), 0, "cosine", methods, how)
    write_log(folder, [1.0], dim=5)
    with pytest.raises(InputError, match=r"5 dimensions in .* and 8 in"):
        resolve_orders(rb.read_folder(folder), ("lazy",), 0, "cosine", methods, how)
    write_log(folder, [1.0, 2.0])
    order = resolve_orders(rb.read_folder(folder), ("lazy",), 0, "cosine", methods, how).of_gallery["lazy"]
    assert sorted(order.tolist()) == list(range(N))
