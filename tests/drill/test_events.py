"""Which events of the traffic count."""

from pathlib import Path

from ray_backfill.core.schema import arrow_table
from ray_backfill.data.write import write_parquet
from ray_backfill.drill.events import Sender, begin_sending, end_sending, is_sending, read_events
from ray_backfill.drill.journal import Journal, Started, TrafficRestarted
from ray_backfill.drill.tables import EventRow


def write(drill: Path, sender: Sender, *scheduled_s: float) -> None:
    events = [EventRow(s, 5.0, 1, sender.incarnation > 0, False, 0, 0, 1, 1, 1, 1) for s in scheduled_s]
    write_parquet(sender.file(drill, 0), arrow_table(EventRow, events))


def test_an_incarnation_counts_until_the_next_one_takes_over(tmp_path: Path) -> None:
    """Actor 0 was replaced after 10 s and sent until 24 s; actor 1 was not replaced."""
    Journal(tmp_path).add(Started(0.0, 0, 0.0))
    Journal(tmp_path).add(TrafficRestarted(10.0, 0, 0, 1))
    write(tmp_path, Sender(0, 0), 1.0, 9.5, 10.0, 17.0, 24.0)
    write(tmp_path, Sender(0, 0, 1), 12.0, 20.0)
    write(tmp_path, Sender(0, 1), 2.5, 21.0)
    events = read_events(tmp_path)
    assert events.scheduled_s.tolist() == [1.0, 2.5, 9.5, 12.0, 20.0, 21.0]
    assert events.is_answered.tolist() == [False, False, False, True, True, False]


def test_what_is_left_of_an_earlier_driver_does_not_count(tmp_path: Path) -> None:
    Journal(tmp_path).add(Started(0.0, 0, 0.0))
    Journal(tmp_path).add(Started(8.25, 1, 0.0))
    write(tmp_path, Sender(0, 0), 1.0, 8.25, 9.0)
    write(tmp_path, Sender(1, 0), 8.5, 9.5)
    assert read_events(tmp_path).scheduled_s.tolist() == [1.0, 8.25, 8.5, 9.5]


def test_one_incarnation_writes(tmp_path: Path) -> None:
    first, second, other = Sender(0, 3), Sender(0, 3, 1), Sender(0, 4)
    assert not is_sending(tmp_path, first)
    begin_sending(tmp_path, first)
    assert [is_sending(tmp_path, each) for each in (first, second, other)] == [True, False, False]
    begin_sending(tmp_path, second)
    assert [is_sending(tmp_path, each) for each in (first, second)] == [False, True]
    end_sending(tmp_path, second)
    end_sending(tmp_path, second)
    assert not is_sending(tmp_path, second)
