"""What each job can be told: the dataclasses that its command line is made from."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import tyro

from ray_backfill.cluster.settings import EmbedActors, ReplayPlace, Workers
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.live.settings import LiveSettings
from ray_backfill.methods import all_methods
from ray_backfill.recipes import Recipe
from ray_backfill.runs.planning.settings import PlanningSettings
from ray_backfill.runs.synthetic import SyntheticGallery
from ray_backfill.training.settings import FitSettings

ImagesT = TypeVar("ImagesT")


@dataclass(frozen=True, kw_only=True)
class RecipeJob(Generic[ImagesT]):
    """A run of a recipe. Everything of the recipe can be changed; what is shown as default is the recipe's."""

    recipe: str
    """The settings to start from."""
    data_root: Path | None
    """Where the images are, for recipes that need files."""
    seed: int
    """Of everything random: it sets the seeds of the recipe."""
    out: Path
    """Folder of the run. The same folder again continues or reuses what is there."""
    settings: Annotated[Recipe[ImagesT], tyro.conf.arg(name="")]
    workers: Workers
    actors: EmbedActors
    dry_run: bool = False
    """Only say what the run would need: images, steps, GPU hours, storage. Needs no data of published data sets."""
    download: bool = False
    """Fetch the images into --data-root first, where anybody may."""
    planning: PlanningSettings = field(default_factory=PlanningSettings)


@dataclass(frozen=True, kw_only=True)
class BackboneJob(RecipeJob[ImagesT]):
    """A run that trains one backbone of a recipe."""

    model: str
    """Which one: old, new, or a kind that some method needs beside them (bct, ract, ract_hard, side)."""


@dataclass(frozen=True, kw_only=True)
class SimulateJob(RecipeJob[ImagesT]):
    """A run of a whole recipe, from images to the report."""

    mode: Literal["replay", "live"] = "replay"
    """replay: how good the service would be at every moment, exactly. live: the backfill is done, under traffic."""
    live: LiveSettings = field(default_factory=LiveSettings)
    """Of mode live."""
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")]


@dataclass(frozen=True, kw_only=True)
class LandmarkJob(SimulateJob[ImagesT]):
    """A run of a whole recipe, from images to the report; or, at full scale, of embeddings that are drawn."""

    scale: Literal["demo", "full"] = "demo"
    """demo: this. full: invented embeddings at the size of Google Landmarks v2; --scale full --help has its settings.
    """


def _training_free() -> tuple[str, ...]:
    """Methods of the old and the new model alone that are fitted by a formula, if at all."""
    return tuple(m.name for m in all_methods().values() if m.models == ("old", "new") and not m.is_trained)


@dataclass(frozen=True, kw_only=True)
class ScaleJob:
    """A run on invented embeddings at the size of Google Landmarks v2: proves scale, not which method is better."""

    scale: Literal["full"] = "full"
    gallery: SyntheticGallery = field(default_factory=SyntheticGallery)
    out: Path = Path("runs/full")
    """Folder of the run. The same folder again continues or reuses what is there."""
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
class DataJob:
    """A run on a folder of embeddings.

    All methods by default: those that lack something are left out. The default order is random: the old classifier's
    scores are seldom at hand.
    """

    data: Path
    """Folder with gallery.parquet and perhaps queries.parquet and train.parquet."""
    out: Path
    """Folder of the run. The same folder again continues or reuses what is there."""
    evaluation: Annotated[Evaluation, tyro.conf.arg(name="")] = field(
        default_factory=lambda: Evaluation(methods=("all",), orders=("random",))
    )
    fits: Annotated[FitSettings, tyro.conf.arg(name="")] = field(default_factory=FitSettings)
    workers: Workers = field(default_factory=Workers)
    actors: EmbedActors = field(default_factory=EmbedActors)
    """Where the backfill of mode live runs."""
    mode: Literal["replay", "live"] = "replay"
    """replay: how good the service would be at every moment, exactly. live: the backfill is done, under traffic."""
    live: LiveSettings = field(default_factory=LiveSettings)
    """Of mode live."""
    place: Annotated[ReplayPlace, tyro.conf.arg(name="")] = field(default_factory=ReplayPlace)
