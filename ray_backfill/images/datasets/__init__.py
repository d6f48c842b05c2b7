"""Data sets: one module each (or a package, if it needs more), found by module name.

A data set's module defines ``Settings`` (a frozen dataclass with all that a worker needs to open it again) and
``open_images(settings) -> ImageSource``. A published data set adds ``PUBLISHED`` (a ``Published`` with its full size;
also ``published(settings)`` if the size depends on the settings), ``HOME`` (where to get it, and the conditions),
``LAYOUT`` (the expected folder layout) and, if its owner allows free download, ``download(root: Path) -> Path``.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import load_plugin
from ray_backfill.images.class_split import Protocol, validation_mask
from ray_backfill.images.sources import ImageSource
from ray_backfill.images.sources.held_out import HeldOut


@dataclass(frozen=True)
class Published:
    """Official numbers of images and classes of a data set, for plans made without it. queries: 0 = none.

    decoded_per_s: images of this set that one CPU decodes to 224 x 224 per second: a conservative estimate, measured on
    synthetic pictures of the same size.
    """

    train: int
    classes: int
    gallery: int
    queries: int = 0
    decoded_per_s: float = 300.0


def dataset_module(name: str) -> ModuleType:
    """The module of a source. Raises InputError for an unknown name."""
    return load_plugin(sys.modules[__name__], name)


def dataset_name(settings: Any) -> str:
    """The name of the source that a ``Settings`` instance belongs to."""
    return type(settings).__module__.rsplit(".", 1)[-1]


def published(settings: Any) -> Published | None:
    """The size of the published data set that ``settings`` describe; None for other images."""
    module = dataset_module(dataset_name(settings))
    if hasattr(module, "published"):
        return cast(Published, module.published(settings))
    return getattr(module, "PUBLISHED", None)


class NotThereError(InputError):
    """The data set is missing, or not in its original layout. problem: the message without the remedy."""

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}. {remedy}")
        self.problem, self.remedy = problem, remedy

    def __reduce__(self) -> tuple[type["NotThereError"], tuple[str, str]]:
        """Pickle both arguments; by default an exception is rebuilt from its message only."""
        return NotThereError, (self.problem, self.remedy)


def wrong_layout(settings: Any, problem: str, where: str = "") -> NotThereError:
    """The error for a folder that is not the data set: the problem, where to get the data set, and its layout.

    problem: a clause such as "there is no folder train"; replaced if the root is empty. where: the folder to name in
    the message; default: the root.
    """
    name = dataset_name(settings)
    module = dataset_module(name)
    what = f"{problem} (in {where or settings.root!r})" if settings.root else "no root is given"
    return NotThereError(f"{name}: {what}", _where_to_get(module))


def _where_to_get(module: ModuleType) -> str:
    return f"Where to get it: {module.HOME}. How the folder must look: {module.LAYOUT}"


def require_folders(settings: Any, root: Path, folders: Iterable[str], where: str = "") -> None:
    """Raises NotThereError unless each of ``folders`` exists below ``root``. where: see ``wrong_layout``."""
    for folder in folders:
        if not settings.root or not (root / folder).is_dir():
            raise wrong_layout(settings, f"there is no folder {folder}", where)


def require_counts(settings: Any, *names: str) -> None:
    """Raises InputError if one of these fields is below 1, or the seed, if there is one, below 0."""
    for name, least in (*((name, 1) for name in names), ("seed", 0)):
        if getattr(settings, name, least) < least:
            raise InputError(
                f"{dataset_name(settings)}: {name} must be at least {least}, not {getattr(settings, name)}"
            )


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
        return Path(self.root).expanduser()


@dataclass(frozen=True)
class Divided:
    """A data set whose train images are divided into train and validation as a protocol says. images: its settings."""

    images: Any
    protocol: Protocol


@lru_cache(maxsize=4)
def open_images(settings: Any) -> ImageSource:
    """Open the source described by ``settings``: a ``Settings`` of one of these modules, or ``Divided``.

    Cached per process. There is no split "validation" if the share is too small for a single image or class.
    """
    if isinstance(settings, Divided):
        whole, protocol = open_images(settings.images), settings.protocol
        labels_N = whole.items("train").labels_N
        is_unseen = not np.isin(whole.items("gallery").labels_N, labels_N).any()
        held_N = validation_mask(labels_N, protocol, is_unseen)
        facts = {"share": protocol.validation, "of": "classes" if is_unseen else "images", "seed": protocol.seed}
        return HeldOut(whole, held_N, facts) if held_N.any() else whole
    source: ImageSource = dataset_module(dataset_name(settings)).open_images(settings)
    return source


def download(settings: Any) -> None:
    """Download the data set into ``settings.root``, unless it exists already.

    Raises:
        InputError: no root, no free download, no network, or a wrong checksum.
    """
    name = dataset_name(settings)
    module = dataset_module(name)
    if hasattr(module, "download"):
        if not settings.root:
            raise InputError(f"{name}: no root is given; set it to the folder to download to")
        module.download(Path(settings.root).expanduser())
    elif hasattr(module, "HOME"):
        raise InputError(f"{name} cannot be downloaded by a program. {_where_to_get(module)}")
    else:
        raise InputError(f"{name} has nothing to download: leave --download out")
