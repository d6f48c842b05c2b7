"""The query schedule: an open loop, fixed before the first query is answered.

Each request has a scheduled time, whether or not earlier ones have been answered. Latency counts from that time, not
from the time of sending; otherwise a stall of the service would delay the sender too and hide itself ("coordinated
omission").

Source: G. Tene, "How NOT to measure latency" (2013), for the term and the remedy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError, require_not_negative, require_positive
from ray_backfill.engine.systems import IntArray

Arrivals = Literal["poisson", "constant"]

# Requests drawn per step.
_CHUNK = 1024


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
class Schedule:
    """The endless, reproducible stream of requests of one sending actor.

    All actors together send ``rate_per_s`` requests per second: independent Poisson streams add up to a Poisson stream,
    and constant streams interleave evenly. All actors agree on which queries are popular.

    Raises:
        InputError: there are no queries to send.
    """

    settings: TrafficSettings
    n_queries: int
    actor: int = 0

    def __post_init__(self) -> None:
        if self.n_queries < 1:
            raise InputError("there are no queries to send as traffic; set --live.traffic.rate-per-s to 0")
        if not 0 <= self.actor < self.settings.actors:
            raise ValueError(f"actor must be below {self.settings.actors}, got {self.actor}")

    def requests(self) -> Iterator[tuple[float, IntArray]]:
        """Yields (seconds since the start, ascending; (batch,) query rows). Yields nothing at rate 0."""
        settings = self.settings
        if settings.rate_per_s == 0:
            return
        rng = np.random.default_rng((settings.seed, 1 + self.actor))
        query_of_rank = np.random.default_rng((settings.seed, 0)).permutation(self.n_queries)
        rank_bound = rank_bounds(self.n_queries, settings.popularity)
        gap_s = settings.actors / settings.rate_per_s
        sent, last_s = 0, 0.0
        while True:
            if settings.arrivals == "constant":
                time_s = (self.actor / settings.actors + sent + np.arange(_CHUNK)) * gap_s
            else:
                time_s = last_s + np.cumsum(rng.exponential(gap_s, _CHUNK))
            rank = np.searchsorted(rank_bound, rng.random((_CHUNK, settings.batch)), side="right")
            yield from zip(time_s.tolist(), query_of_rank[rank], strict=True)
            sent, last_s = sent + _CHUNK, float(time_s[-1])


def rank_bounds(n_queries: int, exponent: float) -> NDArray[np.float64]:
    """(n,) cumulative probabilities: a uniform number in [0, 1) draws the first rank whose bound exceeds it.

    Source: Zipf's law: the query of rank r (from 1) has a probability proportional to r ** -exponent.
    """
    weight = np.arange(1, n_queries + 1, dtype=np.float64) ** -exponent
    bound = np.cumsum(weight) / weight.sum()
    bound[-1] = 1.0  # rounding may leave the sum below the largest number drawn
    return bound
