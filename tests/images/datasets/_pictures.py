"""Small hand-made image files for the tests of the data sets."""

import io
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from ray_backfill.images.source import ImageSource


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(colour: tuple[int, int, int] = (200, 60, 20), size: int = 12) -> bytes:
    return encode(Image.new("RGB", (size, size), colour))


def noisy_jpeg(size: int = 64) -> bytes:
    """A JPEG whose data fills the file evenly, so that cutting it off loses pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return encode(Image.fromarray(pixels), "JPEG", quality=90)


def names(source: ImageSource, split: str) -> list[str]:
    """What the user calls each image of a split."""
    found = source.names(split, np.arange(len(source.items(split))))
    assert found is not None
    return found


def write_tree(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def write_zip(path: Path, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def drawing(row: int) -> bytes:
    """105 x 105, 1 bit: white paper with one black bar, ``row`` pixels from the top, 15 pixels thick."""
    paper = np.full((105, 105), 255, np.uint8)
    paper[row : row + 15] = 0
    return encode(Image.fromarray(paper).convert("1"))


def omniglot_zips(root: Path) -> Path:
    """Three characters of two alphabets, 20 drawers each; Greek stands in both files."""

    def character(alphabet: str, number: int, first: int) -> dict[str, bytes]:
        folder = f"{alphabet}/character{number:02d}"
        return {f"{folder}/{first:04d}_{drawer:02d}.png": drawing(4 * drawer) for drawer in range(1, 21)}

    greek = {**character("Greek", 1, 394), **character("Greek", 2, 395)}
    latin = character("Latin", 1, 683)
    for number, files in ((1, {**greek, **latin}), (2, greek)):
        top = f"images_background_small{number}"
        write_zip(root / f"omniglot_small{number}.zip", {f"{top}/{name}": data for name, data in files.items()})
    return root


def encode_photo(red: int, green: int = 30) -> bytes:
    """A JPEG file of 64 x 64 pixels of one colour."""
    return encode(Image.new("RGB", (64, 64), (red, green, 9)), "JPEG", quality=95)


def tiny_imagenet_zip(root: Path) -> Path:
    """Two classes with three photographs to train on and two others in the gallery."""
    of_class = {"n01": (100, 30), "n02": (200, 70)}
    files = {
        f"tiny_imagenet/{split}/{name}/{number}.jpg": encode_photo(*colour)
        for name, colour in of_class.items()
        for split, numbers in (("train", ("000", "001", "002")), ("gallery", ("0003", "0007")))
        for number in numbers
    }
    write_zip(root / "tiny_imagenet.zip", files)
    return root
