"""The validation part of a train split: what is held out, and that every reader holds out the same."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import ray_backfill as rb
from ray_backfill.core import memory
from ray_backfill.core.errors import InputError
from ray_backfill.data.division import held_out
from ray_backfill.data.folder import read_folder, read_train
from ray_backfill.data.write import vector_column, write_parquet


def columns(n: int, classes: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    old, new = rng.normal(size=(n, 3)).astype(np.float16), rng.normal(size=(n, 5))
    return {"old": old, "new": new, "label": np.arange(n) % classes}


@pytest.mark.parametrize("size", [4, 5, 12, 100])
def test_a_tenth_is_held_out_and_every_item_has_a_right_answer_on_both_sides(size: int) -> None:
    label = np.arange(2400) // size
    held = held_out(label, 2400)
    assert held.sum() == pytest.approx(240, abs=10)
    for part in (Counter(label[held].tolist()), Counter(label[~held].tolist())):
        assert min(part.values()) >= 2
    assert (held == held_out(label, 2400)).all()


def test_large_classes_all_give_their_share() -> None:
    label = np.arange(2000) % 20
    assert Counter(label[held_out(label, 2000)].tolist()) == dict.fromkeys(range(20), 10)


def test_items_of_unknown_class_stay() -> None:
    label = np.where(np.arange(2000) < 1000, -1, np.arange(2000) % 10)
    held = held_out(label, 2000)
    assert held.any()
    assert not held[:1000].any()


def test_without_labels_a_random_tenth_is_held_out() -> None:
    held = held_out(None, 3000)
    assert held.sum() == 300
    assert 100 < held[:1500].sum() < 200


@pytest.mark.parametrize("label", [np.arange(400) % 4, np.arange(3000), np.arange(3000) // 3])
def test_nothing_is_held_out_where_too_little_could_be(label: np.ndarray) -> None:
    assert not held_out(label, len(label)).any()


def test_of_a_large_split_some_20_000_items_are_held_out() -> None:
    assert held_out(np.arange(400_000) % 1000, 400_000).sum() == 20_000
    assert held_out(None, 400_000).sum() == 20_000


def test_the_parts_are_the_whole_split_for_every_reader(tmp_path: Path) -> None:
    train = columns(700, 7)
    path = rb.write_folder(tmp_path / "data", columns(20, 2), train=train)
    folder = read_folder(path)
    again = read_train(path)
    assert folder.train is not None
    assert folder.validation is not None
    assert len(folder.validation) == 70
    assert sorted([*folder.train.id, *folder.validation.id]) == list(range(700))
    for mine, theirs in ((folder.train, again.train), (folder.validation, again.validation)):
        assert theirs is not None
        assert (mine.id == theirs.id).all()
        assert (mine.old == train["old"][mine.id]).all()
        assert mine.old.dtype == np.float16
        assert mine.label is not None
        assert (mine.label == train["label"][mine.id]).all()


def test_large_vectors_are_copied_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rb.write_folder(tmp_path / "data", columns(20, 2), train=columns(700, 7))
    whole = read_train(path).train
    monkeypatch.setattr(memory, "MAPPED_BYTES", 100)
    monkeypatch.setattr("ray_backfill.data.vectors._BATCH_ROWS", 64)
    train = read_train(path).train
    assert whole is not None
    assert train is not None
    assert isinstance(train.new, np.memmap)
    assert (train.new == whole.new).all()


def test_further_views_are_those_of_the_items_that_are_fitted_on(tmp_path: Path) -> None:
    train = columns(700, 7)
    path = rb.write_folder(tmp_path / "data", columns(20, 2), train=train)
    wide = {name: train[name].astype(np.float32) for name in ("old", "new")}
    of_models = {name: vector_column(np.concatenate([first + 1, first + 2])) for name, first in wide.items()}
    write_parquet(path / "train_views.parquet", pa.table({"id": np.tile(np.arange(700), 2)} | of_models))
    split = read_train(path)
    assert split.train is not None
    assert len(split.train) == 630
    for name, views in split.train_views.items():
        for number in range(2):
            np.testing.assert_array_equal(views[number], split.train.vectors[name].astype(np.float32) + (number + 1))


def test_with_a_validation_file_the_whole_train_split_is_fitted_on(tmp_path: Path) -> None:
    path = rb.write_folder(tmp_path / "data", columns(20, 2), train=columns(700, 7))
    other = rb.write_folder(tmp_path / "other", columns(30, 3, seed=1))
    divided = read_folder(path).fingerprint(splits=("train",))
    (other / "gallery.parquet").rename(path / "validation.parquet")
    folder = read_folder(path)
    assert folder.train is not None
    assert folder.validation is not None
    assert (len(folder.train), len(folder.validation)) == (700, 30)
    assert folder.validation.path.name == "validation.parquet"
    assert folder.fingerprint(splits=("train",)) != divided


def test_a_changed_validation_file_changes_the_fingerprint(tmp_path: Path) -> None:
    path = rb.write_folder(tmp_path / "data", columns(20, 2), train=columns(700, 7))
    found = []
    for seed in (1, 2):
        other = rb.write_folder(tmp_path / "other", columns(30, 3, seed))
        (other / "gallery.parquet").rename(path / "validation.parquet")
        found.append(read_folder(path).fingerprint())
    assert found[0] != found[1]


def test_a_validation_file_needs_every_model_of_the_train_split(tmp_path: Path) -> None:
    bct = {"bct": np.ones((700, 5))}
    path = rb.write_folder(tmp_path / "data", columns(20, 2) | {"bct": np.ones((20, 5))}, train=columns(700, 7) | bct)
    other = rb.write_folder(tmp_path / "other", columns(30, 3))
    (other / "gallery.parquet").rename(path / "validation.parquet")
    with pytest.raises(InputError, match=r"validation\.parquet has no column 'bct'"):
        read_folder(path, ("old", "new", "bct"))
