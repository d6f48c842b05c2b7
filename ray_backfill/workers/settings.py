"""Settings of embedding, training workers and the replay. Imports no Ray, because command lines are made from it."""

import os
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ray_backfill.core.errors import InputError, check_device_name, require_not_negative, require_positive


@dataclass(frozen=True)
class EmbedSettings:
    """Embedding of the images: parts, batches and number format."""

    part_rows: int = 8192
    """Images per part file. A stopped run loses at most this many images per actor."""
    batch: int = 256
    """Images per forward pass."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number format of stored embeddings. float16 halves their size and keeps three digits of each number."""
    views: int = 4
    """Stored views of each train image: the image itself, and others by the new model's training augmentation. Trained
    fits draw one at each use; everything else uses the image itself."""

    def __post_init__(self) -> None:
        require_positive(self, "embed", "part_rows", "batch", "views")

    def identity(self) -> dict[str, Any]:
        """The settings that determine the bytes of a store. float32 and a single view are left out, as in older
        manifests."""
        older = (("dtype", "float32"), ("views", 1))
        return {name: value for name, value in asdict(self).items() if (name, value) not in older}


@dataclass(frozen=True)
class EmbedActors:
    """Ray actors that embed images. On a cluster with GPUs each actor gets one, and their number is the limit."""

    number: int = 2
    """Number of embedding actors."""
    cpus: float = 1.0
    """CPUs that Ray reserves for each actor, which also decodes images in as many threads."""

    def __post_init__(self) -> None:
        require_positive(self, "actors", "number", "cpus")


@dataclass(frozen=True)
class Workers:
    """Training workers. On a cluster with GPUs each worker gets one, and their number is the limit."""

    number: int = 2
    """Number of DDP (data-parallel) workers. Without GPUs they only train backbones; maps get one CPU each."""
    cpus: float = 1.0
    """CPUs that Ray reserves for each worker, which also decodes images in as many threads."""
    max_failures: int = 3
    """Number of worker failures to recover from, each time from the last checkpoint; 0: none."""

    def __post_init__(self) -> None:
        require_positive(self, "workers", "number", "cpus")
        require_not_negative(self, "workers", "max_failures")


# Minimum number of logical CPUs of a local Ray. With fewer, the embedding actors starve Ray Data's read tasks.
_LEAST_CPUS = 4


def local_cpus() -> int:
    """Number of logical CPUs of a local Ray."""
    return max(_LEAST_CPUS, os.cpu_count() or 1)


# Size of the vectors of one shard where the number of shards is not given.
_SHARD_BYTES = 4 << 30


@dataclass(frozen=True)
class ReplayPlace:
    """Shards and device of the replay. The results are the same everywhere."""

    shards: int = 0
    """Gallery shards of the replay, one Ray actor each; 0: none unless the gallery exceeds half of the memory."""
    device: str = "cpu"
    """Device of the replay: cpu, or cuda for GPUs (one per shard)."""

    def __post_init__(self) -> None:
        if self.shards < 0:
            raise InputError(f"--shards must not be negative, got {self.shards}")
        check_device_name(self.device)

    def check_local(self) -> None:
        """Raise InputError for more shards than a local Ray will have CPUs, before it is started."""
        if not os.environ.get("RAY_ADDRESS") and self.shards > local_cpus():
            raise InputError(
                f"--shards {self.shards} needs {self.shards} CPUs, but a Ray on this machine has {local_cpus()}; "
                "lower --shards, or connect to a cluster with RAY_ADDRESS"
            )

    def shards_for(self, gallery_bytes: int) -> int:
        """Number of shards to replay over; 0: in this process. gallery_bytes: size of both columns of vectors."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return self.shards or (-(-gallery_bytes // _SHARD_BYTES) if gallery_bytes > memory / 2 else 0)


def has_more_than_cpus() -> bool:
    """Whether Ray may have a better place for a single map than this process: a cluster, or a GPU."""
    import torch

    return bool(os.environ.get("RAY_ADDRESS")) or torch.cuda.is_available()
