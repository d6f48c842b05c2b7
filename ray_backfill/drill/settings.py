"""Settings of a live drill."""

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from ray_backfill.core.errors import InputError, require_not_negative, require_positive
from ray_backfill.engine.index import IndexSettings

Arrivals = Literal["poisson", "constant"]


@dataclass(frozen=True)
class TrafficSettings:
    """User queries sent while the gallery is backfilled."""

    rate_per_s: float = 50.0
    """Requests per second over all actors; 0: no traffic."""
    batch: int = 1
    """Queries per request."""
    arrivals: Arrivals = "poisson"
    """poisson: independent arrivals; constant: evenly spaced requests."""
    popularity: float = 0.0
    """Exponent of a Zipf distribution over the queries, ranked at random; 0: all are equally likely."""
    actors: int = 1
    """Number of actors that send queries."""
    warm_up_s: float = 3.0
    """Seconds at the start that are excluded from latencies and rates."""
    deadline_s: float = 2.0
    """Seconds after its scheduled time at which a query counts as unanswered."""
    seed: int = 0
    """Random seed for the traffic: which queries are sent, and when."""

    def __post_init__(self) -> None:
        require_positive(self, "live.traffic", "batch", "actors", "deadline_s")
        require_not_negative(self, "live.traffic", "rate_per_s", "popularity", "warm_up_s", "seed")
        if self.arrivals not in get_args(Arrivals):
            known = " or ".join(get_args(Arrivals))
            raise InputError(f"--live.traffic.arrivals must be {known}, got {self.arrivals}")


@dataclass(frozen=True)
class ThrottleSettings:
    """Limits on the backfill in favour of query latency."""

    items_per_s: float = 0.0
    """Maximum number of items backfilled per second; 0: no limit."""
    p99_ms: float = 0.0
    """Target p99 query latency in milliseconds; the backfill slows down to keep it. 0: off."""

    def __post_init__(self) -> None:
        require_not_negative(self, "live.throttle", "items_per_s", "p99_ms")

    @property
    def limit(self) -> float:
        """Items per second; infinite if there is no limit."""
        return self.items_per_s or math.inf


@dataclass(frozen=True)
class ChurnSettings:
    """Other changes to the gallery while it is backfilled."""

    inserts: int = 0
    """Number of items held back at the start and inserted during the backfill, embedded by the new model only."""
    deletes: int = 0
    """Number of items deleted during the backfill, whether already backfilled or not."""
    rollback_at: float = 0.0
    """Progress (0 to 1) at which to abort the upgrade and return every item to the old model; 0: no rollback."""
    seed: int = 0
    """Random seed for churn: which items are inserted and deleted, and when."""

    def __post_init__(self) -> None:
        require_not_negative(self, "live.churn", "inserts", "deletes", "seed")
        if not 0 <= self.rollback_at <= 1:
            raise InputError(f"--live.churn.rollback-at must be between 0 and 1, got {self.rollback_at}")


@dataclass(frozen=True)
class ShardSettings:
    """The actors that serve the gallery; each owns a range of it with both partitions."""

    number: int = 2
    """Number of shards."""
    cpus: float = 0.5
    """CPUs that Ray reserves for each shard."""
    threads: int = 1
    """Threads per search. More threads speed up a single search and slow down concurrent ones."""
    searches: int = 2
    """Concurrent searches per shard."""

    def __post_init__(self) -> None:
        require_positive(self, "live.shards", "number", "cpus", "threads", "searches")


@dataclass(frozen=True)
class LiveSettings:
    """A live drill: a real backfill under query traffic, with the first order and the first merge of the evaluation."""

    method: str = "rm"
    """Upgrade method that serves the queries."""
    part_items: int = 1000
    """Number of items embedded, stored and applied together."""
    quiet_s: float = 5.0
    """Seconds of traffic without backfill, before and after it, as the baseline for its latency."""
    shards: ShardSettings = field(default_factory=ShardSettings)
    """Ray actors that serve the gallery; each owns a range of it with both partitions."""
    old_index: IndexSettings = field(default_factory=IndexSettings)
    """Index of the old partition."""
    new_index: IndexSettings = field(default_factory=IndexSettings)
    """Index of the new partition."""
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
    """User queries sent while the gallery is backfilled."""
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    """Limits on the backfill in favour of query latency."""
    churn: ChurnSettings = field(default_factory=ChurnSettings)
    """Other changes to the gallery while it is backfilled."""

    def __post_init__(self) -> None:
        require_positive(self, "live", "part_items")
        require_not_negative(self, "live", "quiet_s")
        if self.throttle.p99_ms and not self.traffic.rate_per_s:
            raise InputError("--live.throttle.p99-ms needs traffic to measure; set --live.traffic.rate-per-s above 0")
