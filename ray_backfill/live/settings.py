"""Settings of a live drill."""

from dataclasses import dataclass, field

from ray_backfill.errors import InputError, require_not_negative, require_positive
from ray_backfill.index import IndexSettings
from ray_backfill.live.operations import ChurnSettings
from ray_backfill.live.schedule import TrafficSettings
from ray_backfill.live.throttle import ThrottleSettings


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
        require_positive(self, "number", "cpus", "threads", "searches")


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
    old_index: IndexSettings = field(default_factory=IndexSettings)
    """Index of the old partition."""
    new_index: IndexSettings = field(default_factory=IndexSettings)
    """Index of the new partition."""
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    churn: ChurnSettings = field(default_factory=ChurnSettings)

    def __post_init__(self) -> None:
        require_positive(self, "part_items")
        require_not_negative(self, "quiet_s")
        if self.throttle.p99_ms and not self.traffic.rate_per_s:
            raise InputError("throttle.p99_ms needs traffic to measure; set traffic.rate_per_s above 0")
