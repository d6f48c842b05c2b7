"""Who is right for whom, of small folders whose answers can be counted by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import read_folder
from ray_backfill.data.truth import ground_truth
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.engine.replay import replay
from ray_backfill.engine.systems import GroundTruth, RetrievalSystem, UpgradePair


def write_split(path: Path, **columns: Any) -> None:
    rows = len(next(iter(columns.values())))
    # Equal vectors in a split, other ones in another: a query of the same id and vectors is a gallery item.
    same = vector_column(np.full((rows, 2), ord(path.name[0]), np.float32))
    write_parquet(path, pa.table({"id": np.arange(rows), "old": same, "new": same} | columns))


def truth_of(path: Path, refuse_unknown_ids: bool = True) -> GroundTruth:
    return ground_truth(read_folder(path), refuse_unknown_ids)


def answers(truth: GroundTruth) -> list[list[int]]:
    return [truth.positives_of(q).tolist() for q in range(truth.n_queries)]


def test_nobody_knows_the_class_of_label_minus_one(tmp_path: Path) -> None:
    write_split(tmp_path / "gallery.parquet", label=[-1, 4, -1, 4, 7])
    truth = truth_of(tmp_path)  # the gallery queries itself
    assert answers(truth) == [[], [3], [], [1], []]
    assert truth.skipped.tolist() == [0, 2, 4]
    write_split(tmp_path / "queries.parquet", label=[4, -1, 7])
    assert answers(truth_of(tmp_path)) == [[1, 3], [], [4]]


@pytest.mark.parametrize("queries", [{"label": [4, 9, -1]}, {"label": [4, 4, 4], "positives": [[1, 3], [], []]}])
def test_a_query_without_an_answer_is_skipped_and_counted(tmp_path: Path, queries: dict[str, Any]) -> None:
    write_split(tmp_path / "gallery.parquet", label=[-1, 4, -1, 4, 7])
    write_split(tmp_path / "queries.parquet", id=[100, 101, 102], **queries)
    truth = truth_of(tmp_path)
    assert answers(truth) == [[1, 3], [], []]
    assert truth.skipped.tolist() == [1, 2]


def test_unknown_queries_do_not_find_unknown_items(tmp_path: Path) -> None:
    write_split(tmp_path / "gallery.parquet", label=[4, -1, -1])
    write_split(tmp_path / "queries.parquet", label=[4, -1, -1])
    assert answers(truth_of(tmp_path)) == [[0], [], []]


def test_a_gallery_with_positives_does_not_find_itself(tmp_path: Path) -> None:
    write_split(tmp_path / "gallery.parquet", id=[10, 11, 12], positives=[[10, 11], [10, 11, 12], [12]])
    assert answers(truth_of(tmp_path)) == [[1], [0, 2], []]


def test_minus_one_as_a_name_is_a_name(tmp_path: Path) -> None:
    write_split(tmp_path / "gallery.parquet", label=["-1", "-1", "a"])
    assert answers(truth_of(tmp_path)) == [[1], [0], []]


def test_positives_that_were_broken_do_not_end_a_recipes_run(tmp_path: Path) -> None:
    write_split(tmp_path / "gallery.parquet", id=[0, 2, 5], label=[-1, -1, -1])
    positives = [[5, 1, 0], [4], [2]]
    write_split(tmp_path / "queries.parquet", label=[-1, -1, -1], positives=positives)
    truth = truth_of(tmp_path, refuse_unknown_ids=False)
    assert answers(truth) == [[0, 2], [], [1]]  # positions, not ids
    assert truth.skipped.tolist() == [1]


def test_weights_and_grades_come_from_the_queries(tmp_path: Path) -> None:
    write_split(tmp_path / "gallery.parquet", id=[10, 12, 15])
    columns = {"positives": [[15, 11, 10], [12], [12]], "grades": [[3, 9, 1], [2], [1]], "weight": [1, 2, 0.5]}
    write_split(tmp_path / "queries.parquet", **columns)
    truth = truth_of(tmp_path, refuse_unknown_ids=False)
    assert truth.grades is not None
    assert truth.weights is not None
    assert answers(truth) == [[0, 2], [1], [1]]
    assert (truth.grades.tolist(), truth.weights.tolist()) == ([1, 3, 2, 1], [1, 2, 0.5])
    write_split(tmp_path / "queries.parquet", **columns | {"grades": [[3, 9, 1], [2, 2], [1]]})
    with pytest.raises(InputError, match="column 'grades', row 1: as many numbers as the row has positives are needed"):
        truth_of(tmp_path, refuse_unknown_ids=False)


def test_junk_left_out_of_the_gallery_is_junk_ignored() -> None:
    """Market-1501's junk: without these images each query scores as with them, where every query ignores them."""
    rng = np.random.default_rng(8)
    identities, cameras = rng.integers(-1, 5, 60), rng.integers(0, 3, 60)
    query_ids, query_cameras = rng.integers(1, 5, 20), rng.integers(0, 3, 20)
    old, new = (RetrievalSystem(rng.normal(size=(20, 3)), rng.normal(size=(60, 3))) for _ in range(2))
    same_person_QN = query_ids[:, None] == identities
    same_camera_QN = query_cameras[:, None] == cameras
    with_junk = GroundTruth.from_positives(
        [np.flatnonzero(row) for row in same_person_QN & ~same_camera_QN],
        [np.flatnonzero(row) for row in same_person_QN & same_camera_QN | (identities == -1)],
        n_gallery=60,
    )
    kept = np.flatnonzero(identities != -1)
    without = GroundTruth.from_labels(
        query_ids, identities[kept], query_cameras=query_cameras, gallery_cameras=cameras[kept]
    )
    metrics = ("mAP", "mAP@5", "CMC@1")
    order = rng.permutation(60)
    pair = UpgradePair(old, new)
    all_60 = replay(pair, with_junk, order, 2, metrics, "l2")
    fewer = replay(pair.of_items(kept), without, rng.permutation(len(kept)), 2, metrics, "l2")
    assert 40 < len(kept) < 60
    for metric in metrics:
        np.testing.assert_array_equal(all_60.per_query[metric], fewer.per_query[metric])
    # With junk among the wrong answers the figures are others.
    counted = GroundTruth.from_labels(query_ids, identities, query_cameras=query_cameras, gallery_cameras=cameras)
    assert (replay(pair, counted, order, 2, metrics, "l2").values("mAP") < all_60.values("mAP")).all()
