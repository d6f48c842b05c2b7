"""Items in two splits: what is left out, what is said, and what is not mistaken for a copy."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.resolve import Comparison, resolve
from ray_backfill.data.folder import EmbeddingTable, read_folder
from ray_backfill.data.leakage import _hashes, leakage_notes, own_items
from ray_backfill.engine.systems import GroundTruth
from ray_backfill.learn.training.settings import FitSettings
from tests.bad_folder import write_split


def draw(items: int, seed: int) -> dict[str, Any]:
    """Columns of items with vectors of their own; the labels repeat, the ids begin at 0 in every split."""
    rng = np.random.default_rng(seed)
    return {
        "id": np.arange(items),
        "old": rng.normal(size=(items, 3)).astype(np.float32),
        "new": rng.normal(size=(items, 5)).astype(np.float16),
        "label": np.arange(items) % 4,
    }


def rows(columns: dict[str, Any], at: Any, **more: Any) -> dict[str, Any]:
    return {name: values[at] for name, values in columns.items()} | more


def both(*parts: dict[str, Any]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def write(folder: Path, **splits: dict[str, Any]) -> Path:
    for split, columns in splits.items():
        write_split(folder, split, columns)
    return folder


def comparison_of(folder: Path, *methods: str, merges: tuple[str, ...] = ("raw",)) -> Comparison:
    evaluation = Evaluation(methods=methods or ("rm_naive",), orders=("random",), merges=merges)
    return resolve(read_folder(folder), evaluation.named, FitSettings())


GALLERY, OTHERS = draw(40, 1), draw(12, 2)


def test_equal_ids_alone_mean_nothing(tmp_path: Path) -> None:
    write(tmp_path, gallery=GALLERY, queries=OTHERS, train=draw(40, 3))
    found = comparison_of(tmp_path, "fct")
    assert found.notes == ()
    assert not len(found.truth.ignored)


def test_a_query_of_the_gallery_does_not_find_itself(tmp_path: Path) -> None:
    queries = both(rows(GALLERY, [7, 3, 30]), OTHERS)
    queries["id"][3:] += 1000
    found = comparison_of(write(tmp_path, gallery=GALLERY, queries=queries))
    assert [found.truth.ignored_of(q).tolist() for q in range(4)] == [[7], [3], [30], []]
    assert 7 not in found.truth.positives_of(0)
    assert found.notes == (
        "3 of 15 queries are also in the gallery, with the same id and the same embeddings. Each of these items was "
        "left out of its own query's results, because a query finds itself first in any system.",
    )
    assert (
        comparison_of(write(tmp_path, queries=rows(GALLERY, slice(12)))).notes[0].startswith("All 12 queries are also")
    )


def test_text_ids_are_compared_too(tmp_path: Path) -> None:
    named = GALLERY | {"id": np.array([f"item {i}" for i in range(40)])}
    write(tmp_path, gallery=named, queries=rows(named, [5, 4]))
    assert [part.tolist() for part in own_items(read_folder(tmp_path))] == [[0, 1], [5, 4]]
    write(tmp_path, queries=rows(GALLERY, [5, 4], id=np.array([5, 4])))
    assert not len(own_items(read_folder(tmp_path))[0])


def test_a_query_whose_only_answer_is_itself_is_skipped(tmp_path: Path) -> None:
    alone = GALLERY | {"label": np.arange(40) // 2 * (np.arange(40) > 1) - (np.arange(40) == 1)}
    found = comparison_of(write(tmp_path, gallery=alone, queries=rows(alone, [0, 8])))
    assert found.truth.skipped.tolist() == [0]


def test_copies_with_other_ids_stay_and_are_counted(tmp_path: Path) -> None:
    queries = both(rows(GALLERY, [7]), OTHERS) | {"id": 1000 + np.arange(13)}
    found = comparison_of(write(tmp_path, gallery=GALLERY, queries=queries))
    assert not len(found.truth.ignored)
    assert found.notes == (
        "1 of 13 queries is equal to a gallery item of another id, in every embedding. A query finds its copy first in "
        "any system, so the figures are too high if these are the same items. Remove the copies from the gallery, or "
        "give an item the same id in both files: it is then left out of its own results.",
    )
    # The same old vector is no copy if the new one differs.
    queries["new"] = queries["new"] + np.float16(1)
    assert comparison_of(write(tmp_path, queries=queries)).notes == ()


def test_copies_that_cameras_leave_out_are_no_trouble(tmp_path: Path) -> None:
    gallery = GALLERY | {"camera": np.arange(40) // 20}
    queries = rows(gallery, [7, 28], id=np.array([1007, 1028]))
    assert comparison_of(write(tmp_path, gallery=gallery, queries=queries)).notes == ()
    queries["camera"] = np.array([0, 0])  # item 28 is of camera 1
    assert comparison_of(write(tmp_path, queries=queries)).notes[0].startswith("1 of 2 queries is equal to")


def test_train_items_that_are_evaluated_are_counted_if_anything_is_fitted(tmp_path: Path) -> None:
    train = both(rows(GALLERY, slice(30)), rows(OTHERS, slice(2)), draw(8, 5))
    train["id"] = np.arange(40) + 7000
    folder = write(tmp_path, gallery=GALLERY, queries=OTHERS | {"id": OTHERS["id"] + 1000}, train=train)
    assert comparison_of(folder).notes == ()
    for found in (comparison_of(folder, "procrustes_query"), comparison_of(folder, merges=("quantile",))):
        assert len(found.notes) == 1
        assert found.notes[0].startswith(
            "30 of 40 train items are also gallery items; 2 of 40 train items are also queries, with the same"
        )
    found = comparison_of(write(tmp_path, train=GALLERY), "fct")
    assert found.notes[0].startswith("All 40 train items are also gallery items, with the same")


def test_the_gallery_as_queries_is_compared_with_the_train_items_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, gallery=GALLERY, train=GALLERY)
    assert comparison_of(folder).notes == ()
    (note,) = comparison_of(folder, "fct").notes
    assert note.startswith("All 40 train items are also gallery items")


def test_validation_items_that_are_evaluated_are_counted_too(tmp_path: Path) -> None:
    write(tmp_path, gallery=GALLERY, queries=OTHERS, train=draw(40, 3), validation=GALLERY)
    (note,) = comparison_of(tmp_path, "fct").notes
    assert note.startswith("All 40 validation items are also gallery items")
    assert "Use validation items that are neither" in note
    assert comparison_of(tmp_path).notes == ()


def test_hashes_differ_where_rows_do() -> None:
    base = np.random.default_rng(0).normal(size=(1, 6)).astype(np.float32)
    changed = [base]
    for column in range(6):
        for bit in range(32):
            row = base.copy()
            row.view(np.uint32)[0, column] ^= np.uint32(1 << bit)
            if np.isfinite(row).all():
                changed.append(row)
    table = np.concatenate(changed)
    hashes = _hashes(EmbeddingTable(Path(), np.arange(len(table)), {"old": table}), ["old"])
    assert len(np.unique(hashes)) == len(table)
    half = EmbeddingTable(Path(), np.arange(2), {"old": np.array([[0.0, 1.5], [-0.0, 1.5]], np.float16)})
    assert len(np.unique(_hashes(half, ["old"]))) == 1


@pytest.mark.full
def test_a_large_gallery_is_compared_in_seconds() -> None:
    n, rng = 200_000, np.random.default_rng(0)
    vectors: dict[str, Any] = {m: rng.normal(size=(n, 128)).astype(np.float32) for m in ("old", "new")}
    gallery = EmbeddingTable(Path(), np.arange(n), vectors)
    queries = EmbeddingTable(Path(), np.arange(1000), {m: v[:1000] for m, v in vectors.items()})
    folder: Any = type("Folder", (), {"gallery": gallery, "queries": queries, "train": None, "path": Path()})()
    truth = GroundTruth.from_labels(np.zeros(1000, int), np.arange(n))
    started = time.process_time()
    notes = leakage_notes(folder, truth, is_fitted=False)
    assert time.process_time() - started < 10
    assert len(notes) == 2
