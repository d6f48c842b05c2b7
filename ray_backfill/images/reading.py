"""Reads images ahead, the next batches while one is in use, and tries a few images before hours of work."""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.engine.systems import IntArray
from ray_backfill.images.source import ImageSource, Pixels

# Batches decoded ahead of the one in use; this bounds memory.
_BATCHES_AHEAD = 2
# Minimum number of images per decoder task: handing over a task costs about as much as decoding a small image.
_FEWEST_IMAGES = 8
# Images tried per split: if half of all images are broken, all of these are broken once in 65,536 times.
_TRIED = 16


@dataclass
class DecodeTimes:
    """Seconds so far. decode_s: wall time of all decoders, waits included. decode_cpu_s: their CPU time.

    wait_s: time in which the consumer waited for the next batch. lent: images that other processes decoded; lent_s:
    their part of decode_s, with the transfer; lent_cpu_s: those processes' CPU time, no part of decode_cpu_s.
    decoded, pixel_bytes: number and size of all decoded images.
    """

    decode_s: float = 0.0
    decode_cpu_s: float = 0.0
    wait_s: float = 0.0
    decoded: int = 0
    lent: int = 0
    lent_s: float = 0.0
    lent_cpu_s: float = 0.0
    pixel_bytes: int = 0


def read_ahead(
    source: ImageSource, split: str, batches: Iterable[IntArray], threads: int = 1, times: DecodeTimes | None = None
) -> Iterator[tuple[IntArray, Pixels]]:
    """Yields each batch of row numbers with its pixels, in order, while ``threads`` decoders work on the next two.

    All decoders share each batch, so the first one is ready soon and memory does not grow with their number.
    times: the decoding times are added to it.
    """
    times = DecodeTimes() if times is None else times
    pool = ThreadPoolExecutor(threads)
    try:
        ahead: deque[tuple[IntArray, list[Future[_Decoded]]]] = deque()
        for rows in batches:
            shares = np.array_split(rows, max(1, min(threads, len(rows) // _FEWEST_IMAGES)))
            ahead.append((rows, [pool.submit(_decode, source, split, share) for share in shares]))
            if len(ahead) > _BATCHES_AHEAD:
                yield _joined(*ahead.popleft(), times)
        while ahead:
            yield _joined(*ahead.popleft(), times)
    finally:
        # Drop the batches ahead if the consumer has stopped or a decoder has failed.
        pool.shutdown(cancel_futures=True)


# Pixels, with the wall and CPU seconds of their decoding.
_Decoded = tuple[Pixels, float, float]


def _decode(source: ImageSource, split: str, rows: IntArray) -> _Decoded:
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    pixels = source.read(split, rows)
    return pixels, time.perf_counter() - wall_s, time.thread_time() - cpu_s


def _joined(rows: IntArray, futures: list[Future[_Decoded]], times: DecodeTimes) -> tuple[IntArray, Pixels]:
    since = time.perf_counter()
    shares, wall_s, cpu_s = zip(*(future.result() for future in futures), strict=True)
    times.wait_s += time.perf_counter() - since
    times.decode_s += sum(wall_s)
    times.decode_cpu_s += sum(cpu_s)
    for share, seconds in zip(shares, wall_s, strict=True):
        times.decoded += len(share.pixels_BSSC)
        times.pixel_bytes += share.pixels_BSSC.nbytes
        if share.lent_cpu_s is not None:
            times.lent += len(share.pixels_BSSC)
            times.lent_s += seconds
            times.lent_cpu_s += share.lent_cpu_s
    if len(shares) == 1:
        return rows, shares[0]
    firsts = np.cumsum([0, *(len(share.pixels_BSSC) for share in shares)]).tolist()
    broken = {first + i: why for first, share in zip(firsts, shares, strict=False) for i, why in share.broken.items()}
    return rows, Pixels(np.concatenate([share.pixels_BSSC for share in shares]), broken)


def require_readable(source: ImageSource) -> None:
    """Try images spread over each split until one can be read, usually the first.

    Raises:
        InputError: none of them can be read: all are missing or broken, or the store does not answer.
    """
    for split in source.splits:
        n_images = len(source.items(split))
        rows = np.unique(np.linspace(0, n_images - 1, min(_TRIED, n_images)).astype(np.int64))
        broken = source.read(split, rows[:1]).broken
        # Trying them one by one would take minutes if the store does not answer.
        if broken and len(source.read(split, rows[1:]).broken) == len(rows) - 1:
            raise InputError(
                f"none of {len(rows)} images tried in the split {split!r} can be read; the first: {broken[0]}. "
                "Check that the paths are right and the images exist"
            )
