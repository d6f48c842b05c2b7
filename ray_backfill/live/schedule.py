"""When which queries are sent: an open loop, fixed before the first of them is answered.

A request has a scheduled time, whether or not the one before it was answered. Its latency counts from that time, not
from when it was sent at last: else a stall of the service delays the sender, too, and hides itself ("coordinated
omission").

Source: G. Tene, "How NOT to measure latency" (2013); the name and the remedy.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ray_backfill.errors import InputError, require_not_negative, require_positive
from ray_backfill.systems import IntArray

Arrivals = Literal["poisson", "constant"]

# Requests drawn at a time.
_CHUNK = 1024


@dataclass(frozen=True)
class TrafficSettings:
    """The queries that users send while the gallery is backfilled."""

    rate_per_s: float = 50.0
    """Requests a second, of all actors together; 0: no traffic."""
    batch: int = 1
    """Queries in a request."""
    arrivals: Arrivals = "poisson"
    """poisson: requests come independently of each other; constant: at equal distances."""
    popularity: float = 0.0
    """0: all queries are alike; else the exponent of a Zipf law over them, in a seeded order."""
    actors: int = 1
    """Actors that send."""
    warm_up_s: float = 3.0
    """Seconds at the start that are not counted."""
    deadline_s: float = 2.0
    """A query that is not answered so many seconds after its scheduled time counts as unanswered."""
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(self, "batch", "actors", "deadline_s")
        require_not_negative(self, "rate_per_s", "popularity", "warm_up_s", "seed")
        if self.arrivals not in get_args(Arrivals):
            raise InputError(f"TrafficSettings.arrivals must be {' or '.join(get_args(Arrivals))}, got {self.arrivals}")


@dataclass(frozen=True)
class Schedule:
    """What one of the sending actors sends, and when: endless, and the same for the same settings.

    Together the actors' streams are one of ``rate_per_s``: independent Poisson streams add up to a Poisson stream,
    constant ones are interleaved at equal distances. All actors agree on which queries are popular.

    Raises:
        InputError: there are no queries to send.
    """

    settings: TrafficSettings
    n_queries: int
    actor: int = 0

    def __post_init__(self) -> None:
        if self.n_queries < 1:
            raise InputError("traffic needs queries, and there are none; set the rate of traffic to 0")
        if not 0 <= self.actor < self.settings.actors:
            raise ValueError(f"actor {self.actor} is none of {self.settings.actors}")

    def requests(self) -> Iterator[tuple[float, IntArray]]:
        """Seconds since the start, rising, and rows of the queries (batch,). Nothing at all at rate 0."""
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
    """(n,) a uniform number in [0, 1) below the r-th bound, and not below the one before, draws rank r.

    Source: Zipf's law: the query of rank r (from 1) is asked with probability proportional to r ** -exponent.
    """
    weight = np.arange(1, n_queries + 1, dtype=np.float64) ** -exponent
    bound = np.cumsum(weight) / weight.sum()
    bound[-1] = 1.0  # rounding may leave the sum below the largest number drawn
    return bound
