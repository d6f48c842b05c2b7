"""The ImageSource of everything that is a list of image files.

Shapes: N rows of a split; B rows read; S pixels a side; C channels.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ray_backfill.errors import InputError
from ray_backfill.images import SPLITS, Items, Pixels
from ray_backfill.images.decode import decode

# Part of every fingerprint: raise it with any change to the decoder that changes a pixel.
_DECODER_VERSION = 2
# Remote files that are fetched at once: each costs a round trip of tens of milliseconds and next to no work.
_FETCHERS = 16


class Files(Protocol):
    """Image files that are read by position, 0 .. len - 1. Can be pickled; holds no Python object a file."""

    @property
    def remote(self) -> bool:
        """Whether each read is a round trip over a network, so that many at once take no longer than one."""

    def __len__(self) -> int: ...

    def read(self, position: int) -> bytes:
        """The bytes of one file. Raises whatever the system raises when it cannot be read; many threads may call it.

        Raises:
            InputError: no file can be read there, such as for want of credentials.
        """

    def name(self, position: int) -> str:
        """The path of one file below the root, "/" between the parts."""

    def where(self, position: int) -> str:
        """Where one file is, for messages."""

    def digest(self) -> str:
        """Changes with any name, and with the size or the time (or the checksum) of any file."""


@dataclass
class FileSource:
    """A data set of image files.

    name: of the data set. settings: the data set's own dataclass with ``image_size``; all of them but where the images
    are take part in the fingerprint. splits_items: the rows of each split; an id is the position of its file in
    ``listing``. positions: of each split, (N,) int64 the position of each row's file, where an id is something else.
    facts: what else the images depend on. inverted: read dark strokes on white as bright strokes on black.
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
        """The rows of ``split``. Raises InputError if there is none of that name."""
        if split not in self.splits_items:
            raise InputError(f"{self.name} has no split {split!r} here; it has: {', '.join(self.splits)}")
        return self.splits_items[split]

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Decode (B, S, S, C) uint8. A file that is gone or damaged is reported in ``broken``, its pixels zero.

        Raises:
            InputError: no such split; where the files are, none can be read (no credentials, no network).
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
            # Pillow and zipfile raise a dozen unrelated kinds for damaged data, and one bad file in a million must
            # not end a run; the reason is kept.
            except Exception as error:
                broken[i] = f"{self.listing.where(positions[i])}: {_reason(error)}"
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
        """Names, sizes and checksums (or times) of the files, not their pixels. The root's place does not count."""
        own = facts_of(self.settings) | self.facts
        return {"dataset": self.name, "decoder": _DECODER_VERSION, "files": self.listing.digest(), **own}


def _fetch(listing: Files, positions: list[int]) -> Iterator[bytes | Exception]:
    """The bytes of each file, in order, or why there are none."""

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


def _reason(error: Exception) -> str:
    """One line, the same every time: Pillow's own message for unknown data holds a memory address."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return " ".join(str(error).split()) or type(error).__name__


def facts_of(settings: Any) -> dict[str, Any]:
    """Settings without where the images are: the same images in another place are the same images."""
    return {name: value for name, value in asdict(settings).items() if name not in ("root", "images")}
