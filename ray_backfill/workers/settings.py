"""Where a run happens, and the settings of what it starts. Imports no Ray, because command lines are made from it."""

import math
import os
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ray_backfill.core.errors import InputError, check_device_name, require_not_negative, require_positive
from ray_backfill.engine.replay import check_device
from ray_backfill.learn.training.fit import Tuned


@dataclass(frozen=True)
class EmbedActors:
    """Ray actors that embed. On a cluster with GPUs each actor gets one, or a share."""

    number: int | None = None
    """Number of embedding actors; None: two, or one where there is no room for two. Results do not depend on it."""
    cpus: float = 1.0
    """CPUs that Ray reserves for each actor, which also decodes images in as many threads."""
    decode_cpus: int = 0
    """Further CPUs, of any node, that decode a recipe's images for each actor and send it the pixels."""
    gpus: float = 1.0
    """Share of a GPU for each actor, and for each shard of a drill with an index on a GPU; 0.5: two share one."""

    def __post_init__(self) -> None:
        require_positive(self, "actors", "number", "cpus")
        if not 0.01 <= self.gpus <= 1:
            raise InputError(f"--actors.gpus is a share of one GPU, from 0.01 to 1, got {self.gpus}")
        # Ray rounds to four digits: six times 0.1667 are more than one GPU.
        object.__setattr__(self, "gpus", math.floor(self.gpus * 10_000 + 1e-6) / 10_000)
        require_not_negative(self, "actors", "decode_cpus")

    def require_own_decoders(self) -> None:
        """Raise InputError where no actor can have other nodes decode."""
        if self.decode_cpus:
            raise InputError("--actors.decode-cpus works with recipes only; leave it out")

    @property
    def per_gpu(self) -> int:
        """Number of actors, or shards, that share a GPU."""
        return 10_000 // round(self.gpus * 10_000)


@dataclass(frozen=True)
class Workers:
    """Training workers. On a cluster with GPUs each worker gets one."""

    number: int | None = None
    """Number of DDP (data-parallel) workers; None: two, or one where there is no room for two. They share each batch,
    so backbones depend on it a little. Without GPUs they only train backbones; maps get one CPU each."""
    cpus: float = 1.0
    """CPUs that Ray reserves for each worker, which also decodes images in as many threads."""
    decode_cpus: int = 0
    """Further CPUs, of any node, that decode images for each worker that trains a backbone, and send the pixels."""
    max_failures: int = 3
    """Number of worker failures to recover from, each time from the last checkpoint; 0: none."""
    log_to: Literal["tensorboard", "mlflow", "wandb"] | None = None
    """Experiment tracker that also gets each epoch's metrics, of backbones and maps (docs/watching.md)."""

    def __post_init__(self) -> None:
        require_positive(self, "workers", "number", "cpus")
        require_not_negative(self, "workers", "max_failures", "decode_cpus")
        library = "tensorboardX" if self.log_to == "tensorboard" else self.log_to
        if library and find_spec(library) is None:
            raise InputError(f"--workers.log-to {self.log_to} needs: python -m pip install {library}")


def number_of(processes: EmbedActors | Workers) -> int:
    """Number of processes where there is room for them (see ``workers.session.placed``)."""
    return 2 if processes.number is None else processes.number


def threads_of(processes: EmbedActors | Workers) -> int:
    """Threads of each process that compute or decode, without those that wait for other nodes to decode."""
    return max(1, int(processes.cpus))


# Minimum number of logical CPUs of a local Ray: for a drill's shards and embedding actors, and one task.
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
        if self.shards and ":" in self.device:
            raise InputError(
                f"--device {self.device} with --shards: each shard has one GPU of its own; give --device cuda"
            )

    def check_local(self) -> None:
        """Raise InputError for more shards than a local Ray will have CPUs, before it is started, or a missing GPU."""
        if not self.shards:
            check_device(self.device)
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


@dataclass(frozen=True)
class Context:
    """Where a run happens. out: its folder, on storage that all nodes share.

    command: as typed, for the manifest. recipe: the name of its recipe; "" for a folder of embeddings.
    overwrite: replace stages in ``out`` that were made with other settings. chosen: settings of single methods that
    another run chose on its validation split; they replace the given ones.
    """

    out: Path
    workers: Workers = field(default_factory=Workers)
    actors: EmbedActors = field(default_factory=EmbedActors)
    place: ReplayPlace = field(default_factory=ReplayPlace)
    command: str = ""
    recipe: str = ""
    overwrite: bool = False
    chosen: tuple[Tuned, ...] = ()
