"""Throttling of the backfill in favour of queries: a rate limit, and a controller that adjusts it.

Pure: time is an argument, and nothing here waits.
"""

import math
from dataclasses import dataclass, field

from ray_backfill.drill.settings import ThrottleSettings

# Factor on the rate after a window whose p99 was too high, and after one with headroom. Cutting fast and raising
# slowly keeps oscillation small.
_CUT, _RAISE = 0.7, 1.1
# Headroom: the p99 is below this share of its limit.
_ROOM = 0.9
# The backfill keeps at least this share of its unthrottled rate, however slow the queries are, so that it ends.
_FLOOR = 0.05


@dataclass
class TokenBucket:
    """Limits a rate: at any time t after the start at most rate * t items have passed.

    While idle it saves up one second's worth. A batch may be larger than that and becomes a debt that later batches
    wait for; changing the rate does not change the debt.
    """

    rate: float
    """Items per second; infinite: never waits."""
    now_s: float
    _tokens: float = field(default=0.0, init=False)

    def reserve(self, items: int, now_s: float) -> float:
        """Reserve the items and return the seconds to wait before processing them."""
        self._advance(now_s)
        if math.isinf(self.rate):
            return 0.0
        self._tokens -= items
        return max(0.0, -self._tokens / self.rate)

    def set_rate(self, rate: float, now_s: float) -> None:
        """Set the rate in items per second from now on. Waits already returned stay as they are."""
        if not rate > 0:
            raise ValueError(f"rate must be greater than 0, got {rate}")
        self._advance(now_s)
        self.rate = rate

    def _advance(self, now_s: float) -> None:
        passed_s, self.now_s = max(0.0, now_s - self.now_s), max(now_s, self.now_s)
        if math.isinf(self.rate):
            self._tokens = 0.0
        else:
            self._tokens = min(self.rate, self._tokens + self.rate * passed_s)


@dataclass
class P99Controller:
    """Adjusts the backfill's rate so that the queries' p99 stays below its limit; call it once per time window.

    It starts without a limit of its own, and cuts from the rate measured when the p99 is first too high.
    Windows should hold a hundred queries or more: the p99 of fewer is just the slowest of them.

    Source: D.-M. Chiu, R. Jain, "Analysis of the increase and decrease algorithms for congestion avoidance in
    computer networks" (1989).
    Deviates: the increase is multiplicative, because a fixed step in items per second would depend on the machine.
    """

    settings: ThrottleSettings
    rate: float = field(init=False)
    """Current limit in items per second; infinite: no limit."""
    floor: float = field(default=0.0, init=False)
    _just_cut: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rate = self.settings.limit

    def update(self, p99_ms: float | None, items_per_s: float) -> float:
        """Return the rate for the next window, given the last window's query p99 and backfill rate.

        p99_ms: None if no query was due. An unanswered query counts with its deadline, so a window with only
        unanswered queries is not empty.
        """
        target = self.settings.p99_ms
        # The window after a cut still contains queries that waited behind items let through before the cut.
        settling, self._just_cut = self._just_cut, False
        if not target or p99_ms is None:
            return self.rate
        if p99_ms > target and not settling:
            if not self.floor:
                if not items_per_s > 0:
                    return self.rate  # nothing is backfilled yet, so the backfill is not what slows the queries
                self.floor = _FLOOR * items_per_s
                self.rate = min(self.rate, items_per_s)
            self.rate = max(self.rate * _CUT, self.floor)
            self._just_cut = True
        elif p99_ms < _ROOM * target and items_per_s > self.rate / 2:  # else the throttle is not the bottleneck
            self.rate = min(self.rate * _RAISE, self.settings.limit)
        return self.rate
