"""How fast the backfill may go beside the queries: a limit on its rate, and a controller that moves it.

Pure: time is an argument, and nothing here waits.
"""

import math
from dataclasses import dataclass, field

from ray_backfill.errors import require_not_negative

# The rate after a window whose p99 was too high, and after one with room to spare, as a share of the one before:
# falling fast and rising slowly, a controller of this kind swings little.
_CUT, _RAISE = 0.7, 1.1
# Room to spare: the p99 is below this share of its limit.
_ROOM = 0.9
# The backfill keeps this share of its unthrottled rate however slow the queries are: it has to end some day.
_FLOOR = 0.05


@dataclass(frozen=True)
class ThrottleSettings:
    """What the backfill leaves to the queries."""

    items_per_s: float = 0.0
    """Backfill at most so many items a second; 0: no limit."""
    p99_ms: float = 0.0
    """Slow the backfill down so that 99 of 100 queries are answered within so many milliseconds; 0: off."""

    def __post_init__(self) -> None:
        require_not_negative(self, "items_per_s", "p99_ms")

    @property
    def limit(self) -> float:
        """Items a second; infinite if there is no limit."""
        return self.items_per_s or math.inf


@dataclass
class TokenBucket:
    """Lets items through at a rate: by any time t after the start at most rate * t of them.

    Saved up while idle: one second's worth. A batch may be larger than that; it is a debt that the next ones wait for,
    and changing the rate neither forgives it nor adds to it.
    """

    rate: float
    """Items a second; infinite: never waits."""
    now_s: float
    _tokens: float = field(default=0.0, init=False)

    def reserve(self, items: int, now_s: float) -> float:
        """Take these items and return for how many seconds to wait before doing them."""
        self._advance(now_s)
        if math.isinf(self.rate):
            return 0.0
        self._tokens -= items
        return max(0.0, -self._tokens / self.rate)

    def set_rate(self, rate: float, now_s: float) -> None:
        """Items a second from now on. A wait that was handed out stays as it is; what it waited for stays counted."""
        if not rate > 0:
            raise ValueError(f"a rate must be greater than 0, got {rate}")
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
    """Moves the backfill's rate so that the p99 of the queries stays below its limit; one call a window of time.

    Starts without a limit of its own; the rate measured when the p99 is first too high is where it begins to cut.
    Give it windows with a hundred queries or more: the p99 of fewer is their slowest, which says little.

    Source: D.-M. Chiu, R. Jain, "Analysis of the increase and decrease algorithms for congestion avoidance in
    computer networks" (1989).
    Deviates: the increase is multiplicative, because a step in items a second would have to know the machine.
    """

    settings: ThrottleSettings
    rate: float = field(init=False)
    """Items a second that the backfill may do now; infinite: as many as it can."""
    floor: float = field(default=0.0, init=False)
    _just_cut: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.rate = self.settings.limit

    def update(self, p99_ms: float | None, items_per_s: float) -> float:
        """The rate for the next window, from the p99 of the queries and the items backfilled a second in the last one.

        p99_ms: None if no query was due. An unanswered query counts with its deadline; a window of nothing but
        unanswered ones is not an empty one.
        """
        target = self.settings.p99_ms
        # The window after a cut still holds queries that waited behind what was let through before it.
        settling, self._just_cut = self._just_cut, False
        if not target or p99_ms is None:
            return self.rate
        if p99_ms > target and not settling:
            if not self.floor:
                if not items_per_s > 0:
                    return self.rate  # nothing is backfilled yet: the queries are slow by themselves
                self.floor = _FLOOR * items_per_s
                self.rate = min(self.rate, items_per_s)
            self.rate = max(self.rate * _CUT, self.floor)
            self._just_cut = True
        elif p99_ms < _ROOM * target and items_per_s > self.rate / 2:  # else it is not the throttle that holds it up
            self.rate = min(self.rate * _RAISE, self.settings.limit)
        return self.rate
