"""Vectors of other items than those of their rows stop a run; models that have little in common do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

import ray_backfill as rb
from ray_backfill.cli.main import main
from ray_backfill.compare.diagnose import diagnose
from ray_backfill.core.errors import InputError
from ray_backfill.data import alignment
from ray_backfill.data.alignment import check_alignment, misaligned
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable

Columns = dict[str, Any]
CLASSES = 40


def columns(n: int, seed: int, ordered: bool = False) -> Columns:
    """Two models that see the same items, each with noise of its own; ordered: by class, as many files are."""
    rng, world = np.random.default_rng(seed), np.random.default_rng(0)
    label = rng.integers(0, CLASSES, n)
    label = np.sort(label) if ordered else label
    item = world.normal(size=(CLASSES, 24))[label] + rng.normal(size=(n, 24))
    views = world.normal(size=(24, 16)), world.normal(size=(24, 20))
    old, new = ((item @ view + rng.normal(size=(n, view.shape[1]))).astype(np.float32) for view in views)
    return {"id": np.arange(n), "old": old, "new": new, "label": label}


def folder(path: Path, **changes: Callable[[Columns], object]) -> Path:
    splits = {"gallery": columns(1_000, 1), "queries": columns(300, 2), "train": columns(1_000, 3)}
    for split, change in changes.items():
        change(splits[split])
    return rb.write_folder(path, **splits)


def permuted(split: Columns) -> None:
    split["new"] = np.random.default_rng(9).permutation(split["new"])


def table(old: NDArray[Any], new: NDArray[Any]) -> EmbeddingFolder:
    vectors: dict[str, Any] = {"old": old.astype(np.float32), "new": new.astype(np.float32)}
    gallery = EmbeddingTable(Path("data/gallery.parquet"), np.arange(len(old)), vectors)
    return EmbeddingFolder(Path("data"), gallery, None, None)


def said(old: NDArray[Any], new: NDArray[Any]) -> str:
    return "; ".join(f"{where}: {what}" for where, what in misaligned(table(old, new)))


def run(*words: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["ray-backfill", *map(str, words)])
        try:
            main()
        except SystemExit as stopped:
            return int(stopped.code or 0)
    return 0


@pytest.mark.parametrize("split", ["gallery", "queries", "train"])
def test_a_split_in_another_order_stops_every_command(
    split: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = folder(tmp_path / "data", **{split: permuted})
    for words in (("simulate", "--methods", "rm_naive"), ("fit", "--methods", "ridge_gallery")):
        assert run(words[0], "--data", data, "--out", tmp_path / "out", *words[1:]) == 2
        error = capsys.readouterr().err.strip()
        assert len(error.splitlines()) == 1
        assert f"{split}.parquet: the nearest items by old and by new" in error
        assert "same row order?" in error
    found = diagnose(data)
    assert [(each.level, each.where) for each in found.findings] == [("error", f"{split}.parquet")]
    assert found.findings[0].remedy.startswith("same row order?")
    assert not found.methods


def test_rows_that_belong_together_pass(tmp_path: Path) -> None:
    data = folder(tmp_path / "data")
    check_alignment(rb.read_folder(data))
    assert diagnose(data).is_sound
    assert run("simulate", "--data", data, "--out", tmp_path / "out", "--methods", "rm_naive", "--points", 3) == 0


def test_arrays_in_another_order_stop_the_python_interface() -> None:
    given = columns(1_000, 1)
    with pytest.raises(InputError, match=r"gallery\.parquet: the nearest items .* same row order\?"):
        rb.simulate(old=given["old"], new=given["new"][::-1], points=3)


@pytest.mark.parametrize("wrong", ["queries", "sample"])
def test_a_forecast_stops_too(wrong: str, tmp_path: Path) -> None:
    data = folder(tmp_path / "data", **({"queries": permuted} if wrong == "queries" else {}))
    gallery = columns(1_000, 1)
    ids = rb.sample(data, 500).id.to_numpy()
    new = gallery["new"][np.sort(ids) if wrong == "sample" else ids]  # in the order of the gallery, not of the list
    np.savez(tmp_path / "new.npz", id=ids, new=new)
    split = "gallery" if wrong == "sample" else "queries"
    with pytest.raises(InputError, match=rf"{split}\.parquet: the nearest .* same row order\?"):
        rb.forecast(data, tmp_path / "new.npz", methods="rm_naive")


@pytest.mark.parametrize("by", [1, -1, 3])
def test_rows_that_are_moved_are_found_in_a_file_in_the_order_of_its_classes(by: int) -> None:
    given = columns(3_000, 1, ordered=True)
    assert not said(given["old"], given["new"])
    words = f"{abs(by)} row{'s' * (abs(by) > 1)} {'later' if by > 0 else 'earlier'}"
    assert f"new fits old better {words}" in said(given["old"], np.roll(given["new"], by, axis=0))


def test_rows_that_are_moved_from_some_row_on_are_found_there() -> None:
    given = columns(3_000, 1, ordered=True)
    new = np.concatenate([given["new"][:1_800], given["new"][1_801:], given["new"][:1]])  # row 1,800 is missing
    assert "new fits old better in rows 1,8" in said(given["old"], new)


def test_a_part_in_another_order_is_found_there() -> None:
    given = columns(3_000, 1)
    new = given["new"].copy()
    new[2_000:] = np.random.default_rng(2).permutation(new[2_000:])
    what = said(given["old"], new)
    assert "the nearest items by old and by new in rows 2,0" in what


@pytest.mark.parametrize(
    "change",
    [
        lambda new: new * 0 + 1,  # constant
        lambda new: np.repeat(new[:10], 100, axis=0),  # ten different vectors
        lambda new: new[:, :1],  # one dimension: cosines of 1 and -1
    ],
)
def test_what_has_no_neighbours_is_not_judged(change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    given = columns(1_000, 1)
    assert not said(given["old"], change(given["new"]))


def test_few_items_and_the_same_vectors_pass() -> None:
    rng = np.random.default_rng(0)
    assert not said(rng.normal(size=(90, 16)), rng.normal(size=(90, 16)))
    given = columns(1_000, 1)
    assert not said(given["old"], given["old"])


def test_neighbours_in_common_are_those_that_another_library_finds() -> None:
    given = columns(400, 1)
    sample = alignment._sampled(table(given["old"], given["new"]).gallery)
    assert sample is not None
    lists = []
    for model in ("old", "new"):
        centred = given[model] - given[model].mean(axis=0)
        found = NearestNeighbors(n_neighbors=10, metric="cosine", algorithm="brute").fit(centred).kneighbors()
        lists.append([set(row) for row in found[1]])
        own = alignment._nearest(getattr(sample, model), getattr(sample, model), True)
        assert [set(row) for row in own.tolist()] == lists[-1]


def test_unrelated_vectors_are_found_nearly_always_and_those_of_two_models_never() -> None:
    stopped = [bool(said(rng.normal(size=(800, 16)), rng.normal(size=(800, 16))))
               for rng in map(np.random.default_rng, range(40))]  # fmt: skip
    assert sum(stopped) >= 39
    for seed in range(40):
        given = columns(800, seed)
        assert not said(given["old"], given["new"][:, :3])  # three dimensions
