"""Further views of train items in a folder: how they are read, and which fits depend on them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.compare.fits import fit_stage
from ray_backfill.core.stages import OtherSettingsError, read_json
from ray_backfill.data.folder import read_folder, read_train
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.training.fit import read_train_set, train_set
from ray_backfill.learn.training.settings import FitSettings, TransformTraining
from ray_backfill.workers.settings import Workers
from tests.bad_folder import SPLITS, TRAIN, VIEWS, with_views, write_split


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for split, columns in SPLITS.items():
        write_split(tmp_path / "data", split, columns)
    return tmp_path / "data"


@pytest.mark.parametrize("rows", [[2 * TRAIN], [TRAIN, TRAIN], [10, TRAIN - 10, 0, TRAIN]])
def test_views_come_back_by_view_and_item(data: Path, rows: list[int]) -> None:
    assert read_folder(data).train_views == {}
    ends = np.cumsum(rows)
    for number, (first, end) in enumerate(zip(ends - rows, ends, strict=True)):
        part = {name: values[first:end] for name, values in VIEWS.items()}
        write_split(data / "train_views.parquet", f"part-{number}", part)
    folder = read_folder(data)
    for name, dims in (("old", 4), ("new", 6)):
        np.testing.assert_array_equal(folder.train_views[name], VIEWS[name].reshape(2, TRAIN, dims))
    assert folder.train is not None
    assert folder.train_bytes == 3 * sum(each.nbytes for each in folder.train.vectors.values())


def test_every_reader_of_the_train_split_has_the_views(data: Path) -> None:
    with_views()(data)
    shutil.copy(data / "gallery.parquet", data / "validation.parquet")
    tasks = read_train_set(data, ("old", "new"))
    for found in (train_set(read_folder(data)), train_set(read_train(data))):
        assert found.n_views == tasks.n_views == 3
        for name in ("old", "new"):
            np.testing.assert_array_equal(found.views[name], tasks.views[name])


def test_trained_maps_belong_to_their_views_and_formulas_do_not(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS")  # a single map is trained in this process
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    settings = FitSettings(transforms=TransformTraining(epochs=1, hidden=4))
    trained, formula = find_methods(("fct", "procrustes_query"))[-2:]
    assert (trained.is_trained, formula.is_trained) == (True, False)
    recorded: list[list[str]] = []
    fingerprints: list[str] = []
    for change in (lambda folder: None, with_views(), with_views(new=VIEWS["new"] + np.float32(0.5))):
        change(data)
        folder, out = read_folder(data), tmp_path / str(len(recorded))
        for method in (trained, formula):
            fit_stage(out, folder, [method], settings, "cosine", Workers())
        recorded.append([read_json(out / m.name / "manifest.json")["settings"]["data"] for m in (trained, formula)])
        fingerprints.append(folder.fingerprint())
    of_trained, of_formula = zip(*recorded, strict=True)
    assert len(set(of_trained)) == len(set(fingerprints)) == 3
    assert len(set(of_formula)) == 1
    with pytest.raises(OtherSettingsError):
        fit_stage(tmp_path / "0", read_folder(data), [trained], settings, "cosine", Workers())
