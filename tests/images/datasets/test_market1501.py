from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.folders import Market1501Settings as Settings
from ray_backfill.images.datasets.folders import open_market1501 as open_images
from tests.images.datasets._pictures import names, write_tree
from tests.images.datasets._published_more import flat, market, small_market


def test_identity_and_camera_come_from_the_names(tmp_path: Path) -> None:
    source = open_images(small_market(tmp_path))
    assert source.splits == ("train", "gallery", "queries")
    train, gallery, queries = (source.items(split) for split in source.splits)
    assert train.labels_N.tolist() == [2, 2, 2, 7, 7, 7]
    assert gallery.labels_N.tolist() == [0, 1, 1, 4, 4]  # without the junk; a distractor stays, as 0
    assert queries.labels_N.tolist() == [1, 1, 4, 4]
    assert gallery.cameras_N is not None
    assert queries.cameras_N is not None
    assert gallery.cameras_N.tolist() == [6, 1, 5, 1, 5]
    assert queries.cameras_N.tolist() == [1, 2, 1, 2]
    assert names(source, "gallery")[:2] == [
        "bounding_box_test/0000_c6s1_000151_01.jpg",
        "bounding_box_test/0001_c1s1_000001_01.jpg",
    ]


def test_pixels_are_those_of_the_named_file(tmp_path: Path) -> None:
    settings = market(
        tmp_path,
        {
            "bounding_box_train/0002_c1s1_000001_00.jpg": 10,
            "bounding_box_test/-1_c1s1_000001_00.jpg": 40,
            "bounding_box_test/0003_c1s1_000001_00.jpg": 80,
            "query/0003_c2s1_000001_00.jpg.jpg": 160,  # the archive has a few of these
        },
    )
    source = open_images(settings)
    for split, level in (("train", 10), ("gallery", 80), ("queries", 160)):
        assert abs(int(source.read(split, np.array([0])).pixels_BSSC[0, 4, 4, 0]) - level) < 4


def test_the_archives_own_top_folder(tmp_path: Path) -> None:
    small_market(tmp_path / "Market-1501-v15.09.15")
    source = open_images(Settings(str(tmp_path)))
    assert len(source.items("gallery")) == 5
    # The same data set, whether the root is the folder or the one above it.
    assert source.fingerprint() == open_images(Settings(str(tmp_path / "Market-1501-v15.09.15"))).fingerprint()


@pytest.mark.parametrize("name", ["7_c1s1_000001_00.jpg", "0007_c7s1_000001_00.jpg", "0007_s1_000001.jpg", "me.png"])
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    settings = small_market(tmp_path)
    write_tree(tmp_path, {f"query/{name}": flat(1)})
    with pytest.raises(InputError, match=rf"query/{name} is not named like an image of Market-1501"):
        open_images(settings)


@pytest.mark.parametrize("name", ["query/0000_c1s1_000001_00.jpg", "bounding_box_train/-1_c1s1_000001_00.jpg"])
def test_only_the_gallery_shows_nobody(tmp_path: Path, name: str) -> None:
    settings = small_market(tmp_path)
    write_tree(tmp_path, {name: flat(1)})
    with pytest.raises(InputError, match=rf"{name} is junk or a distractor: only the gallery may have those"):
        open_images(settings)


def test_a_folder_that_is_not_the_data_set(tmp_path: Path) -> None:
    (tmp_path / "bounding_box_train").mkdir()
    with pytest.raises(InputError, match=r"no folder bounding_box_test .* Where to get it: .* bounding_box_train/, "):
        open_images(Settings(str(tmp_path)))
    settings = small_market(tmp_path)
    for path in (tmp_path / "query").glob("*.jpg"):
        path.rename(write_tree(tmp_path, {"query/sub/.keep": b""}) / "query" / "sub" / path.name)
    with pytest.raises(InputError, match="no images in query"):
        open_images(settings)
