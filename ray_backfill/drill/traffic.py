"""The traffic of queries: when each request is sent, and what is recorded of it.

The schedule is an open loop, fixed before the first query is answered: each request has a scheduled time, whether or
not earlier ones have been answered. Latency counts from that time, not from the time of sending; otherwise a stall of
the service would delay the sender too and hide itself ("coordinated omission").

Each request is an event on disk, in files that belong to one incarnation of its sender. A sender whose node loses its
connection may go on sending for seconds after the driver has replaced it. So the files name the incarnation, the
journal says from when on the next one sends, and later events of earlier ones do not count. A mark says which
incarnation may still write.

Source: G. Tene, "How NOT to measure latency" (2013), for the term and the remedy.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say
from ray_backfill.core.schema import arrow_table, read_checked
from ray_backfill.core.stages import is_whole, write_whole
from ray_backfill.data.write import write_parquet
from ray_backfill.drill.journal import Journal, Started, TrafficRestarted, of_type
from ray_backfill.drill.settings import TrafficSettings
from ray_backfill.drill.tables import EventRow
from ray_backfill.engine.systems import IntArray

# Requests drawn per step.
_CHUNK = 1024
# A file of events: leg, actor and incarnation of its sender.
_NAME = re.compile(r"leg-(\d+)-(\d+)(?:\.(\d+))?-\d+\.parquet")


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


@dataclass(frozen=True)
class Sender:
    """An actor that sends requests. leg: number of its driver. incarnation: how often it was replaced before."""

    leg: int
    actor: int
    incarnation: int = 0

    def file(self, drill: Path, number: int) -> Path:
        """One of its files of events."""
        incarnation = f".{self.incarnation}" if self.incarnation else ""
        return drill / "events" / f"leg-{self.leg:03d}-{self.actor:03d}{incarnation}-{number:05d}.parquet"

    def mark(self, drill: Path) -> Path:
        """The file that names the incarnation which may write."""
        return drill / "events" / f"leg-{self.leg:03d}-{self.actor:03d}.sending"

    def begin(self, drill: Path) -> None:
        """From now on this incarnation may write events, and no other one of the same actor."""
        write_whole(self.mark(drill), lambda temporary: temporary.write_text(str(self.incarnation)))

    def end(self, drill: Path) -> None:
        """From now on no incarnation may write events."""
        self.mark(drill).unlink(missing_ok=True)

    def may_write(self, drill: Path) -> bool:
        """Whether this incarnation may write events. What cannot be read forbids nothing; what is missing does."""
        try:
            return self.mark(drill).read_text() == str(self.incarnation)
        except FileNotFoundError:
            return False
        except (OSError, InputError):
            return True


def drop_events(drill: Path, since_s: float) -> None:
    """Delete the events from this second of the drill on, and damaged files of events, which one line names."""
    files = sorted((drill / "events").glob("*.parquet"))
    if damaged := [file for file in files if not is_whole(file)]:
        say(f"{damaged[0]} is damaged ({len(damaged)} such files); the requests in them do not count")
    for file in files:
        events = None if file in damaged else read_checked(file).to_pandas()
        if events is None or not (events.scheduled_s < since_s).any():
            file.unlink()
        elif not (is_before := events.scheduled_s < since_s).all():
            write_parquet(file, pa.Table.from_pandas(events[is_before], preserve_index=False))


def read_events(drill: Path) -> pd.DataFrame:
    """All requests that count, sorted by scheduled time; empty without traffic.

    drill: the drill's folder. Returns: a frame with the columns of ``EventRow``.
    """
    entries = Journal(drill).entries()
    restarts = of_type(entries, TrafficRestarted)
    ends_s = {(restart.leg, restart.actor, restart.incarnation - 1): restart.elapsed_s for restart in restarts}
    # A driver's clock continues from the last event before it, and the journal's times are rounded.
    drivers_s = {start.leg - 1: start.elapsed_s + 0.001 for start in of_type(entries, Started)}
    frames = [arrow_table(EventRow, []).to_pandas()]
    for file in sorted((drill / "events").glob("*.parquet")):
        events, named = read_checked(file).to_pandas(), _NAME.fullmatch(file.name)
        if named:
            leg, actor, incarnation = (int(number or 0) for number in named.groups())
            end_s = min(ends_s.get((leg, actor, incarnation), np.inf), drivers_s.get(leg, np.inf))
            events = events[events.scheduled_s < end_s]
        frames.append(events)
    frames = frames[1:] or frames
    return pd.concat(frames, ignore_index=True).sort_values("scheduled_s", kind="stable", ignore_index=True)
