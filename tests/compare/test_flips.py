"""Which queries lose or win their first result, and to which item: against a full sort, with many ties."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.replay import Curves, find_flips, replay_here
from ray_backfill.compare.resolve import Comparison
from ray_backfill.compare.write import Facts, write_results
from ray_backfill.data.write import vector_column
from ray_backfill.engine.lists import RankedLists
from ray_backfill.engine.replay import Served
from ray_backfill.engine.systems import GroundTruth
from tests.compare.folder import resolved, write_split

EVALUATION = Evaluation(
    methods=("old", "new", "offline", "rm_naive"), orders=("random", "classifier_score"), metrics=("mAP",),
    distance="l2",
)  # fmt: skip
GALLERY, QUERIES = 60, 120


def grid(rows: int, d: int, seed: int) -> np.ndarray:
    """Small whole numbers: nearly every distance occurs several times."""
    return np.random.default_rng(seed).integers(0, 3, (rows, d)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Queries find items of the same class that share no coordinates with them: first results change often."""
    data = tmp_path / "data"
    for name, rows, first_id in (("gallery", GALLERY, 0), ("queries", QUERIES, 1000)):
        models = {model: vector_column(grid(rows, 3, first_id + seed)) for seed, model in enumerate(("old", "new"))}
        more = {"old_score": np.linspace(1, 0, rows)} if name == "gallery" else {}
        write_split(data / f"{name}.parquet", rows, first_id, **models, **more)
    return data


def compared(folder: Path, evaluation: Evaluation = EVALUATION) -> tuple[Comparison, Curves]:
    found = resolved(folder, evaluation).fitted({})
    return found, replay_here(found)


def first_items(comparison: Comparison, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Q, J) the first item and whether it is new, by a sort of all items at every moment, in whole numbers."""
    folder, moments = comparison.folder, comparison.evaluation.moments
    assert folder.queries is not None
    distances = {
        model: ((folder.queries.vectors[model][:, None] - folder.gallery.vectors[model]) ** 2).sum(axis=2).astype(int)
        for model in ("old", "new")
    }
    first = np.empty((QUERIES, moments), int)
    is_new = np.empty((QUERIES, moments), bool)
    for j in range(moments):
        done = np.zeros(GALLERY, bool)
        done[order[: j * GALLERY // (moments - 1)]] = True
        merged = np.where(done, distances["new"], distances["old"])
        first[:, j] = np.argsort(merged, axis=1, kind="stable")[:, 0]
        is_new[:, j] = done[first[:, j]]
    return first, is_new


def test_every_change_is_a_row_with_both_items(folder: Path, tmp_path: Path) -> None:
    comparison, curves = compared(folder)
    out = write_results(comparison, tmp_path / "out", Facts("test"), replayed=lambda _: curves)
    table = pd.read_parquet(out / "flips.parquet")
    assert set(table.method) == {"rm_naive"}
    assert comparison.folder.queries is not None
    right_label = comparison.folder.queries.label[:, None] == comparison.folder.gallery.label  # type: ignore[index]
    (method,) = (m for m in comparison.methods if m.name == "rm_naive")
    for order, permutation in comparison.orders_of(method).items():
        first, is_new = first_items(comparison, permutation)
        right = np.take_along_axis(right_label, first, axis=1)
        expected = [
            (str(1000 + q), (j + 1) / 100, "won" if right[q, j + 1] else "lost", str(first[q, j + 1]),
             "forward" if is_new[q, j + 1] else "backward", str(first[q, j]), "forward" if is_new[q, j] else "backward")
            for q, j in zip(*np.nonzero(right[:, 1:] != right[:, :-1]), strict=True)
        ]  # fmt: skip
        own = table[table.order == order]
        found = own[["query", "t", "kind", "first", "first_system", "before", "before_system"]]
        assert len(expected) > 20
        assert {row[2] for row in expected} == {"won", "lost"}
        assert [(*row[:1], round(row[1], 9), *row[2:]) for row in found.itertuples(index=False)] == expected


def test_of_several_permutations_the_first_is_told_and_of_merges_only_raw(folder: Path) -> None:
    evaluation = replace(EVALUATION, orders=("random",), merges=("raw", "rrf"))
    _, one = compared(folder, evaluation)
    _, several = compared(folder, replace(evaluation, permutations=3))
    key = "rm_naive", "random", "raw"
    assert {other for other, found in several.items() if found.flips is not None} == {key}
    first, again = one[key].flips, several[key].flips
    assert first is not None
    assert again is not None
    assert len(first.query) > 20
    for name in ("query", "moment", "is_lost"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    for mine, right in zip((*again.after, *again.before), (*first.after, *first.before), strict=True):
        np.testing.assert_array_equal(mine, right)


TRUTH = GroundTruth.from_positives([[0]] * 7, n_gallery=4)


def test_a_search_that_contradicts_the_replay_is_an_error() -> None:
    def wrong(served: Served, queries: np.ndarray) -> dict[str, RankedLists]:
        always_right = np.zeros((len(queries), 3, 1), np.int64)
        return {"random": RankedLists.nothing(len(queries), 3, 1)._replace(item=always_right)}

    right = np.array([[True, True, True], [True, False, True]])
    served = Served(0, 1, {"random": np.arange(4)})
    with pytest.raises(RuntimeError, match="contradicts the replay for 1 of 1 queries in the order 'random'"):
        find_flips({"random": right}, np.array([5, 6]), TRUTH, served, wrong)


def test_without_a_change_nothing_is_searched() -> None:
    def never(served: Served, queries: np.ndarray) -> dict[str, RankedLists]:
        raise AssertionError

    served = Served(0, 1, {"random": np.arange(4)})
    found = find_flips({"random": np.ones((4, 3), bool)}, np.arange(4), TRUTH, served, never)
    assert len(found["random"].query) == 0
