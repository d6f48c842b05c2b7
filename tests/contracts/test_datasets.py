"""What every source of images promises. A new source adds its smallest example to EXAMPLES."""

import importlib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import own_rows
from ray_backfill.images import datasets
from ray_backfill.images.datasets import (
    NotThereError,
    cifar100,
    dataset_name,
    dataset_of,
    image_folder,
    landmarks,
    manifest,
    omniglot,
    open_images,
)
from ray_backfill.images.datasets.folders import ImageNetSettings, Places365Settings, TinyImageNetSettings
from ray_backfill.images.source import SPLITS, ImageSource
from tests.images.datasets._pictures import omniglot_zips, plain, tiny_imagenet_zip, write_tree
from tests.images.datasets._published import cifar_binary, imagenet_flat, places_easy
from tests.images.datasets._published_more import small_gldv2, small_market, small_vggface


def _image_folder(root: Path) -> Any:
    pictures = {f"{name}/{i}.png": plain((40 * i, 9, 7)) for name in ("cat", "birds/owl") for i in range(5)}
    return image_folder.Settings(root=str(write_tree(root, pictures)), image_size=9)


def _manifest(root: Path) -> Any:
    pictures = {f"{name}{i}.png": plain((40 * i, 9, 7)) for name in ("cat", "owl") for i in range(5)}
    rows = "".join(f"{name},{name[:3]}\n" for name in pictures)
    write_tree(root, {**pictures, "manifest.csv": f"path,label\n{rows}".encode()})
    return manifest.Settings(root=str(root / "manifest.csv"), image_size=9)


# The settings of a small instance of each source, made in an empty folder.
EXAMPLES: dict[str, Callable[[Path], Any]] = {
    "cifar100": lambda root: cifar100.Settings(root=str(cifar_binary(root).parent)),
    "gldv2": small_gldv2,
    "image_folder": _image_folder,
    "imagenet": lambda root: ImageNetSettings(root=str(imagenet_flat(root)), image_size=16),
    "landmarks": lambda root: landmarks.Settings(landmarks=4, train_images=20, gallery_images=16, queries=5),
    "manifest": _manifest,
    "market1501": small_market,
    "omniglot": lambda root: omniglot.Settings(root=str(omniglot_zips(root))),
    "places365": lambda root: Places365Settings(root=str(places_easy(root)), image_size=16),
    "tiny_imagenet": lambda root: TinyImageNetSettings(root=str(tiny_imagenet_zip(root)), image_size=16),
    "vggface2": small_vggface,
}


def test_every_source_has_an_example() -> None:
    rows = own_rows(datasets, "DATASETS")
    assert sorted(EXAMPLES) == sorted(row.name for row in rows), "give each source its smallest example here"


@pytest.fixture(params=sorted(EXAMPLES))
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return EXAMPLES[request.param](tmp_path)


@pytest.fixture
def source(settings: Any) -> ImageSource:
    return open_images(settings)


def test_settings_are_frozen_json(settings: Any) -> None:
    assert dataset_of(settings).settings is type(settings)
    assert type(settings)(**json.loads(json.dumps(asdict(settings)))) == settings
    assert all(isinstance(getattr(settings, f.name), str | int | float) for f in fields(settings))
    with pytest.raises(FrozenInstanceError):
        settings.image_size = 1


def test_splits(source: ImageSource) -> None:
    assert source.splits == tuple(split for split in SPLITS if split in source.splits)
    assert set(source.splits) >= {"train", "gallery"}


def test_items(source: ImageSource) -> None:
    for split in source.splits:
        items = source.items(split)
        count = len(items)
        assert count > 0
        for array in (items.ids_N, items.labels_N, items.groups_N, items.cameras_N):
            if array is not None:
                assert array.dtype == np.int64
                assert array.shape == (count,)
        assert len(np.unique(items.ids_N)) == count
        assert items.labels_N.min() >= (0 if split == "train" else -1)
        names = source.names(split, np.arange(count))
        assert names is None or len(set(names)) == count


def test_a_gallery_that_queries_itself_has_answers(source: ImageSource) -> None:
    if "queries" in source.splits and (positives := source.items("queries").positives_N) is not None:
        assert np.isin(positives.flatten().to_numpy(), source.items("gallery").ids_N).all()
        assert len(positives.flatten()) > 0
        return
    sizes = np.bincount(source.items("gallery").labels_N)
    if "queries" in source.splits:
        assert (sizes[source.items("queries").labels_N] > 0).all()
    else:
        assert sizes.max() > 1


def test_pixels(source: ImageSource) -> None:
    for split in source.splits:
        rows = np.arange(len(source.items(split)))
        pixels = source.read(split, rows)
        assert pixels.pixels_BSSC.shape == (len(rows), source.image_size, source.image_size, source.channels)
        assert pixels.pixels_BSSC.dtype == np.uint8
        assert pixels.broken == {}
        assert pixels.pixels_BSSC.any(axis=(1, 2, 3)).all()
        some = np.array([3, 0, 3, 2])
        np.testing.assert_array_equal(source.read(split, some).pixels_BSSC, pixels.pixels_BSSC[some])
    assert len(source.read("gallery", rows[:0]).pixels_BSSC) == 0


def test_opening_again_and_pickling_change_nothing(settings: Any, source: ImageSource) -> None:
    rows = np.array([1, 0])
    before = source.read("gallery", rows).pixels_BSSC
    for other in (open_images(settings), pickle.loads(pickle.dumps(source))):
        assert other.splits == source.splits
        for split in source.splits:
            np.testing.assert_array_equal(other.items(split).ids_N, source.items(split).ids_N)
            np.testing.assert_array_equal(other.items(split).labels_N, source.items(split).labels_N)
        np.testing.assert_array_equal(other.read("gallery", rows).pixels_BSSC, before)
        assert other.fingerprint() == source.fingerprint()


def test_the_fingerprint_follows_every_setting(settings: Any, source: ImageSource) -> None:
    seen = [json.dumps(source.fingerprint())]
    for f in fields(settings):
        value = getattr(settings, f.name)
        if f.name in ("root", "images"):  # the same images in another place are the same images
            continue
        if isinstance(value, str):
            value = {"queries": "private"}[f.name]
        else:
            value = {"channels": 1}.get(f.name, value + 1 if isinstance(value, int) else value / 2 or 0.5)
        seen.append(json.dumps(open_images(replace(settings, **{f.name: value})).fingerprint()))
    assert len(set(seen)) == len(seen)


def test_an_unknown_split_is_refused(source: ImageSource) -> None:
    with pytest.raises(InputError, match=r"'nowhere'.*gallery"):
        source.items("nowhere")
    with pytest.raises(InputError, match="'nowhere'"):
        source.read("nowhere", np.array([0]))


def test_numbers_out_of_range_are_refused(settings: Any) -> None:
    name = dataset_name(settings)
    wrong: dict[str, float] = {"image_size": 0, "per_class": 0, "channels": 4, "train_fraction": 1.0}
    for field in wrong.keys() & {f.name for f in fields(settings)}:
        with pytest.raises(InputError, match=rf"^{name}: {field} must be .*, not {wrong[field]}"):
            dataset_of(settings).open_images(replace(settings, **{field: wrong[field]}))


def test_what_is_not_there_is_said_with_where_to_get_it(settings: Any, tmp_path: Path) -> None:
    row = dataset_of(settings)
    if not row.home:
        return
    where = re.escape(f"Where to get it: {row.home}. How the folder must look: {row.layout}")
    for root, problem in (
        ("", "no root is given"),
        (str(tmp_path / "nowhere"), r"there is no \w+.* \(in '.*nowhere'\)"),
    ):
        with pytest.raises(NotThereError, match=rf"^{row.name}: {problem}\. {where}$"):
            row.open_images(replace(settings, root=root))


# A module of another distribution; at first without a row.
THEIRS = """
from dataclasses import dataclass
from ray_backfill.images.datasets import DataSet, landmarks

@dataclass(frozen=True)
class Settings:
    root: str = ""

def {name}(settings):
    return landmarks.open_images(landmarks.Settings(landmarks=2, train_images=4, gallery_images=4, queries=2))
"""


def test_a_data_set_of_another_distribution_is_opened_by_its_settings(tmp_path: Path) -> None:
    row = 'DATASETS = (DataSet("theirs", Settings, open_images),)'
    (tmp_path / "their_images.py").write_text(THEIRS.format(name="open_images") + row)
    code = """
import pickle, sys
from ray_backfill.images.datasets import dataset_name, open_images
settings = pickle.loads(bytes.fromhex(sys.argv[1]))
print(dataset_name(settings), len(open_images(settings).items("train")))"""
    made = "import pickle, their_images; print(pickle.dumps(their_images.Settings()).hex())"
    paths = os.pathsep.join([str(tmp_path), *sys.path])

    def run(*arguments: str) -> str:
        command = [sys.executable, "-c", *arguments]
        environment = os.environ | {"PYTHONPATH": paths}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert run(code, run(made)) == "theirs 4"


def test_a_module_without_a_row_is_refused_with_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_old_images.py").write_text(THEIRS.format(name="open_source"))
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("their_old_images")
    with pytest.raises(InputError) as caught:
        open_images(theirs.Settings())
    assert "define open_images, and DATASETS = (DataSet(" in str(caught.value)
    assert "\n" not in str(caught.value)
