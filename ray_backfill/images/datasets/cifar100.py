"""CIFAR-100: 60 000 colour images of 32 x 32 pixels in 100 classes, from the official binary version.

Source: Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009,
https://www.cs.toronto.edu/~kriz/cifar.html. The fine labels are the classes; the test images are the gallery, which
queries itself. The Python and Matlab versions contain the same images and are not read. Licence: none stated; the
authors ask to be cited.

Shapes: N images of a split; B images of a batch; S pixels per side.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import DataSet, Published, PublishedSettings, wrong_layout
from ray_backfill.images.download import RemoteArchive, fetch_folder
from ray_backfill.images.source import ImageSource, Items, Pixels, identity_of

ARCHIVE = RemoteArchive(
    "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"
)
_FILES = {"train": "train.bin", "gallery": "test.bin"}

_SIDE = 32
_PLANES = 3 * _SIDE * _SIDE  # red, green, blue; rows from the top
_RECORD = 2 + _PLANES  # coarse label, fine label, pixels
_PIECE = 4096  # images at a time in a checksum


@dataclass(frozen=True)
class Settings(PublishedSettings):
    """Location and image size."""

    image_size: int = 32
    """Pixels per side; the original images have 32."""


@dataclass
class _Cifar(ImageSource):
    settings: Settings
    files: dict[str, Path]
    image_size: int
    splits: tuple[str, ...] = ("train", "gallery")
    channels: int = 3
    _content: str = field(default="", repr=False)

    def items(self, split: str) -> Items:
        """Labels are the fine ones, 0 .. 99. Raises InputError for an unknown split."""
        records_N = self.records(split)
        first_id = 0 if split == "train" else len(self.records("train"))
        return Items(np.arange(len(records_N)) + first_id, records_N[:, 1].astype(np.int64))

    def records(self, split: str) -> NDArray[np.uint8]:
        if split not in self.files:
            raise InputError(f"cifar100 has no split {split!r}; it has: {', '.join(self.splits)}")
        return np.memmap(self.files[split], np.uint8, "r").reshape(-1, _RECORD)

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        pixels_B = self.records(split)[rows, 2:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        size = self.image_size
        if size == _SIDE:
            return Pixels(np.ascontiguousarray(pixels_B))
        resized_B = np.zeros((len(rows), size, size, 3), np.uint8)
        for i, pixels in enumerate(pixels_B):
            image = Image.fromarray(np.ascontiguousarray(pixels))
            resized_B[i] = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, reducing_gap=3.0))
        return Pixels(resized_B)

    def fingerprint(self) -> dict[str, Any]:
        """A checksum of all labels and pixels. Cost: reads 184 MB on the first call."""
        if not self._content:
            hasher = hashlib.sha256()
            for split in self.splits:
                records_N = self.records(split)
                hasher.update(f"{split} {len(records_N)}\n".encode() + records_N[:, 1].astype("<i8").tobytes())
                for start in range(0, len(records_N), _PIECE):
                    hasher.update(records_N[start : start + _PIECE, 2:].tobytes())
            self._content = hasher.hexdigest()
        return {"dataset": "cifar100", "content": self._content, **identity_of(self.settings)}


def open_images(settings: Settings) -> ImageSource:
    """Find the files and check their sizes and labels.

    Raises:
        InputError: image_size below 1, missing files, or a file that is damaged or of another kind.
    """
    root = settings.folder
    folder = _find(root) if settings.root else None
    if folder is None:
        raise wrong_layout(settings, _what_is_wrong(root))
    files = {split: folder / file for split, file in _FILES.items()}
    for file in files.values():
        _check(file)
    return _Cifar(settings, files, settings.image_size)


def download(root: Path) -> Path:
    """Download the archive (161 MB), unless it is in ``root`` already, and unpack it.

    Does nothing if the files exist. Returns their folder. Raises InputError: see fetch_folder.
    """
    return _find(root) or fetch_folder(ARCHIVE, root)


def _find(root: Path) -> Path | None:
    """The folder that holds both splits."""
    for folder in (root / ARCHIVE.folder, root):
        if all((folder / file).is_file() for file in _FILES.values()):
            return folder
    return None


def _what_is_wrong(root: Path) -> str:
    if not root.is_dir():
        return "there is no such folder"
    if (root / ARCHIVE.name).is_file():
        return f"{ARCHIVE.name} is not unpacked: add --download, or run tar -xzf {ARCHIVE.name} there"
    for folder in (root / ARCHIVE.folder, root):
        missing = [file for file in _FILES.values() if not (folder / file).is_file()]
        if len(missing) == 1:
            return f"{folder / missing[0]} is missing"
    if any(root.glob("cifar-100-python*")) or (root / "train").is_file():
        remedy = f"add --download, or unpack {ARCHIVE.name} there"
        return f"this is the Python version, but only the binary version is read: {remedy}"
    return "the files are missing"


def _check(path: Path) -> None:
    """Raises InputError for a file of another kind, recognised by its size and labels."""
    size = path.stat().st_size
    if size == 0 or size % _RECORD:
        raise InputError(
            f"{path} is truncated or another file: its {size} bytes are not a multiple of {_RECORD}; download it again"
        )
    try:
        records_N = np.memmap(path, np.uint8, "r").reshape(-1, _RECORD)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    for column, count in ((0, 20), (1, 100)):
        if records_N[:, column].max() >= count:
            raise InputError(f"{path} is not CIFAR-100: it has labels outside 0 to {count - 1}; download it again")


DATASETS = (
    DataSet(
        "cifar100",
        Settings,
        open_images,
        # Decoding is fast: the images are not JPEG files and are only enlarged.
        Published(train=50_000, classes=100, gallery=10_000),
        "https://www.cs.toronto.edu/~kriz/cifar.html (no account needed; --download fetches and unpacks it)",
        "cifar-100-binary/train.bin and test.bin",
        download,
    ),
)
