"""Thumbnails: an image file as a small data URI for a page."""

import base64
import io
from pathlib import Path

from PIL import Image, ImageOps

from ray_backfill.images.sources.decode import plain_image

# Longest side in pixels, and quality of the JPEG: about 3 kB.
SIDE, _QUALITY = 96, 75
_FORMATS = ("JPEG", "PNG", "WEBP")
# Larger files are not read.
_MOST_BYTES = 64 << 20


def thumbnail(content: bytes) -> str:
    """A JPEG of at most 96 pixels a side, upright, as a data URI; "" if the bytes are no image that Pillow can read."""
    if not 0 < len(content) <= _MOST_BYTES:
        return ""
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as file:
            file.draft("RGB", (SIDE, SIDE))  # decodes a JPEG at a fraction of its size
            file.load()
            image = plain_image(ImageOps.exif_transpose(file), "RGB")
            image.thumbnail((SIDE, SIDE), reducing_gap=3.0)
            small = io.BytesIO()
            image.save(small, "JPEG", quality=_QUALITY, optimize=True)
    except Exception:  # Pillow raises errors of many types; an item without a picture still has its name
        return ""
    return "data:image/jpeg;base64," + base64.b64encode(small.getvalue()).decode("ascii")


def read_inside(folder: Path, name: str) -> bytes:
    """The bytes of a file below ``folder``; b"" if it is missing, too large, unreadable or elsewhere.

    name: relative to ``folder``. It comes from the data, so it must not lead out of the folder.
    """
    try:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder.resolve()) or not file.is_file() or file.stat().st_size > _MOST_BYTES:
            return b""
        return file.read_bytes()
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return b""
