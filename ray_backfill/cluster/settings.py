"""Where work runs on a cluster, and how a gallery is embedded. Imports no Ray: command lines are made from it."""

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ray_backfill.errors import InputError, check_device_name, require_positive


@dataclass(frozen=True)
class EmbedSettings:
    """How a gallery is embedded."""

    part_rows: int = 8192
    """Images a part file: what is lost, at most, for each actor when a run is stopped."""
    batch: int = 256
    """Images a forward pass."""
    dtype: Literal["float32", "float16"] = "float32"
    """How embeddings are stored. float16 halves the store, and keeps three digits of each number."""

    def __post_init__(self) -> None:
        require_positive(self, "part_rows", "batch")

    def identity(self) -> dict[str, Any]:
        """What decides the bytes of a store. Stores from before there was a choice of dtype are of float32."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("dtype", "float32")}


@dataclass(frozen=True)
class EmbedActors:
    """Where embedding runs. If the cluster has GPUs, each actor gets one, and there are no more actors than GPUs."""

    number: int = 2
    """Embedding actors."""
    cpus: float = 1.0
    """CPUs an actor; as many threads decode images."""

    def __post_init__(self) -> None:
        require_positive(self, "number", "cpus")


@dataclass(frozen=True)
class Workers:
    """Where training runs. If the cluster has GPUs, each worker gets one, and there are no more workers than GPUs."""

    number: int = 2
    """DDP workers."""
    cpus: float = 1.0
    """CPUs a worker."""
    max_failures: int = 3
    """So many times the loss of a worker is mended from the last checkpoint."""

    def __post_init__(self) -> None:
        require_positive(self, "number", "cpus")


# Vectors of a shard where the number of shards is not given.
_SHARD_BYTES = 4 << 30


@dataclass(frozen=True)
class ReplayPlace:
    """Where the replay runs; the results are the same everywhere."""

    shards: int = 0
    """Gallery shards, each a Ray actor. 0: this process, unless the gallery takes more than half of its memory."""
    device: str = "cpu"
    """cpu, or cuda for a GPU (each shard takes one)."""

    def __post_init__(self) -> None:
        if self.shards < 0:
            raise InputError(f"the number of shards must not be negative, got {self.shards}")
        check_device_name(self.device)

    def shards_for(self, gallery_bytes: int) -> int:
        """How many shards to replay over; 0 for this process. gallery_bytes: of both columns of vectors."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.shards or (-(-gallery_bytes // _SHARD_BYTES) if gallery_bytes > memory / 2 else 0)
