"""The options of each command, as dataclasses from which its command line is made."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import tyro

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.learn.methods import POLICIES, all_methods
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.recipes import PlanningSettings, Recipe
from ray_backfill.recipes.run.synthetic import SyntheticGallery
from ray_backfill.workers.settings import EmbedActors, ReplayPlace, Workers

ImagesT = TypeVar("ImagesT")


@dataclass(frozen=True, kw_only=True)
class RecipeJob(Generic[ImagesT]):
    """A run of a recipe. Every setting of the recipe can be changed; the defaults shown are the recipe's."""

    recipe: str
    """Recipe to run; --help recipes lists them."""
    data_root: Path | None
    """Folder of the images, for recipes that need files; None for the others."""
    seed: int
    """Random seed for the whole recipe."""
    out: Path
    """Folder of the run. The same command continues a run that was stopped, and reuses finished stages. With further
    methods, orders, merges or cut-offs it extends the results."""
    overwrite: bool = False
    """Delete the stages in --out that were made with other settings or data, and make them again."""
    settings: Annotated[Recipe[ImagesT], tyro.conf.arg(name="")]
    """Settings of the recipe."""
    workers: Workers
    """Training workers. On a cluster with GPUs each worker gets one, and their number is the limit."""
    actors: EmbedActors
    """Ray actors that embed images. On a cluster with GPUs each actor gets one, and their number is the limit."""
    dry_run: bool = False
    """Print what the run would need (images, steps, GPU hours, storage) and stop. Needs no published data set."""
    download: bool = False
    """Download the images into --data-root first, where the owner of the data set permits it."""
    planning: PlanningSettings = field(default_factory=PlanningSettings)


@dataclass(frozen=True, kw_only=True)
class EmbedJob(RecipeJob[ImagesT]):
    """An embedding of the images of a recipe."""

    gallery: Literal["both", "old"] = "both"
    """Models that embed the gallery: both, or old alone, for a forecast; the latter goes to OUT/before."""
    only: Path | None = None
    """File that ray-backfill sample wrote: embed only its gallery items, into OUT/sampled."""


@dataclass(frozen=True, kw_only=True)
class TrainJob(RecipeJob[ImagesT]):
    """Training of one backbone of a recipe."""

    model: str
    """Backbone to train: old, new, or another one that some methods need (advbct, bct, dsimplex, ...)."""


@dataclass(frozen=True, kw_only=True)
class SimulateJob(RecipeJob[ImagesT]):
    """A run of a whole recipe, from images to the report."""

    scale: Literal["demo", "full"] = "demo"
    """demo: run the recipe. full: draw synthetic embeddings at the size of Google Landmarks v2 instead."""
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class DrillJob(RecipeJob[ImagesT]):
    """A live backfill of a recipe's gallery, under traffic."""

    live: LiveSettings = field(default_factory=LiveSettings)


def _training_free() -> tuple[str, ...]:
    """Methods that use only the old and the new model and train nothing; a formula may be fitted."""
    plain = (m for m in all_methods().values() if m.models == ("old", "new") and m.family != POLICIES)
    return tuple(method.name for method in plain if not method.is_trained)


@dataclass(frozen=True, kw_only=True)
class ScaleJob:
    """A run on synthetic embeddings at the size of Google Landmarks v2. It shows scale, not which method is better."""

    scale: Literal["full"] = "full"
    """full: draw a synthetic gallery instead of running a recipe."""
    gallery: SyntheticGallery = field(default_factory=SyntheticGallery)
    """Synthetic gallery, by default as large as Google Landmarks v2; see docs/results/scale.md for its defaults."""
    out: Path = Path("runs/full")
    """Folder of the run. The same command continues a run that was stopped, and reuses finished stages. With further
    methods, orders, merges or cut-offs it extends the results."""
    overwrite: bool = False
    """Delete the stages in --out that were made with other settings or data, and make them again."""
    evaluation: Annotated[Evaluation, tyro.conf.arg(name="")] = field(
        default_factory=lambda: Evaluation(
            methods=_training_free(),
            orders=("random", "classifier_score", "class_mean_distance"),
            metrics=("mAP@100", "CMC@1"),
        )
    )
    fits: Annotated[FitSettings, tyro.conf.arg(name="")] = field(default_factory=FitSettings)
    workers: Workers = field(default_factory=Workers)
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")] = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class FolderJob:
    """Work on a folder of embeddings."""

    data: Path
    """Folder with gallery.parquet and, optionally, queries.parquet and train.parquet."""
    out: Path
    """Folder of the run. The same command continues a run that was stopped, and reuses finished stages. With further
    methods, orders, merges or cut-offs it extends the results."""
    overwrite: bool = False
    """Delete the stages in --out that were made with other settings or data, and make them again."""
    evaluation: Annotated[Evaluation, tyro.conf.arg(name="")] = field(default_factory=Evaluation.of_folder)
    fits: Annotated[FitSettings, tyro.conf.arg(name="")] = field(default_factory=FitSettings)
    workers: Workers = field(default_factory=Workers)


@dataclass(frozen=True, kw_only=True)
class SimulateFolderJob(FolderJob):
    """A comparison on a folder of embeddings. Methods and merges that lack data are left out, with the reason."""

    drop_broken: bool = False
    """Leave rows out that have no id or a duplicate one, or a vector that is missing, zero or not finite, instead of
    refusing the folder. OUT/cleaned then holds a copy without them, and lists them."""
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")] = field(default_factory=ReplayPlace)


@dataclass(frozen=True, kw_only=True)
class DrillFolderJob(FolderJob):
    """A live backfill on a folder of embeddings; the new embeddings come from the folder."""

    actors: EmbedActors = field(default_factory=EmbedActors)
    live: LiveSettings = field(default_factory=LiveSettings)
