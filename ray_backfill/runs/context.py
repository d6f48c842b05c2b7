"""The context of a run: where it happens, and what asked for it."""

from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.cluster.settings import EmbedActors, ReplayPlace, Workers


@dataclass(frozen=True)
class Context:
    """out: the run's folder, on storage that all nodes share. command: as it was typed, for the manifest."""

    out: Path
    workers: Workers = field(default_factory=Workers)
    actors: EmbedActors = field(default_factory=EmbedActors)
    place: ReplayPlace = field(default_factory=ReplayPlace)
    command: str = ""
