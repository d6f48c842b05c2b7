"""CPU time of a piece of work, which other load on the machine affects less than wall time."""

import time
from collections.abc import Callable

# Minimum seconds of a run; a run has at least one call.
AT_LEAST_S = 0.3


def cpu_s(work: Callable[[], object], runs: int = 3) -> float:
    """CPU seconds per call, over all threads of this process: the minimum of some runs of one or more calls."""
    work()
    found = []
    for _ in range(runs):
        calls, since = 0, time.process_time()
        while calls == 0 or time.process_time() - since < AT_LEAST_S:
            work()
            calls += 1
        found.append((time.process_time() - since) / calls)
    return min(found)
