"""Decodes the next batches while the current one is in use."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ray_backfill.datasets import ImageSource, Pixels

Rows = NDArray[np.int64]


def read_ahead(
    source: ImageSource, split: str, batches: Iterable[Rows], threads: int = 1
) -> Iterator[tuple[Rows, Pixels]]:
    """Each batch of row numbers with its pixels, in order; ``threads`` decoders work up to two batches each ahead."""
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[tuple[Rows, Future[Pixels]]] = deque()
        for rows in batches:
            ahead.append((rows, pool.submit(source.read, split, rows)))
            if len(ahead) > 2 * threads:
                first, future = ahead.popleft()
                yield first, future.result()
        while ahead:
            first, future = ahead.popleft()
            yield first, future.result()
