"""Images of tar archives, read in place: the pixels of unpacked files; damaged archives cost their own images only."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images import archives
from ray_backfill.images.datasets.gldv2 import open_images
from tests.images.datasets._published_more import small_gldv2


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(archives, "user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    return tmp_path / "cache"


def packed(folder: Path, archives_of: int = 2) -> list[Path]:
    """Pack the images of a folder as GLDv2 distributes them, and remove them."""
    files = sorted(folder.rglob("*.jpg"))
    made = []
    for number, own in enumerate(np.array_split(np.array(files, object), archives_of)):
        path = folder / f"images_{number:03}.tar"
        with tarfile.open(path, "w") as tar:
            for file in own:
                tar.add(file, f"./{file.relative_to(folder)}")
            extra = tarfile.TarInfo("._hidden.jpg")
            tar.addfile(extra, io.BytesIO())
        made.append(path)
    for file in files:
        file.unlink()
    return made


def test_archives_give_what_unpacked_files_give(tmp_path: Path, cache: Path) -> None:
    settings = small_gldv2(tmp_path / "data")
    before = open_images(settings)
    expected = {split: before.read(split, np.arange(len(before.items(split)))) for split in before.splits}
    packed(settings.folder / "train")
    packed(settings.folder / "index")  # test/ stays unpacked
    source = open_images(settings)
    again = pickle.loads(pickle.dumps(source))  # as for an actor
    for split, wanted in expected.items():
        for each in (source, again):
            found = each.read(split, np.arange(len(each.items(split))))
            np.testing.assert_array_equal(found.pixels_BSSC, wanted.pixels_BSSC)
            assert found.broken == {}
    assert source.names("train", np.arange(2)) == before.names("train", np.arange(2))
    assert len(list(cache.rglob("*.parquet"))) == 4
    assert open_images(settings).fingerprint() == source.fingerprint() != before.fingerprint()


def test_an_archive_is_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small_gldv2(tmp_path / "data")
    (first, *_) = packed(settings.folder / "train")
    open_images(settings)
    listed: list[Path] = []
    read = archives._listed

    def noted(path: Path) -> pa.Table:
        listed.append(path)
        return read(path)

    monkeypatch.setattr(archives, "_listed", noted)
    open_images(settings)
    assert listed == []
    with tarfile.open(first, "a") as tar:
        tar.addfile(tarfile.TarInfo("one more"), io.BytesIO())
    open_images(settings)
    assert listed == [first], "it has changed"


def test_a_broken_member_and_a_wrong_md5_are_listed_and_the_rest_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = small_gldv2(tmp_path / "data")
    good, other, wrong = packed(settings.folder / "train", 3)
    with tarfile.open(other) as tar:
        broken = next(member for member in tar if member.size)
    with other.open("r+b") as file:
        file.seek(broken.offset_data)
        file.write(bytes(broken.size))
    sums = settings.folder / "md5sum" / "train"
    sums.mkdir(parents=True)
    for path in (good, other):
        (sums / f"md5.{path.stem}.txt").write_text(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.name}\n")
    (wrong.parent / f"md5.{wrong.stem}.txt").write_text("0123456789abcdef0123456789abcdef\n")
    source = open_images(settings)
    assert f"{wrong} has the md5 " in capsys.readouterr().err
    found = source.read("train", np.arange(6))
    assert len(found.broken) == 3
    reasons = sorted(found.broken.values())
    assert sum("and 0123456789abcdef0123456789abcdef is published; fetch it again" in each for each in reasons) == 2
    assert any(str(other) in each for each in reasons)
    assert all(found.pixels_BSSC[i].any() for i in range(1, 6) if i not in found.broken)


def test_an_archive_that_ends_too_early_gives_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small_gldv2(tmp_path / "data")
    (path,) = packed(settings.folder / "index", 1)
    with tarfile.open(path) as tar:
        third = [member for member in tar if member.size][2]
    data = path.read_bytes()
    path.write_bytes(data[: third.offset_data + 100])
    source = open_images(settings)
    assert f"{path} " in capsys.readouterr().err
    broken = source.read("gallery", np.arange(5)).broken
    assert len(broken) == 3
    assert sum("no archive of its folder has it" in reason for reason in broken.values()) == 2
    assert sum("the archive ends within it" in reason for reason in broken.values()) == 1
    path.write_bytes(b"no tar" * 1000)
    with pytest.raises(InputError, match=r"no archive of 1 in .*index can be read; the first cannot be read as"):
        open_images(settings)


def test_without_a_folder_that_can_be_written_archives_are_listed_each_time(tmp_path: Path, cache: Path) -> None:
    settings = small_gldv2(tmp_path / "data")
    packed(settings.folder / "train")
    cache.write_text("a file")
    assert open_images(settings).read("train", np.arange(6)).broken == {}
