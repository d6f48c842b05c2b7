"""``ray-backfill fit``, ``embed`` and ``train``: single stages of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ray_backfill.cli import absolute, shown
from ray_backfill.cli.models import ComparedModelsJob, ModelsJob, embedded, models_options, names_models
from ray_backfill.cli.options import REQUIRED, Options
from ray_backfill.cli.runs import FolderJob, RecipeJob, check_names, prepared, recipe_options, run_options, running
from ray_backfill.core.errors import InputError


def fit_options(arguments: Sequence[str]) -> Options:
    """The options for two models, for a folder of embeddings or for a recipe."""
    if names_models(arguments):
        return models_options(ComparedModelsJob, arguments)
    return run_options(arguments, FolderJob, RecipeJob)


def run_fit(job: FolderJob | ComparedModelsJob | RecipeJob) -> None:
    """Fit, and print the paths of the networks and what was left out."""
    check_names(job)
    from ray_backfill.compare.fits import fit_folder
    from ray_backfill.recipes.run.checks import check_evaluation
    from ray_backfill.recipes.run.pipeline import embed_recipe

    if isinstance(job, FolderJob):
        data = absolute("--data", job.data)
        with running(job) as context:
            networks, left_out = fit_folder(data, job.evaluation, job.fits, context)
    elif isinstance(job, ComparedModelsJob):
        request = job.checked()
        with running(job) as context:
            networks, left_out = fit_folder(embedded(request, job, context), job.evaluation, job.fits, context)
    else:
        settings = prepared(job).settings
        check_evaluation(settings, 1)
        with running(job) as context:
            networks, left_out = fit_folder(
                embed_recipe(settings, context), settings.evaluation, settings.fits, context
            )
    for method in left_out:
        print(f"left out: {method.words} ({method.reason})")
    for name, path in networks.items():
        print(f"{name}: {shown(path)}")


@dataclass(frozen=True, kw_only=True)
class EmbedJob(RecipeJob):
    """An embedding of the images of a recipe."""

    gallery: Literal["both", "old"] = "both"
    """Models that embed the gallery: both, or old alone, for a forecast; the latter goes to OUT/before."""
    only: Path | None = None
    """File that ray-backfill sample wrote: embed only its gallery items, into OUT/sampled."""


def embed_options(arguments: Sequence[str]) -> Options:
    """The options of two models, or of a recipe."""
    return models_options(ModelsJob, arguments) if names_models(arguments) else recipe_options(EmbedJob, arguments)


def run_embed(job: EmbedJob | ModelsJob) -> None:
    """Train the backbones of a recipe if they are missing, embed, and print the path of the embeddings."""
    if isinstance(job, ModelsJob):
        request = job.checked()
        with running(job) as context:
            print(f"embeddings: {shown(embedded(request, job, context))}")
        return
    check_names(job)
    if job.only and job.gallery == "old":
        raise InputError("--only embeds gallery items by the new model; leave --gallery out")
    if job.only and not job.only.exists():
        raise InputError(f"{job.only} is missing; run: ray-backfill sample DIR --budget N")
    from ray_backfill.core.stages import read_json
    from ray_backfill.forecast.settings import SAMPLE_FILE
    from ray_backfill.recipes.run.pipeline import embed_before_backfill, embed_recipe, embed_sample

    settings = prepared(job, last_stage="embeddings").settings
    with running(job) as context:
        if job.only:
            folders = embed_sample(settings, context, job.only)
        else:
            folders = [(embed_recipe if job.gallery == "both" else embed_before_backfill)(settings, context)]
    for folder in folders:
        facts = read_json(folder / "manifest.json")
        print(f"embeddings: {shown(folder)}, {facts['images']:,} images")
        if facts["broken_images"]:
            print(f"{facts['broken_images']:,} broken images were left out; see {shown(folder / 'broken.parquet')}")
    if job.only:
        files = " ".join(str(shown(folder / "gallery.parquet")) for folder in folders)
        data, out = shown(job.only.absolute().parent), shown(job.out.absolute() / "forecast")
        elsewhere = "" if job.only.name == SAMPLE_FILE else f" --sample {shown(job.only)}"
        print(f"Then run:\n  ray-backfill forecast {data} --new {files}{elsewhere} --out {out}")
    elif job.gallery == "old":
        print(f"Then run:\n  ray-backfill sample {shown(folders[0])} --budget N")


@dataclass(frozen=True, kw_only=True)
class TrainJob(RecipeJob):
    """Training of one backbone of a recipe."""

    model: str
    """Backbone to train: old, new, or another one that some methods need (advbct, bct, dsimplex, ...)."""


def train_options(arguments: Sequence[str]) -> Options:
    """The options of a recipe, and which backbone to train."""
    return recipe_options(TrainJob, arguments, model=REQUIRED)


def run_train(job: TrainJob) -> None:
    """Train, and print the path of the backbone."""
    check_names(job)
    from ray_backfill.recipes.run.pipeline import train_recipe_backbone

    prepared(job, last_stage="backbones", model=job.model)
    with running(job) as context:
        folder = train_recipe_backbone(job.settings, job.model, context)
    print(f"backbone: {shown(folder)}")
