"""Another distribution adds a store and a way to know right answers, each in one file."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.data.folder import EmbeddingFolder, read_folder
from ray_backfill.data.importing import ColumnNames, import_split
from ray_backfill.data.sources import Source, SourceKind, batches_of
from ray_backfill.data.truth import Truth, TruthKind, TruthRequest, find_truth
from ray_backfill.engine.systems import GroundTruth

ROWS = [{"id": i, "old": [float(i), 1.0], "new": [1.0, float(i)]} for i in range(5)]


def open_memory(text: str) -> Source:
    kinds = {"id": pa.int64(), "old": pa.list_(pa.float32()), "new": pa.list_(pa.float32())}

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        return batches_of(ROWS[skip:], {name: kinds[name] for name in names}, lambda row, name: row[name])

    return Source(text, kinds, len(ROWS), read, "5 rows")


def next_one(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """The item that follows is right."""
    n = len(folder.gallery)
    right, itself = [[(query + request.k) % n] for query in range(n)], [[query] for query in range(n)]
    return Truth(GroundTruth.from_positives(right, itself, n_gallery=n))


@pytest.fixture(autouse=True)
def theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(
        SOURCES=(SourceKind("memory", "memory:NAME", lambda text: text.startswith("memory:"), open_memory),),
        TRUTHS=(TruthKind("nextK", "", "The item K places on is right.", next_one),),
    )
    monkeypatch.setattr("ray_backfill.core.plugins._modules_from_outside", lambda: (module,))


def test_their_store_is_imported_and_their_truth_is_found(tmp_path: Path) -> None:
    path = import_split(tmp_path / "gallery.parquet", ["memory:items"], ColumnNames(), False, False)
    folder = read_folder(path.parent)
    np.testing.assert_array_equal(folder.gallery.old, [row["old"] for row in ROWS])
    truth = find_truth(folder, ("next2",))
    assert truth.ground.positives.tolist() == [2, 3, 4, 0, 1]
    assert truth.facts == {"truth": {"name": "next2", "is_retention": False}}
