"""The ImageSource of everything that is a list of image files.

Shapes: N rows of a split; B rows read; S pixels a side; C channels.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ray_backfill.datasets import SPLITS, Items, Pixels
from ray_backfill.datasets._decode import decode
from ray_backfill.datasets._files import Listing
from ray_backfill.errors import InputError

# Part of every fingerprint: raise it with any change to the decoder that changes a pixel.
_DECODER_VERSION = 1


@dataclass
class FileSource:
    """``splits_items``: the rows of each split; an id is the position of its file in ``listing``.

    ``inverted``: read dark strokes on white as bright strokes on black. ``facts``: what else the images depend on.
    """

    name: str
    listing: Listing
    splits_items: dict[str, Items]
    image_size: int
    channels: int
    facts: dict[str, Any]
    resample: Image.Resampling = Image.Resampling.LANCZOS
    inverted: bool = False
    splits: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.splits = tuple(split for split in SPLITS if split in self.splits_items)

    def items(self, split: str) -> Items:
        """The rows of ``split``. Raises InputError if there is none of that name."""
        if split not in self.splits_items:
            raise InputError(f"{self.name} has no split {split!r} here; it has: {', '.join(self.splits)}")
        return self.splits_items[split]

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Decode (B, S, S, C) uint8. A file that is gone or damaged is reported in ``broken``, its pixels zero."""
        positions_B = self.items(split).ids_N[rows]
        pixels_BSSC = np.zeros((len(positions_B), self.image_size, self.image_size, self.channels), np.uint8)
        broken = {}
        for i, position in enumerate(positions_B.tolist()):
            try:
                image_SSC = decode(self.listing.read(position), self.image_size, self.channels, self.resample)
            # Pillow and zipfile raise a dozen unrelated kinds for damaged data, and one bad file in a million must
            # not end a run; the reason is kept.
            except Exception as error:
                broken[i] = f"{self.listing.where(position)}: {_reason(error)}"
                continue
            pixels_BSSC[i] = 255 - image_SSC if self.inverted else image_SSC
        return Pixels(pixels_BSSC, broken)

    def fingerprint(self) -> dict[str, Any]:
        """Names, sizes and checksums (or times) of the files, not their pixels. The root's place does not count."""
        return {"dataset": self.name, "decoder": _DECODER_VERSION, "files": self.listing.digest(), **self.facts}


def _reason(error: Exception) -> str:
    """One line, the same every time: Pillow's own message for unknown data holds a memory address."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    return " ".join(str(error).split()) or type(error).__name__


def number_classes(classes: list[Any]) -> tuple[list[Any], NDArray[np.int64]]:
    """The distinct classes, sorted, and the (N,) int64 number of each given one among them."""
    names = sorted(set(classes))
    number = {name: i for i, name in enumerate(names)}
    return names, np.array([number[name] for name in classes], np.int64)


def facts_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings without the root: the same images in another place are the same images."""
    return {name: value for name, value in settings.items() if name != "root"}
