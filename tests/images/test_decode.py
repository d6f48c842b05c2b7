import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ray_backfill.images.decode import decode, read_inside, thumbnail
from tests.images.datasets._pictures import encode, noisy_jpeg, plain

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def quarters(size: int = 64) -> Image.Image:
    """Red and green above blue and white."""
    image = Image.new("RGB", (size, size), RED)
    half = size // 2
    image.paste(GREEN, (half, 0, size, half))
    image.paste(BLUE, (0, half, half, size))
    image.paste(WHITE, (half, half, size, size))
    return image


def corners(pixels: np.ndarray) -> list[tuple[int, ...]]:
    """Colours at a quarter and three quarters of the sides, in reading order, rounded to 0 or 255."""
    low, high = len(pixels) // 4, 3 * len(pixels) // 4
    return [tuple(np.where(pixels[y, x] > 127, 255, 0).tolist()) for y in (low, high) for x in (low, high)]


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [RED, GREEN, BLUE, WHITE]),
        (2, [GREEN, RED, WHITE, BLUE]),  # mirrored
        (3, [WHITE, BLUE, GREEN, RED]),  # upside down
        (4, [BLUE, WHITE, RED, GREEN]),
        (5, [RED, BLUE, GREEN, WHITE]),
        (6, [BLUE, RED, WHITE, GREEN]),  # to be turned clockwise: the left column becomes the top row
        (7, [WHITE, GREEN, BLUE, RED]),
        (8, [GREEN, WHITE, RED, BLUE]),
    ],
)
def test_exif_orientation(orientation: int, expected: list[tuple[int, int, int]]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert corners(decode(encode(quarters(), "JPEG", exif=exif, quality=95), 16, 3)) == expected


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_exif_orientation_of_a_wide_grey_or_cmyk_photograph(mode: str) -> None:
    """Black left, white right, twice as wide as high; turned clockwise it is black above white."""
    image = Image.new("L", (96, 48), 0)
    image.paste(255, (48, 0, 96, 48))
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(image.convert("RGB").convert(mode), "JPEG", exif=exif, quality=95)
    for channels in (1, 3):
        pixels = decode(data, 16, channels)
        assert pixels.shape == (16, 16, channels)
        assert pixels[:7].max() < 10
        assert pixels[9:].min() > 245


def test_damaged_exif_is_ignored() -> None:
    data = encode(quarters(), "JPEG", exif=b"Exif\0\0nonsense", quality=95)
    assert corners(decode(data, 16, 3)) == [RED, GREEN, BLUE, WHITE]


def test_the_whole_image_is_squeezed_not_cropped() -> None:
    wide = Image.new("RGB", (80, 20), RED)
    wide.paste(BLUE, (40, 0, 80, 20))
    assert corners(decode(encode(wide), 8, 3)) == [RED, BLUE, RED, BLUE]


RED_INK = Image.new("CMYK", (40, 40), (0, 255, 255, 0))  # magenta and yellow


@pytest.mark.parametrize(
    ("image", "channels", "colour"),
    [
        (Image.new("L", (40, 40), 100), 3, [100, 100, 100]),
        (Image.new("RGB", (40, 40), GREEN), 1, [150]),  # 0.587 * 255 (ITU-R 601)
        (RED_INK, 3, [255, 0, 0]),
        (RED_INK, 1, [76]),  # 0.299 * 255
    ],
)
def test_grey_and_colour_and_ink_become_what_is_asked_for(image: Image.Image, channels: int, colour: list[int]) -> None:
    for kind in ("JPEG",) if image.mode == "CMYK" else ("JPEG", "PNG"):
        pixels = decode(encode(image, kind, quality=95), 8, channels)
        assert pixels.shape == (8, 8, channels)
        np.testing.assert_allclose(pixels.astype(int), np.broadcast_to(colour, pixels.shape), atol=4)


def test_transparent_is_white() -> None:
    image = Image.new("RGBA", (10, 10), (0, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 5, 10))
    pixels = decode(encode(image), 10, 3)
    assert pixels[5, 1].tolist() == [0, 0, 255]
    assert pixels[5, 8].tolist() == [255, 255, 255]


def test_sixteen_bit_grey_keeps_its_range() -> None:
    image = Image.fromarray(np.full((10, 10), 0x8000, np.uint16))
    assert np.unique(decode(encode(image), 5, 1)).tolist() == [0x80]


def test_one_bit_and_palette() -> None:
    assert np.unique(decode(encode(Image.new("1", (9, 9), 1)), 9, 1)).tolist() == [255]
    assert decode(encode(Image.new("RGB", (9, 9), BLUE).quantize(4)), 9, 3)[4, 4].tolist() == [0, 0, 255]


def test_draft_does_not_blur_or_shift() -> None:
    """A large JPEG, decoded at an eighth of its size, looks as when decoded whole and averaged."""
    ramp = np.linspace(0, 255, 512).astype(np.uint8)
    image = Image.fromarray(
        np.stack([np.tile(ramp, (512, 1)), np.tile(ramp[:, None], (1, 512)), np.full((512, 512), 9)], -1).astype(
            np.uint8
        )
    )
    whole = np.asarray(image, np.float64).reshape(16, 32, 16, 32, 3).mean(axis=(1, 3))
    assert np.abs(decode(encode(image, "JPEG", quality=95), 16, 3) - whole).max() < 6


PIXELS = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "data",
    [b"", b"not an image", plain()[:40], noisy_jpeg()[:900], noisy_jpeg()[:-400]]
    # Half a picture must not pass for a whole one.
    + [cut[: len(cut) // 2] for cut in (encode(Image.fromarray(PIXELS), kind) for kind in ("PNG", "WEBP", "GIF"))]
    + [encode(Image.fromarray(PIXELS), "JPEG", progressive=True)[:1400]],
)
def test_no_whole_image_raises(data: bytes) -> None:
    for channels in (1, 3):
        with pytest.raises((OSError, SyntaxError, ValueError)):
            decode(data, 8, channels)


def test_large_jpegs_are_not_decoded_smaller_than_wanted() -> None:
    """Against the whole decoding and Pillow's plain filter; decoded at a quarter it would differ by 13 grey levels."""
    levels = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    photograph = Image.fromarray(levels).resize((256, 256), Image.Resampling.BICUBIC)
    data = encode(photograph, "JPEG", quality=95)
    found = decode(data, 64, 1)[:, :, 0].astype(int)
    whole = np.asarray(photograph.resize((64, 64), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(found - whole).mean() < 4


def decoded(uri: str) -> Image.Image:
    head, _, body = uri.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(body)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_large_image_becomes_small_and_keeps_its_shape(kind: str) -> None:
    picture = Image.fromarray(np.full((400, 800, 3), (200, 30, 30), np.uint8))
    small = decoded(thumbnail(encode(picture, kind)))
    assert (small.format, small.size) == ("JPEG", (96, 48))
    assert np.abs(np.asarray(small).mean(axis=(0, 1)) - (200, 30, 30)).max() < 6


def test_a_small_image_is_not_enlarged_and_transparent_parts_are_white() -> None:
    small = decoded(thumbnail(encode(Image.new("RGBA", (20, 10), (0, 0, 0, 0)))))
    assert small.size == (20, 10)
    assert np.asarray(small).min() > 250


def test_a_photograph_on_its_side_is_set_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decoded(thumbnail(encode(Image.new("RGB", (200, 100)), "JPEG", exif=exif))).size == (48, 96)


@pytest.mark.parametrize("content", [b"", b"no image", encode(Image.new("RGB", (50, 50)))[:60]])
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
