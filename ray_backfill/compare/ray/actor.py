"""A gallery shard in a process of its own.

Every such process imports this module, and so neither Ray Train nor torch, which only maps that are networks need: it
takes 163 MB instead of 382.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray

from ray_backfill.compare.systems import Systems, distinct_systems
from ray_backfill.core.kernels import compilation
from ray_backfill.core.progress import State, Task
from ray_backfill.data.folder import StoredSplit
from ray_backfill.engine.replay.engine import full_float32
from ray_backfill.engine.replay.prepare import Prepared
from ray_backfill.engine.replay.shard import GalleryShard, make_forms
from ray_backfill.engine.systems import RetrievalSystem
from ray_backfill.learn.methods import Embeddings, find_methods
from ray_backfill.learn.models.apply import StandInMap, load_network


class SplitRows(NamedTuple):
    """Rows first .. last - 1 of a split, and the models whose vectors are read."""

    split: StoredSplit
    first: int
    last: int
    models: tuple[str, ...]


class ShardActor:
    """One shard of the gallery, for all groups of methods one after the other."""

    def __init__(
        self, queries: SplitRows, gallery: SplitRows, distance: str, device: str, stand_in: StandInMap | None = None
    ) -> None:  # fmt: skip
        self.first, self.distance, self.stand_in = gallery.first, distance, stand_in
        self.torch_device = None if device == "cpu" else device
        self._exact = full_float32(self.torch_device)  # of this process: several blocks are answered at a time
        self._exact.__enter__()
        self.rows = queries, gallery
        self.embeddings: Embeddings | None = None
        self.systems: list[RetrievalSystem] = []
        self.shard: GalleryShard | None = None
        self.bar, self.told = Task(State("detail", "compare")), 0

    def read(self) -> None:
        """Read all queries and the shard's rows of the gallery."""
        query, gallery = (rows.split.vectors(rows.first, rows.last, rows.models) for rows in self.rows)
        if self.stand_in is not None:
            gallery |= {"new": self.stand_in(gallery["old"])}
        self.embeddings = Embeddings(query, gallery)

    def make_systems(self, networks: Mapping[str, Path | None]) -> Systems:
        """Make the systems of these methods. networks: method -> folder of its network."""
        assert self.embeddings is not None
        methods = find_methods(tuple(networks))
        maps = [load_network(folder) if folder else None for folder in networks.values()]
        pairs = [method.pair(self.embeddings, fitted) for method, fitted in zip(methods, maps, strict=True)]
        distinct = distinct_systems(methods, pairs)
        self.systems = distinct.systems
        return replace(distinct, systems=[])

    def serve(self, prepared: Prepared) -> None:
        forms = make_forms(self.systems, prepared, self.distance)
        self.shard = GalleryShard(forms, self.first, writable(prepared), self.bar.advance, self.torch_device)

    @ray.method(concurrency_group="progress")  # type: ignore[untyped-decorator]
    def compared(self) -> tuple[int, bool]:
        """How many pairs it has compared since the last call, and whether it compiles loops. Answered at once."""
        before, self.told = self.told, self.bar.done
        return self.told - before, compilation.depth > 0

    def answer(self, question: str, arguments: tuple[Any, ...]) -> Any:
        return getattr(self.shard, question)(*writable(arguments))


def writable(value: Any) -> Any:
    """Plain data with copied arrays, because compiled loops are specialised for writable arrays."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, tuple):
        return tuple(writable(part) for part in value)
    if isinstance(value, list):
        return [writable(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{field.name: writable(getattr(value, field.name)) for field in fields(value)})
    return value
