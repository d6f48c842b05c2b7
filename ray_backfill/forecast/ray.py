"""The forecast over gallery shards in Ray actors: the driver sends thresholds and receives histograms.

Each actor reads all queries and the old embeddings of its own rows of the gallery from the folder, which all nodes must
share, and predicts their new ones. The driver has those of the known items.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

import numpy as np
import ray

from ray_backfill.compare.ray import RemoteShards, ShardActor, check_shards, writable
from ray_backfill.compare.resolve import Comparison
from ray_backfill.engine.replay import Served
from ray_backfill.engine.systems import IntArray
from ray_backfill.forecast.counts import Histograms
from ray_backfill.forecast.methods import Gallery, KnownItems, Starts, by_backward, forms_of, starts_of
from ray_backfill.forecast.slices import Asked, Floats32, GallerySlice, Plan, added
from ray_backfill.learn.methods import Method, find_methods
from ray_backfill.learn.models.apply import load_network
from ray_backfill.workers.session import session


@contextmanager
def gallery_in_shards(comparison: Comparison, items: KnownItems, number: int) -> Iterator[Gallery]:
    """The gallery in this many actors.

    Raises:
        InputError: The cluster has too few CPUs, or a shard died.
    """
    with session():
        check_shards(number, "cpu")
        shards = RemoteShards(comparison, number, "cpu", ForecastActor, items.stand_in)
        try:
            shards.read()
            yield Gallery(lambda method: RemoteSlices(shards, method), lambda methods: _starts(shards, methods))
        finally:
            shards.cancel()


def _starts(shards: RemoteShards, methods: Sequence[Method]) -> Mapping[str, Starts]:
    """As ``exact_starts``."""
    found: dict[str, Starts] = {}
    order = np.arange(shards.edges[-1])
    for name, those in by_backward(methods).items():
        backward, _ = shards.make_systems(find_methods((name,))).systems.at[0]
        (curves,) = shards.replay([Served(backward, backward, {"": order})])
        found |= dict.fromkeys((method.name for method in those), starts_of(curves[""], shards.comparison))
    return found


class RemoteSlices:
    """``forecast.slices.Slices`` in actors, for one method."""

    def __init__(self, shards: RemoteShards, method: Method) -> None:
        network = shards.comparison.maps.folders.get(method.name)
        self.shards = shards
        shards.answers([actor.make_slice.remote(method.name, network) for actor in shards.actors])

    def begin(self, plan: Plan) -> None:
        """See ``Slices``."""
        sent = ray.put(plan)  # once for all shards
        self.shards.answers([actor.begin.remote(sent) for actor in self.shards.actors])

    def distances(self, queries: IntArray, items: Sequence[IntArray]) -> list[Floats32]:
        """See ``Slices``."""
        sent = ray.put((queries, items))
        return added(self.shards.answers([actor.distances.remote(sent) for actor in self.shards.actors]))

    def count(self, asked: Asked) -> Histograms:
        """See ``Slices``."""
        sent = ray.put(asked)
        found = self.shards.answers([actor.count_items.remote(sent) for actor in self.shards.actors])
        together: Histograms = writable(reduce(Histograms.plus, found))
        return together


class ForecastActor(ShardActor):
    """One shard of the gallery, for one method after the other."""

    def make_slice(self, method_name: str, network: Path | None) -> None:
        """Make the systems of a method."""
        assert self.embeddings is not None
        (method,) = find_methods((method_name,))
        pair = method.pair(self.embeddings, load_network(network) if network else None)
        self.slice = GallerySlice(forms_of(method, self.embeddings, pair, self.distance), self.first)

    def begin(self, plan: Plan) -> None:
        """See ``Slices``."""
        self.slice.begin(writable(plan))

    def distances(self, asked: tuple[IntArray, Sequence[IntArray]]) -> list[Floats32]:
        """See ``Slices``."""
        return self.slice.distances(*writable(asked))

    def count_items(self, asked: Asked) -> Histograms:
        """See ``Slices``."""
        return self.slice.count(writable(asked))
