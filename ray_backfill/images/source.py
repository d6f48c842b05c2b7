"""Images by row: the interface of image sources, and the source of data sets that consist of image files.

Shapes: N rows of a split; B rows read; S pixels per side; C channels.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import track
from ray_backfill.images.decode import decode

SPLITS = ("train", "gallery", "queries")
# What users call a split: their folders, and words in their manifests.
NAMES_OF = {"gallery": ("gallery", "val", "test"), "train": ("train",), "queries": ("queries", "query")}
# Part of every fingerprint: increase it whenever a change to the decoder changes pixels.
_DECODER_VERSION = 2
# Remote files fetched concurrently: each takes a round trip of tens of milliseconds and almost no work.
_FETCHERS = 16


@dataclass(frozen=True)
class Items:
    """The rows of one split, without their pixels.

    ids_N: (N,) int64, unique within the split. labels_N: (N,) int64 class of each image, -1 if unknown. groups_N: (N,)
    int64 subgroup, or None. cameras_N: (N,) int64 camera, or None; a query ignores gallery images of the same class AND
    camera. positives_N: for queries, (N,) lists of int64 ids of the right gallery images if labels do not determine
    them; otherwise None.
    """

    ids_N: NDArray[np.int64]
    labels_N: NDArray[np.int64]
    groups_N: NDArray[np.int64] | None = None
    cameras_N: NDArray[np.int64] | None = None
    positives_N: pa.ListArray | None = None

    def __len__(self) -> int:
        return len(self.ids_N)

    def take(self, rows: NDArray[np.int64]) -> "Items":
        """The rows at these positions."""
        return replace(self, **{name: values.take(rows) for name, values in vars(self).items() if values is not None})


@dataclass(frozen=True)
class Pixels:
    """A decoded batch: (B, S, S, C) uint8, and the reason for each broken image, by position in the batch.

    The pixels of a broken image are zero; callers must leave those positions out. lent_cpu_s: CPU seconds of another
    process that decoded it; None: decoded in this one.
    """

    pixels_BSSC: NDArray[np.uint8]
    broken: dict[int, str] = field(default_factory=dict)
    lent_cpu_s: float | None = None


class ImageSource(Protocol):
    """Splits of labelled images. ``splits``: the existing ones; without "queries" the gallery queries itself."""

    splits: tuple[str, ...]
    image_size: int
    channels: int

    def items(self, split: str) -> Items:
        """All rows of ``split``. Raises InputError for a split that is not in ``splits``."""

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Decode the given rows of ``split`` (positions in ``items(split)``). Never raises for a broken image."""

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        """The user's names of these images, such as paths below the root; None, as here, if they have no names."""
        return None

    def fingerprint(self) -> dict[str, Any]:
        """JSON-able: changes when any image, label or split may have changed. Cheap (no decoding)."""


def digest_items(splits_items: Mapping[str, Items]) -> str:
    """Hash of all ids, labels, groups, cameras and positives, for labels that the file names do not determine."""
    hasher = hashlib.sha256()
    for split in sorted(splits_items):
        for column in fields(Items):
            values = getattr(splits_items[split], column.name)
            hasher.update(f"{split} {column.name}\0".encode())
            if isinstance(values, pa.ListArray):
                hasher.update(values.value_lengths().to_numpy().data)
                values = values.flatten().to_numpy()
            if values is not None:
                hasher.update(np.ascontiguousarray(values).data)
    return hasher.hexdigest()


class Files(ABC):
    """Image files that are read by position, 0 .. len - 1. Picklable; holds no Python object per file.

    remote: whether each read is a network round trip, so that reading many concurrently is as fast as reading one.
    """

    remote: bool = False
    _digest: str = ""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, position: int) -> bytes:
        """The bytes of a file. Thread-safe. Raises the error of the system or the library if it cannot be read.

        Raises:
            InputError: no file can be read at all, for example without credentials.
        """

    @abstractmethod
    def name(self, position: int) -> str:
        """The path of a file below the root, separated by "/"; without credentials."""

    @abstractmethod
    def where(self, position: int) -> str:
        """The location of a file, for messages."""

    @abstractmethod
    def stamped(self) -> Iterator[str]:
        """For each file a line that changes with its name and content."""

    def digest(self) -> str:
        """Hash of the name, the size, and the modification time or checksum of every file.

        Cost: one disk access per file on the first call, none for files in an object store.
        """
        if not self._digest:
            hasher = hashlib.sha256()
            for line in track(self.stamped(), "fingerprint", "files", len(self)):
                hasher.update(line.encode())
            self._digest = hasher.hexdigest()
        return self._digest


@dataclass
class FileSource:
    """A data set of image files.

    name: the data set's name. settings: the data set's own dataclass with ``image_size``; all fields except the
    location of the images enter the fingerprint. splits_items: the rows of each split; an id is the position of its
    file in ``listing``. positions: (N,) int64 file positions of each split, if ids are not positions. facts: other
    values for the fingerprint. inverted: read dark strokes on white as bright strokes on black.
    """

    name: str
    settings: Any
    listing: Files
    splits_items: dict[str, Items]
    positions: dict[str, NDArray[np.int64]] | None = None
    channels: int = 3
    facts: dict[str, Any] = field(default_factory=dict)
    resample: Image.Resampling = Image.Resampling.BILINEAR
    inverted: bool = False
    splits: tuple[str, ...] = field(init=False)
    image_size: int = field(init=False)

    def __post_init__(self) -> None:
        self.splits = tuple(split for split in SPLITS if split in self.splits_items)
        self.image_size = self.settings.image_size

    def items(self, split: str) -> Items:
        """The rows of ``split``. Raises InputError if there is no such split."""
        if split not in self.splits_items:
            raise InputError(f"{self.name} has no split {split!r}; it has: {', '.join(self.splits)}")
        return self.splits_items[split]

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Decode (B, S, S, C) uint8. A missing or damaged file is reported in ``broken`` with zero pixels.

        Raises:
            InputError: no such split, or no file can be read at all (no credentials, no network).
        """
        positions = self._positions(split, rows)
        pixels_BSSC = np.zeros((len(positions), self.image_size, self.image_size, self.channels), np.uint8)
        broken = {}
        for i, data in enumerate(_fetch(self.listing, positions)):
            try:
                if isinstance(data, Exception):
                    raise data
                image_SSC = decode(data, self.image_size, self.channels, self.resample)
            except InputError:
                raise
            # Pillow and zipfile raise a dozen unrelated errors for damaged data, and one bad file in a million must
            # not end a run; the reason is recorded.
            except Exception as error:
                reason = " ".join(str(error).split()) or type(error).__name__
                if isinstance(error, UnidentifiedImageError):  # its message contains a memory address
                    reason = "not an image of a known format"
                broken[i] = f"{self.listing.where(positions[i])}: {reason}"
                continue
            pixels_BSSC[i] = 255 - image_SSC if self.inverted else image_SSC
        return Pixels(pixels_BSSC, broken)

    def names(self, split: str, rows: NDArray[np.int64]) -> list[str] | None:
        """Paths below the root."""
        return [self.listing.name(position) for position in self._positions(split, rows)]

    def _positions(self, split: str, rows: NDArray[np.int64]) -> list[int]:
        ids_N = self.items(split).ids_N
        positions_N = ids_N if self.positions is None else self.positions[split]
        return positions_N[rows].tolist()

    def fingerprint(self) -> dict[str, Any]:
        """Names, sizes and checksums (or times) of the files, not their pixels; independent of the root's path."""
        own = identity_of(self.settings) | self.facts
        return {"dataset": self.name, "decoder": _DECODER_VERSION, "files": self.listing.digest(), **own}


def _fetch(listing: Files, positions: list[int]) -> Iterator[bytes | Exception]:
    """Yields the bytes of each file in order, or the error if it cannot be read."""

    def fetch(position: int) -> bytes | Exception:
        try:
            return listing.read(position)
        except Exception as error:
            return error

    if not listing.remote:
        yield from map(fetch, positions)
        return
    with ThreadPoolExecutor(_FETCHERS) as pool:
        yield from pool.map(fetch, positions)


def identity_of(settings: Any) -> dict[str, Any]:
    """The settings without the location of the images, as moved images are still the same."""
    return {name: value for name, value in asdict(settings).items() if name not in ("root", "images")}
