"""Indexes that shards search: partitions of gallery vectors, with an exact engine or faiss. No Ray.

A partition is immutable. An update returns a new one that shares memory with it, so that any number of threads may
search while one thread updates and then swaps its reference.
"""

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import check_distance
from ray_backfill.engine.index.exact import ExactPartition
from ray_backfill.engine.index.partition import IndexSettings, Partition
from ray_backfill.engine.systems import FloatArray

__all__ = ["IndexSettings", "Partition", "check_index", "make_partition"]


def check_index(settings: IndexSettings, dim: int, distance: str, has_filter: bool = False) -> None:
    """Validate index settings without training an index or moving it to a GPU.

    has_filter: a query finds only some of the items.

    Raises:
        InputError: The distance is unknown, faiss rejects the factory string or cannot delete rows from such an index,
            the GPU does not exist or cannot search this kind, or a graph would have to filter.
    """
    check_distance(distance)
    if dim < 1:
        raise InputError(f"embeddings must have at least one dimension, got {dim}")
    if settings.kind != "exact":
        from ray_backfill.engine.index.faiss_index import describe

        if describe(settings, distance, dim).is_graph and has_filter:  # it walks over the others, and stops among them
            raise InputError(
                f"the graph {settings.kind!r} misses most items of a small part, so it cannot serve --filter; use "
                "exact, Flat, or IVF, PQ or SQ"
            )


def make_partition(settings: IndexSettings, distance: str, dim: int, train: FloatArray | None) -> Partition:
    """Make an empty partition. train: (R, d) vectors, needed by the kinds that are trained (such as IVF and PQ).

    Cost: the training.

    Raises:
        InputError: The settings are invalid as in ``check_index``, or train vectors are missing or too few.
    """
    check_index(settings, dim, distance)
    if settings.kind == "exact":
        return ExactPartition.empty(distance, dim)
    from ray_backfill.engine.index.faiss_index import make_faiss_partition

    return make_faiss_partition(settings, distance, dim, train)
