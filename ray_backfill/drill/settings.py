"""Settings of a live drill."""

from dataclasses import dataclass, field

from ray_backfill.core.errors import InputError, require_not_negative, require_positive
from ray_backfill.drill.operations import ChurnSettings
from ray_backfill.drill.schedule import TrafficSettings
from ray_backfill.drill.throttle import ThrottleSettings
from ray_backfill.engine.index import IndexSettings


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
