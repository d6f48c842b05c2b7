"""All that a drill can be told."""

from dataclasses import dataclass, field

from ray_backfill.errors import InputError, require_not_negative, require_positive
from ray_backfill.index import IndexSettings
from ray_backfill.live.operations import ChurnSettings
from ray_backfill.live.schedule import TrafficSettings
from ray_backfill.live.throttle import ThrottleSettings


@dataclass(frozen=True)
class ShardSettings:
    """The actors that serve the gallery, each a range of it with both partitions."""

    number: int = 2
    """Shards."""
    cpus: float = 0.5
    """CPUs that Ray sets aside for each."""
    threads: int = 1
    """Threads of a search. More make one search quicker, and searches side by side slower."""
    searches: int = 2
    """Searches side by side in a shard."""

    def __post_init__(self) -> None:
        require_positive(self, "number", "cpus", "threads", "searches")


@dataclass(frozen=True)
class LiveSettings:
    """A live drill: the gallery is backfilled for real, under traffic. It takes the first order and the first merge."""

    method: str = "rm"
    """The upgrade method that serves."""
    part_items: int = 1000
    """Items that are embedded, stored and applied together."""
    quiet_s: float = 5.0
    """Seconds of traffic without any backfill, before it and after it: what its latency is compared with."""
    shards: ShardSettings = field(default_factory=ShardSettings)
    old_index: IndexSettings = field(default_factory=IndexSettings)
    """How shards index the old partition."""
    new_index: IndexSettings = field(default_factory=IndexSettings)
    """How shards index the new partition."""
    traffic: TrafficSettings = field(default_factory=TrafficSettings)
    throttle: ThrottleSettings = field(default_factory=ThrottleSettings)
    churn: ChurnSettings = field(default_factory=ChurnSettings)

    def __post_init__(self) -> None:
        require_positive(self, "part_items")
        require_not_negative(self, "quiet_s")
        if self.throttle.p99_ms and not self.traffic.rate_per_s:
            raise InputError("throttle.p99_ms needs traffic to measure; give traffic.rate_per_s")
