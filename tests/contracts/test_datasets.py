"""What every source of images promises. A new source adds its smallest example to EXAMPLES."""

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import plugin_names
from ray_backfill.images import datasets
from ray_backfill.images.datasets import (
    NotThereError,
    cifar100,
    dataset_module,
    dataset_name,
    image_folder,
    imagenet,
    landmarks,
    manifest,
    omniglot,
    open_images,
    places365,
    tiny_imagenet,
)
from ray_backfill.images.sources import SPLITS, ImageSource
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
    "imagenet": lambda root: imagenet.Settings(root=str(imagenet_flat(root)), image_size=16),
    "landmarks": lambda root: landmarks.Settings(landmarks=4, train_images=20, gallery_images=16, queries=5),
    "manifest": _manifest,
    "market1501": small_market,
    "omniglot": lambda root: omniglot.Settings(root=str(omniglot_zips(root))),
    "places365": lambda root: places365.Settings(root=str(places_easy(root)), image_size=16),
    "tiny_imagenet": lambda root: tiny_imagenet.Settings(root=str(tiny_imagenet_zip(root)), image_size=16),
    "vggface2": small_vggface,
}


def test_every_source_has_an_example() -> None:
    assert sorted(EXAMPLES) == plugin_names(datasets), "give each source its smallest example here"


@pytest.fixture(params=sorted(EXAMPLES))
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return EXAMPLES[request.param](tmp_path)


@pytest.fixture
def source(settings: Any) -> ImageSource:
    return open_images(settings)


def test_settings_are_frozen_json(settings: Any) -> None:
    name = dataset_name(settings)
    assert isinstance(settings, dataset_module(name).Settings)
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
            dataset_module(name).open_images(replace(settings, **{field: wrong[field]}))


def test_what_is_not_there_is_said_with_where_to_get_it(settings: Any, tmp_path: Path) -> None:
    name = dataset_name(settings)
    module = dataset_module(name)
    if not hasattr(module, "HOME"):
        return
    where = re.escape(f"Where to get it: {module.HOME}. How the folder must look: {module.LAYOUT}")
    for root, problem in (
        ("", "no root is given"),
        (str(tmp_path / "nowhere"), r"there is no \w+.* \(in '.*nowhere'\)"),
    ):
        with pytest.raises(NotThereError, match=rf"^{name}: {problem}\. {where}$"):
            module.open_images(replace(settings, root=root))
