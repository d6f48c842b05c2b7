"""Thumbnails: small, upright, of bytes that come from anywhere."""

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ray_backfill.images.sources.thumbnails import read_inside, thumbnail


def encoded(image: Image.Image, kind: str = "PNG", **more: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def decoded(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_large_image_becomes_small_and_keeps_its_shape(kind: str) -> None:
    picture = Image.fromarray(np.full((400, 800, 3), (200, 30, 30), np.uint8))
    small = decoded(thumbnail(encoded(picture, kind)))
    assert (small.format, small.size) == ("JPEG", (96, 48))
    assert np.abs(np.asarray(small).mean(axis=(0, 1)) - (200, 30, 30)).max() < 6


def test_a_small_image_is_not_enlarged_and_transparent_parts_are_white() -> None:
    small = decoded(thumbnail(encoded(Image.new("RGBA", (20, 10), (0, 0, 0, 0)))))
    assert small.size == (20, 10)
    assert np.asarray(small).min() > 250


def test_a_photograph_on_its_side_is_set_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(thumbnail(encoded(Image.new("RGB", (200, 100)), "JPEG", exif=exif))).size == (48, 96)


@pytest.mark.parametrize("content", [b"", b"no image", encoded(Image.new("RGB", (50, 50)))[:60]])
def test_what_is_no_image_has_no_thumbnail(content: bytes) -> None:
    assert thumbnail(content) == ""


def test_only_files_below_the_folder_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / "a.png").write_bytes(b"a")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    assert read_inside(folder, "images/a.png") == b"a"
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "images", "none.png", "a\0b", ""):
        assert read_inside(folder, name) == b"", name
