"""Decodes the bytes of an image file: to a small square of uint8, or to a thumbnail for a page.

S: pixels per side; C: channels.
"""

import base64
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

# The transposition that undoes each EXIF orientation; 1 is upright.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Thumbnails: longest side in pixels, and quality of the JPEG: about 3 kB.
SIDE, _QUALITY = 96, 75
# Larger files are not read.
_MOST_BYTES = 64 << 20


def decode(
    data: bytes, size: int, channels: int, resample: Image.Resampling = Image.Resampling.BILINEAR
) -> NDArray[np.uint8]:
    """(S, S, C) uint8: the whole image, upright, resized to a square; C is 1 (grey) or 3 (RGB).

    Transparent parts become white. Raises Pillow's errors if the data is not a complete image.
    """
    with Image.open(io.BytesIO(data)) as file:
        # Draft mode (JPEG only) decodes at 1/2, 1/4 or 1/8 of the size, but at least at 1.5 times the target size.
        file.draft("RGB" if channels == 3 else "L", (3 * size // 2, 3 * size // 2))
        file.load()
        image = plain_image(file, "RGB" if channels == 3 else "L")
        # Rotating after resizing is cheaper and gives the same result.
        image = image.resize((size, size), resample, reducing_gap=3.0)
        try:
            turn = _UPRIGHT.get(int(file.getexif().get(ExifTags.Base.Orientation, 1)))
        except Exception:  # an image with damaged EXIF data is still usable
            turn = None
    if turn is not None:
        image = image.transpose(turn)
    return np.asarray(image, np.uint8).reshape(size, size, channels)


def plain_image(image: Image.Image, mode: str) -> Image.Image:
    """Convert to ``mode``; Pillow alone would turn transparent pixels black, and 16-bit grey above 255 white."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.clip(np.asarray(image, np.int64), 0, 0xFFFF) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)


def thumbnail(content: bytes) -> str:
    """A JPEG of at most 96 pixels a side, upright, as a data URI; "" if the bytes are no image that Pillow can read."""
    if not 0 < len(content) <= _MOST_BYTES:
        return ""
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG", "WEBP")) as file:
            file.draft("RGB", (SIDE, SIDE))  # decodes a JPEG at a fraction of its size
            file.load()
            image = plain_image(ImageOps.exif_transpose(file), "RGB")
            image.thumbnail((SIDE, SIDE), reducing_gap=3.0)
            small = io.BytesIO()
            image.save(small, "JPEG", quality=_QUALITY, optimize=True)
    except Exception:  # Pillow raises errors of many types; an item without a picture still has its name
        return ""
    return "data:image/jpeg;base64," + base64.b64encode(small.getvalue()).decode("ascii")


def png(pixels_SSC: NDArray[np.uint8]) -> bytes:
    """The PNG file of decoded pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels_SSC.squeeze()).save(file, "PNG")
    return file.getvalue()


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
