"""A gallery shard of a forecast in a process of its own, see ``compare.ray.actor``."""

from pathlib import Path
from typing import Any

from ray_backfill.compare.ray.actor import ShardActor, writable
from ray_backfill.engine.merges import Merge
from ray_backfill.forecast.counts import CountingShard
from ray_backfill.forecast.methods import Merged, forms_of
from ray_backfill.learn.methods import find_methods
from ray_backfill.learn.models.apply import load_network


class ForecastActor(ShardActor):
    """One shard of the gallery, for one method after the other."""

    def make_counting(self, method_name: str, network: Path | None, merge: Merge) -> None:
        """Make the systems of a method."""
        assert self.embeddings is not None
        (method,) = find_methods((method_name,))
        pair = method.pair(self.embeddings, load_network(network) if network else None)
        merged = Merged(method, writable(merge))
        self.counting = CountingShard(forms_of(merged, self.embeddings, pair, self.distance), self.first)

    def ask(self, question: str, arguments: tuple[Any, ...]) -> Any:
        """Call a method of ``CountingShard``."""
        return getattr(self.counting, question)(*writable(arguments))
