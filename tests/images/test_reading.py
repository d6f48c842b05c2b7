"""Decoding ahead: the same batches in the same order, however many decoders share them, and a bounded number ahead."""

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import image_folder
from ray_backfill.images.reading import DecodeTimes, read_ahead, require_readable
from ray_backfill.images.source import Items, Pixels
from tests.images.datasets._pictures import plain, write_tree


class Numbered:
    """Every pixel of an image is its row number; rows divisible by seven are broken."""

    splits: tuple[str, ...] = ("gallery",)
    image_size, channels = 2, 1

    def __init__(self) -> None:
        self.rows: list[int] = []

    def items(self, split: str) -> Items:
        return Items(np.arange(256), np.zeros(256, np.int64))

    def names(self, split: str, rows: NDArray[np.int64]) -> None:
        return None

    def fingerprint(self) -> dict[str, int]:
        return {}

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        self.rows += rows.tolist()
        pixels = np.tile(rows.astype(np.uint8)[:, None, None, None], (1, 2, 2, 1))
        broken = {i: f"row {row}" for i, row in enumerate(rows) if row % 7 == 0}
        pixels[list(broken)] = 0
        return Pixels(pixels, broken)


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_batches_do_not_depend_on_the_number_of_decoders(threads: int) -> None:
    rows = np.random.default_rng(0).permutation(256)
    batches = [rows[:50], rows[50:51], rows[51:200], rows[200:]]
    times = DecodeTimes()
    found = list(read_ahead(Numbered(), "gallery", batches, threads, times))
    assert len(found) == len(batches)
    for asked, (of_batch, pixels) in zip(batches, found, strict=True):
        np.testing.assert_array_equal(of_batch, asked)
        np.testing.assert_array_equal(pixels.pixels_BSSC[:, 1, 1, 0], np.where(asked % 7 == 0, 0, asked))
        assert pixels.broken == {i: f"row {row}" for i, row in enumerate(asked) if row % 7 == 0}
    assert times.decode_s > 0
    assert times.wait_s >= 0


def test_no_more_than_two_batches_are_decoded_ahead() -> None:
    source = Numbered()
    batches = [np.arange(i, i + 16) for i in range(0, 256, 16)]
    for number, _ in enumerate(read_ahead(source, "gallery", batches, threads=4), start=1):
        assert len(source.rows) <= 16 * (number + 2)


def test_nothing_more_is_decoded_once_the_consumer_stops() -> None:
    opened, begun = threading.Event(), threading.Semaphore(0)

    class Slow(Numbered):
        def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
            begun.release()
            assert rows[0] < 32 or opened.wait(20), "only the first batch is read at once"
            return super().read(split, rows)

    source, before = Slow(), threading.active_count()
    ahead = read_ahead(source, "gallery", [np.arange(i, i + 32) for i in range(0, 256, 32)], threads=2)
    next(ahead)
    assert all(begun.acquire(timeout=20) for _ in range(4)), "two decoders share each of two batches"
    threading.Timer(0.2, opened.set).start()  # closing waits for what has begun
    ahead.close()  # type: ignore[attr-defined]
    assert len(source.rows) == 64, "the third batch had not begun"
    assert threading.active_count() <= before + 1, "the timer at most"


def test_what_a_source_raises_is_raised() -> None:
    class Failing(Numbered):
        def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
            raise OSError("no such disk")

    with pytest.raises(OSError, match="no such disk"):
        list(read_ahead(Failing(), "gallery", [np.arange(20)], threads=2))


def test_one_image_that_can_be_read_is_enough_but_of_each_split(tmp_path: Path) -> None:
    write_tree(tmp_path, {f"{split}/c/{i:03d}.png": b"" for split in ("train", "val") for i in range(40)})
    source = image_folder.open_images(image_folder.Settings(str(tmp_path)))
    with pytest.raises(
        InputError, match=r"none of 16 images tried in the split 'train' .* the first: .*train/c/000\.png: not"
    ):
        require_readable(source)
    write_tree(tmp_path, {"train/c/000.png": plain((1, 2, 3))})
    with pytest.raises(InputError, match=r"none of 16 images tried in the split 'gallery'"):
        require_readable(source)
    write_tree(tmp_path, {"val/c/039.png": plain((1, 2, 3))})
    require_readable(source)


def test_a_split_of_one_broken_image(tmp_path: Path) -> None:
    write_tree(tmp_path, {"train/c/0.png": plain((1, 2, 3)), "val/c/0.png": b""})
    with pytest.raises(InputError, match="none of 1 images tried in the split 'gallery'"):
        require_readable(image_folder.open_images(image_folder.Settings(str(tmp_path))))
