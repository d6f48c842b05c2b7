"""Vectors of other items than those of their rows stop a run; models that have little in common do not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import ray_backfill as rb
from ray_backfill.compare.diagnose import diagnose
from ray_backfill.core.errors import InputError
from ray_backfill.data import alignment
from ray_backfill.data.alignment import check_alignment, misaligned
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from tests.command import Command

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


@pytest.mark.parametrize("split", ["gallery", "queries", "train"])
def test_a_split_in_another_order_stops_every_command(split: str, tmp_path: Path, command: Command) -> None:
    data = folder(tmp_path / "data", **{split: permuted})
    for words in (("simulate", "--methods", "rm_naive"), ("fit", "--methods", "ridge_gallery")):
        error = command(words[0], "--data", data, "--out", tmp_path / "out", *words[1:]).error
        assert f"{split}.parquet: old and new agree no better than chance on which items are similar" in error
        assert "same row order?" in error
    found = diagnose(data)
    assert [(each.level, each.where) for each in found.findings] == [("error", f"{split}.parquet")]
    assert found.findings[0].remedy.startswith("same row order?")
    assert not found.methods


def test_rows_that_belong_together_pass(tmp_path: Path, command: Command) -> None:
    data = folder(tmp_path / "data")
    check_alignment(rb.read_folder(data))
    assert diagnose(data).is_sound
    words = ("--data", data, "--out", tmp_path / "out", "--methods", "rm_naive", "--points", 3)
    assert command("simulate", *words).code == 0


def test_arrays_in_another_order_stop_the_python_interface() -> None:
    given = columns(1_000, 1)
    with pytest.raises(InputError, match=r"the gallery data: old and new agree .* must be the same item"):
        rb.simulate(old=given["old"], new=given["new"][::-1], points=3)


@pytest.mark.parametrize("wrong", ["queries", "sample"])
def test_a_forecast_stops_too(wrong: str, tmp_path: Path) -> None:
    data = folder(tmp_path / "data", **({"queries": permuted} if wrong == "queries" else {}))
    gallery = columns(1_000, 1)
    ids = rb.sample(data, 500).id.to_numpy()
    new = gallery["new"][np.sort(ids) if wrong == "sample" else ids]  # in the order of the gallery, not of the list
    np.savez(tmp_path / "new.npz", id=ids, new=new)
    split = "gallery" if wrong == "sample" else "queries"
    with pytest.raises(InputError, match=rf"{split}\.parquet: old and new agree .* same row order\?"):
        rb.forecast(data, tmp_path / "new.npz", methods="rm_naive")


@pytest.mark.parametrize("by", [1, -1, 3])
def test_rows_that_are_moved_are_found_in_a_file_in_the_order_of_its_classes(by: int) -> None:
    given = columns(3_000, 1, ordered=True)
    assert not said(given["old"], given["new"])
    words = f"{abs(by)} row{'s' * (abs(by) > 1)} {'below' if by > 0 else 'above'}"
    found = said(given["old"], np.roll(given["new"], by, axis=0))
    assert found == f"gallery.parquet: an item's new vector seems to be {words} its old one"


def test_rows_that_are_moved_from_some_row_on_are_found_there() -> None:
    given = columns(3_000, 1, ordered=True)
    new = np.concatenate([given["new"][:1_800], given["new"][1_801:], given["new"][:1]])  # row 1,800 is missing
    found = said(given["old"], new)
    assert "an item's new vector seems to be 1 row above its old one in about rows" in found
    first, last = (int(each.replace(",", "")) for each in found.split("rows ")[1].split(" to "))
    assert abs(first - 1_800) <= 300
    assert last >= 2_990


def test_a_part_in_another_order_is_found_there() -> None:
    given = columns(3_000, 1)
    new = given["new"].copy()
    new[2_000:] = np.random.default_rng(2).permutation(new[2_000:])
    found = said(given["old"], new).partition(" in about rows ")[2].split(" are ")[0].split(" to ")
    first, last = (int(each.replace(",", "")) for each in found)
    assert abs(first - 2_000) <= 300
    assert last >= 2_990


@pytest.mark.parametrize(
    "change",
    [
        lambda new: new * 0 + 1,  # constant
        lambda new: np.repeat(new[:10], 100, axis=0),  # ten different vectors
        lambda new: new[:, :1],  # one dimension: cosines are 1 or -1
    ],
)
def test_what_says_little_of_an_item_passes(change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    given = columns(1_000, 1)
    assert not said(given["old"], change(given["new"]))


def test_few_items_and_the_same_vectors_pass() -> None:
    rng = np.random.default_rng(0)
    assert not said(rng.normal(size=(90, 16)), rng.normal(size=(90, 16)))
    given = columns(1_000, 1)
    assert not said(given["old"], given["old"])


def test_the_correlation_is_that_of_the_definition() -> None:
    """Szekely and Rizzo 2014, equations 2.5 and 3.1, item by item."""
    given = columns(60, 1)
    sample = alignment._sampled(table(given["old"], given["new"]).gallery)
    assert sample is not None
    centred = []
    for vectors in (given["old"].astype(np.float64), given["new"].astype(np.float64)):
        unit = vectors - vectors.mean(axis=0)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        cosine, n = unit @ unit.T, len(unit)
        np.fill_diagonal(cosine, 0)
        found = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                means = (cosine[i].sum() + cosine[:, j].sum()) / (n - 2) - cosine.sum() / ((n - 1) * (n - 2))
                found[i, j] = cosine[i, j] - means if i != j else 0
        centred.append(found)
    old, new = centred
    wanted = (old * new).sum() / np.sqrt((old * old).sum() * (new * new).sum())
    own = [alignment._centred(each @ each.T, is_own=True) for each in (sample.old, sample.new)]
    assert alignment._correlation(*own) == pytest.approx(wanted, abs=1e-5)


def test_unrelated_items_have_the_mean_and_the_spread_of_the_definition() -> None:
    found, n = [], 100
    for seed in range(300):
        rng = np.random.default_rng(seed)
        unit = [alignment._unit(rng.normal(size=(n, d)).astype(np.float32)) for d in (12, 20)]
        found.append(alignment._correlation(*(alignment._centred(each @ each.T, is_own=True) for each in unit)))
    deviation = np.sqrt(2 / (n * (n - 3)))
    assert np.mean(found) == pytest.approx(0, abs=4 * deviation / np.sqrt(300))
    assert np.std(found) == pytest.approx(deviation, rel=0.15)


def test_unrelated_vectors_are_found_nearly_always_and_those_of_two_models_never() -> None:
    stopped = [bool(said(rng.normal(size=(800, 16)), rng.normal(size=(800, 16))))
               for rng in map(np.random.default_rng, range(40))]  # fmt: skip
    assert sum(stopped) >= 39
    for seed in range(40):
        given = columns(800, seed)
        assert not said(given["old"], given["new"][:, :3])  # three dimensions


def test_classes_that_have_changed_places_are_found_by_the_queries(tmp_path: Path) -> None:
    """Two programs have read the folders of the classes in different orders: the gallery alone looks right."""
    world = 3 * np.random.default_rng(0).normal(size=(CLASSES, 24))

    def split(label: NDArray[Any], seed: int) -> Columns:
        item = (world[label] + np.random.default_rng(seed).normal(size=(len(label), 24))).astype(np.float32)
        return {"old": item[:, :16], "new": item}

    of_class = np.arange(1_000).reshape(CLASSES, -1)
    gallery, queries = split(np.repeat(np.arange(CLASSES), 25), 1), split(np.arange(100) % CLASSES, 2)
    assert not list(misaligned(rb.read_folder(rb.write_folder(tmp_path / "right", gallery, queries))))
    gallery["new"] = gallery["new"][np.random.default_rng(5).permutation(of_class).ravel()]
    ((where, what),) = misaligned(rb.read_folder(rb.write_folder(tmp_path / "wrong", gallery, queries)))
    assert where == "queries.parquet"
    assert what == "its items are similar to some gallery items by old, and to others by new"
