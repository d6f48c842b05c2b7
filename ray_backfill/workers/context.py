"""The context of a run: where it runs, and the command that started it."""

from dataclasses import dataclass, field
from pathlib import Path

from ray_backfill.learn.training.fit import Tuned
from ray_backfill.workers.settings import EmbedActors, ReplayPlace, Workers


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
