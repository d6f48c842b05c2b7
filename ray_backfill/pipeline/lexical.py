"""Text lists."""

from typing import NamedTuple

from ray_backfill.engine.systems import Floats, IntArray


class TextLists(NamedTuple):
    """The text list of each query. item: (Q, L) gallery positions, -1 behind the last. score: (Q, L), descending."""

    item: IntArray
    score: Floats
