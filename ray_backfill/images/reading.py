"""Reads images for those who use them: the next batches while one is in use, and a few before hours of work."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError
from ray_backfill.images import ImageSource, Pixels

Rows = NDArray[np.int64]

# Batches that are decoded beyond the one in use: what decoding may hold in memory.
_BATCHES_AHEAD = 2
# A decoder takes no fewer images at a time, but for the last: handing them over costs about as much as a small image.
_FEWEST_IMAGES = 8
# Images of a split that are tried: if half of all are broken, these are all broken once in 65,536 times.
_TRIED = 16


@dataclass
class DecodeTimes:
    """Seconds so far. decode_s: of all decoders, waiting for files and for a core included; decode_cpu_s: on a core.

    wait_s: in which nobody but the decoders had work, as the next batch was not there yet.
    """

    decode_s: float = 0.0
    decode_cpu_s: float = 0.0
    wait_s: float = 0.0


def read_ahead(
    source: ImageSource, split: str, batches: Iterable[Rows], threads: int = 1, times: DecodeTimes | None = None
) -> Iterator[tuple[Rows, Pixels]]:
    """Each batch of row numbers with its pixels, in order, while ``threads`` decoders work on the next two.

    All decoders share each batch, so that the first is there soon and memory does not grow with their number.
    times: what decoding took is added there.
    """
    times = DecodeTimes() if times is None else times
    pool = ThreadPoolExecutor(threads)
    try:
        ahead: deque[tuple[Rows, list[Future[_Decoded]]]] = deque()
        for rows in batches:
            ahead.append((rows, [pool.submit(_decode, source, split, share) for share in _shares(rows, threads)]))
            if len(ahead) > _BATCHES_AHEAD:
                yield _joined(*ahead.popleft(), times)
        while ahead:
            yield _joined(*ahead.popleft(), times)
    finally:
        # Nobody waits for what is ahead if the consumer has stopped, or a decoder has failed.
        pool.shutdown(cancel_futures=True)


# Pixels, with the seconds that decoding them took in all and on a core.
_Decoded = tuple[Pixels, float, float]


def _shares(rows: Rows, threads: int) -> list[Rows]:
    return np.array_split(rows, max(1, min(threads, len(rows) // _FEWEST_IMAGES)))


def _decode(source: ImageSource, split: str, rows: Rows) -> _Decoded:
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    pixels = source.read(split, rows)
    return pixels, time.perf_counter() - wall_s, time.thread_time() - cpu_s


def _joined(rows: Rows, futures: list[Future[_Decoded]], times: DecodeTimes) -> tuple[Rows, Pixels]:
    since = time.perf_counter()
    shares, wall_s, cpu_s = zip(*(future.result() for future in futures), strict=True)
    times.wait_s += time.perf_counter() - since
    times.decode_s += sum(wall_s)
    times.decode_cpu_s += sum(cpu_s)
    if len(shares) == 1:
        return rows, shares[0]
    firsts = np.cumsum([0, *(len(share.pixels_BSSC) for share in shares)]).tolist()
    broken = {first + i: why for first, share in zip(firsts, shares, strict=False) for i, why in share.broken.items()}
    return rows, Pixels(np.concatenate([share.pixels_BSSC for share in shares]), broken)


def require_readable(source: ImageSource) -> None:
    """Read images spread over each split, until one can be read; mostly that is the first.

    Raises:
        InputError: none of them can be read: all are missing or broken, or the store does not answer.
    """
    for split in source.splits:
        n_images = len(source.items(split))
        rows = np.unique(np.linspace(0, n_images - 1, min(_TRIED, n_images)).astype(np.int64))
        broken = source.read(split, rows[:1]).broken
        # One after the other, images that a store does not give would take minutes.
        if broken and len(source.read(split, rows[1:]).broken) == len(rows) - 1:
            raise InputError(
                f"none of {len(rows)} images of the split {split!r} that were tried can be read; the first: "
                f"{broken[0]}. Check the paths, and that the images are there"
            )
