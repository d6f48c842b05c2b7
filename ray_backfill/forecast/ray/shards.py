"""The forecast over gallery shards in Ray actors: the driver sends thresholds and receives histograms.

Each actor reads all queries and the old embeddings of its own rows of the gallery from the folder, which all nodes must
share, and predicts their new ones. The driver has those of the known items.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray

from ray_backfill.compare.ray.actor import writable
from ray_backfill.compare.ray.shards import RemoteShards, check_shards
from ray_backfill.compare.resolve import Comparison
from ray_backfill.engine.replay import Curve, Served
from ray_backfill.forecast.counts import CountingShards
from ray_backfill.forecast.known_items import NewEmbeddings
from ray_backfill.forecast.methods import Gallery, Merged, exact_starts
from ray_backfill.forecast.ray.actor import ForecastActor
from ray_backfill.workers.session import session


@contextmanager
def gallery_in_shards(comparison: Comparison, given: NewEmbeddings, number: int) -> Iterator[Gallery]:
    """The gallery in this many actors.

    Raises:
        InputError: The cluster has too few CPUs, or a shard died.
    """
    with session():
        check_shards(number, "cpu")
        shards = RemoteShards(comparison, number, "cpu", ForecastActor, given.stand_in)
        try:
            shards.read()
            yield Gallery(
                lambda merged: CountingActors(shards, merged),
                lambda several: exact_starts(comparison, several, lambda merged: _replay_alone(shards, merged)),
            )
        finally:
            shards.cancel()


def _replay_alone(shards: RemoteShards, merged: Merged) -> Curve:
    """The curve of a method's backward system."""
    backward, _ = shards.make_systems([merged.method]).systems.at[0]
    (curves,) = shards.replay([Served(backward, backward, {"": np.arange(shards.edges[-1])}, merge=merged.merge)])
    return curves[""]


class CountingActors(CountingShards):
    """Shards in actors, for one method."""

    def __init__(self, shards: RemoteShards, merged: Merged) -> None:
        name = merged.method.name
        network, merge = shards.comparison.maps.folders.get(name), ray.put(merged.merge)
        self.shards = shards
        shards.answers([actor.make_counting.remote(name, network, merge) for actor in shards.actors])

    def ask(self, question: str, *arguments: Any) -> list[Any]:
        sent = ray.put(arguments)  # once for all shards
        answers = self.shards.answers([actor.ask.remote(question, sent) for actor in self.shards.actors])
        return [writable(answer) for answer in answers]
