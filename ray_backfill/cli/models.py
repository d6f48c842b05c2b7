"""Options that name two models and what they embed, and the embedding before a command's own work."""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import Run
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import IMAGE, TEXT
from ray_backfill.encode.items import ItemSettings, ItemSources
from ray_backfill.encode.kinds import parse_spec
from ray_backfill.encode.spec import Spec
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context, EmbedActors, Workers

_TYPED = {"--old", "--texts", "--images"}


@dataclass(frozen=True, kw_only=True)
class ModelsJob(Run):
    """Work on texts or images that two models embed first."""

    old: str
    """The model that serves now, such as hf:FOLDER, sentence-transformers:NAME or python:mymodels:old; docs/models.md
    lists the kinds and their options."""
    new: str
    """The model that will replace it."""
    texts: str = ""
    """Texts of the gallery: a table (a file, a database), a folder as BEIR or MTEB has it, or ir_datasets:NAME."""
    images: str = ""
    """Images of the gallery: a folder, whose subfolders are classes, a table of their paths, or tar shards."""
    queries: str = ""
    """Queries, of the same kind as the gallery. Without them, a part of the gallery is drawn."""
    train: str = ""
    """Items on which maps are fitted. Without them, a part of the gallery is drawn if queries are drawn, too."""
    items: ItemSettings = field(default_factory=ItemSettings)
    actors: EmbedActors = field(default_factory=EmbedActors)

    def checked(self) -> tuple[dict[str, Spec], ItemSources]:
        """Both models and the sources. Raises InputError for words that name neither."""
        if bool(self.texts) == bool(self.images):
            raise InputError("give --texts or --images: what the two models embed")
        specs = {name: parse_spec(getattr(self, name), f"--{name}") for name in ("old", "new")}
        modality = TEXT if self.texts else IMAGE
        return specs, ItemSources(modality, self.texts or self.images, self.queries, self.train)


@dataclass(frozen=True, kw_only=True)
class ComparedModelsJob(ModelsJob):
    """A comparison of methods between two models that embed first."""

    evaluation: Evaluation = field(default_factory=Evaluation.of_folder)
    fits: FitSettings = field(default_factory=FitSettings.of_folder)
    workers: Workers = field(default_factory=Workers)


def names_models(arguments: Sequence[str]) -> bool:
    """Whether a command line names a model, or texts or images that models embed."""
    return any(argument.split("=")[0] in _TYPED for argument in arguments)


def models_options(kind: type[ModelsJob], arguments: Sequence[str], hidden: Collection[str] = ()) -> Options:
    """The options of a command on models; --old and --new are required."""
    return Options(kind(out=Path("runs/models"), old=REQUIRED, new=REQUIRED), arguments, hidden=hidden)


def check_places(context: Context) -> None:
    """Raise InputError, before a model embeds, for all actors and shards that there is no room for."""
    place = context.place
    place.check_local()
    if place.shards and os.environ.get("RAY_ADDRESS"):
        from ray_backfill.compare.ray.shards import check_shards
        from ray_backfill.workers.session import all_of, placed, session

        with session():
            all_of(partial(placed, context.actors), partial(check_shards, place.shards, place.device))


def embedded(request: tuple[dict[str, Spec], ItemSources], job: ModelsJob, context: Context) -> Path:
    """The folder of embeddings by both models: OUT/embeddings. Finished parts are used again."""
    from ray_backfill.encode.stage import embed_two

    specs, sources = request
    check_places(context)
    return embed_two(context, specs, sources, job.items)
