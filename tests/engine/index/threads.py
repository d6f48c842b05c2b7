"""Threads that search while new versions are made."""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from ray_backfill.engine.lists import RankedLists

P = TypeVar("P")


def search_while_made(
    versions: Iterable[P], search: Callable[[P], RankedLists], threads: int
) -> list[tuple[P, RankedLists]]:
    """Return (version, search result) pairs of threads that search while later versions are made.

    Every third version is searched before the next one is made, others may be missed; the first is always searched.
    """
    answers: list[tuple[P, RankedLists]] = []
    shared: list[P] = []
    is_over = False

    def go_on() -> None:
        while not is_over:
            for version in (shared[-1], shared[0]):
                answers.append((version, search(version)))

    with ThreadPoolExecutor(threads) as pool:
        running = []
        for i, version in enumerate(versions):
            shared.append(version)
            if i == 0:
                running = [pool.submit(go_on) for _ in range(threads)]
            while i % 3 == 0 and not any(searched is version for searched, _ in list(answers)):
                if any(thread.done() for thread in running):
                    break
                time.sleep(1e-4)
        is_over = True
        for thread in running:
            thread.result()
    return answers
