"""What a shard searches: partitions of gallery vectors, by an exact engine or by faiss. No Ray.

A partition never changes. An update returns a new one that shares what it can, so that any number of threads may search
while one thread updates and then swaps its reference.
"""

from ray_backfill.distances import check_distance
from ray_backfill.errors import InputError
from ray_backfill.index.exact import ExactPartition
from ray_backfill.index.partition import Found, IndexSettings, Partition
from ray_backfill.systems import FloatArray

__all__ = ["Found", "IndexSettings", "Partition", "check_index", "make_partition"]


def check_index(settings: IndexSettings, dim: int, distance: str) -> None:
    """Say early what would fail: nothing is trained or moved to a GPU.

    Raises:
        InputError: an unknown distance, a factory string that faiss refuses or whose rows cannot be deleted, a GPU that
            is not there or cannot search this kind.
    """
    check_distance(distance)
    if dim < 1:
        raise InputError(f"vectors must have at least one dimension, got {dim}")
    if settings.kind != "exact":
        from ray_backfill.index.faiss_kinds import describe  # faiss is loaded only where it is asked for

        describe(settings, distance, dim)


def make_partition(settings: IndexSettings, distance: str, dim: int, train: FloatArray | None) -> Partition:
    """An empty partition. train: (R, d) vectors, needed by the kinds that are trained (IVF, PQ and the like).

    Raises:
        InputError: what ``check_index`` says; train vectors that are missing or too few.
    Cost: the training.
    """
    check_index(settings, dim, distance)
    if settings.kind == "exact":
        return ExactPartition.empty(distance, dim)
    from ray_backfill.index.faiss_index import make_faiss_partition

    return make_faiss_partition(settings, distance, dim, train)
