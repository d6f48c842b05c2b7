"""The events of the traffic on disk: one row for each request, in files that belong to one incarnation of its sender.

A sender whose node loses its connection may go on sending for seconds after the driver has replaced it. So the files
name the incarnation, the journal says from when on the next one sends, and later events of earlier ones do not count. A
mark says which incarnation may still write.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ray_backfill.core.schema import arrow_table, read_checked
from ray_backfill.core.stages import write_whole
from ray_backfill.drill.journal import Journal, Started, TrafficRestarted, of_type
from ray_backfill.drill.tables import EventRow

_NAME = re.compile(r"leg-(\d+)-(\d+)(?:\.(\d+))?-\d+\.parquet")


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


def begin_sending(drill: Path, sender: Sender) -> None:
    """From now on this incarnation may write events, and no other one of the same actor."""
    write_whole(sender.mark(drill), lambda temporary: temporary.write_text(str(sender.incarnation)))


def end_sending(drill: Path, sender: Sender) -> None:
    """From now on no incarnation may write events."""
    sender.mark(drill).unlink(missing_ok=True)


def is_sending(drill: Path, sender: Sender) -> bool:
    """Whether this incarnation may write events. What cannot be read forbids nothing; what is missing does."""
    try:
        return sender.mark(drill).read_text() == str(sender.incarnation)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def read_events(drill: Path) -> pd.DataFrame:
    """All requests that count, sorted by scheduled time; empty without traffic.

    drill: the drill's folder. Returns: a frame with the columns of ``EventRow``.
    """
    entries = Journal(drill).entries()
    restarts = of_type(entries, TrafficRestarted)
    ends_s = {(each.leg, each.actor, each.incarnation - 1): each.elapsed_s for each in restarts}
    # A driver's clock continues from the last event before it, and the journal's times are rounded.
    drivers_s = {each.leg - 1: each.elapsed_s + 0.001 for each in of_type(entries, Started)}
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
