"""Data sets: a row of a table ``DATASETS`` in the module that defines their settings, in any distribution.

The settings are a frozen dataclass of plain values with all that a worker needs to open the images again.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.images.class_split import Divided, hold_out
from ray_backfill.images.decode import SIDE, png
from ray_backfill.images.source import ImageSource


@dataclass(frozen=True)
class Published:
    """Official numbers of images and classes of a data set, for plans made without it. queries: 0 = none."""

    train: int
    classes: int
    gallery: int
    queries: int = 0


@dataclass(frozen=True)
class DataSet:
    """A row of ``DATASETS``. name: as manifests record it. settings: its dataclass. open_images: makes the source.

    published: the full size of a published data set, or a function of the settings that returns it. home: where to get
    it, and the conditions. layout: the expected folder layout. download: fetches it into a folder, if its owner allows
    free download.
    """

    name: str
    settings: type[Any]
    open_images: Callable[[Any], ImageSource]
    published: Published | Callable[[Any], Published] | None = None
    home: str = ""
    layout: str = ""
    download: Callable[[Path], Path] | None = None

    @property
    def where_to_get(self) -> str:
        """The remedy if the data set is missing."""
        return f"Where to get it: {self.home}. How the folder must look: {self.layout}"


def dataset_of(settings: Any) -> DataSet:
    """The row of these settings. Raises InputError if the module that defines them has none."""
    module = sys.modules[type(settings).__module__]
    for row in getattr(module, "DATASETS", ()):
        if row.settings is type(settings):
            return row
    raise InputError(
        f"{module.__name__} has no row for its {type(settings).__name__}: define open_images, and "
        f"DATASETS = (DataSet(name, {type(settings).__name__}, open_images),), as docs/contributing/dataset.md says"
    )


def dataset_name(settings: Any) -> str:
    """The name of the data set that these settings describe."""
    return dataset_of(settings).name


def published(settings: Any) -> Published | None:
    """The size of the published data set that ``settings`` describe; None for other images."""
    size = dataset_of(settings).published
    return size(settings) if callable(size) else size


@lru_cache(maxsize=4)
def open_images(settings: Any) -> ImageSource:
    """Open the source described by ``settings``: those of a data set, or ``Divided``. Cached per process."""
    if isinstance(settings, Divided):
        return hold_out(open_images(settings.images), settings.protocol)
    return dataset_of(settings).open_images(settings)


def pictures(settings: Any, split: str, ids: NDArray[np.int64]) -> list[bytes]:
    """PNG files of the images with these ids, as models see them; rendered ones as large as thumbnails. b"": broken."""
    source = open_images(settings if hasattr(settings, "root") else replace(settings, image_size=SIDE))
    ids_N = source.items(split).ids_N
    ascending = np.argsort(ids_N)
    read = source.read(split, ascending[np.searchsorted(ids_N, ids, sorter=ascending)])
    return [b"" if i in read.broken else png(pixels_SSC) for i, pixels_SSC in enumerate(read.pixels_BSSC)]


def download(settings: Any) -> None:
    """Download the data set into ``settings.root``, unless it exists already.

    Raises:
        InputError: no root, no free download, no network, or a wrong checksum.
    """
    row = dataset_of(settings)
    if row.download:
        if not settings.root:
            raise InputError(f"{row.name}: no root is given; set it to the folder to download to")
        if in_store(root := path_of(settings.root).expanduser()):
            raise InputError(f"{row.name}: give a folder on a disk to download to; then copy it to {root}")
        row.download(root)
    elif row.home:
        raise InputError(f"{row.name} cannot be downloaded by a program. {row.where_to_get}")
    else:
        raise InputError(f"{row.name} has nothing to download: leave --download out")


class NotThereError(InputError):
    """The data set is missing, or not in its original layout. problem: the message without the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem, self.remedy = problem, remedy

    def __reduce__(self) -> tuple[type["NotThereError"], tuple[str, str]]:
        """Pickle both arguments; by default an exception is rebuilt from its message only."""
        return NotThereError, (self.problem, self.remedy)


def wrong_layout(settings: Any, problem: str, where: Path | str = "") -> NotThereError:
    """The error for a folder that is not the data set: the problem, where to get the data set, and its layout.

    problem: a clause such as "there is no folder train"; replaced if the root is empty. where: the folder to name in
    the message; default: the root.
    """
    row = dataset_of(settings)
    what = f"{problem} (in {str(where or settings.root)!r})" if settings.root else "no root is given"
    return NotThereError(f"{row.name}: {what}", row.where_to_get)


def require_folders(settings: Any, root: Path, folders: Iterable[str]) -> None:
    """Raises NotThereError unless each of ``folders`` exists below ``root``, which is or is in that of the settings."""
    for folder in folders:
        if not settings.root or not (root / folder).is_dir():
            raise wrong_layout(settings, f"there is no folder {folder}", root)


def require_counts(settings: Any, *names: str) -> None:
    """Raises InputError if one of these fields is below 1, or the seed, if there is one, below 0."""
    for name, least in (*((name, 1) for name in names), ("seed", 0)):
        value = getattr(settings, name, least)
        if value < least:
            raise InputError(f"{dataset_name(settings)}: {name} must be at least {least}, not {value}")


def check_own_images(settings: Any) -> None:
    """Raises InputError if the settings of the user's own images are out of range."""
    require_counts(settings, "image_size")
    name = dataset_name(settings)
    if settings.channels not in (1, 3):
        raise InputError(f"{name}: channels must be 3 (RGB) or 1 (grey), not {settings.channels}")
    if not 0 < settings.train_fraction < 1:
        raise InputError(f"{name}: train_fraction must be between 0 and 1, not {settings.train_fraction}")


@dataclass(frozen=True)
class PublishedSettings:
    """Location and image size of a published data set."""

    root: str
    """Folder with the data set as its owners distribute it."""
    image_size: int = 224
    """Pixels per side; the whole image is resized to a square."""

    def __post_init__(self) -> None:
        require_counts(self, "image_size")

    @property
    def folder(self) -> Path:
        """The root as a path."""
        return path_of(self.root).expanduser()
