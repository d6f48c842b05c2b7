"""The stages from images to embeddings: train the backbones, embed all splits. Finished stages are kept."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.parquet import read_checked
from ray_backfill.core.stages import OtherSettingsError, is_finished, note_facts, read_json
from ray_backfill.images.class_split import split_classes
from ray_backfill.images.datasets import open_images
from ray_backfill.learn.methods import all_backbones, models_of
from ray_backfill.recipes import Recipe
from ray_backfill.recipes.run.backbones import BackboneJob, train_backbone_stage
from ray_backfill.recipes.run.checks import check_recipe
from ray_backfill.recipes.run.embed import embed_stage
from ray_backfill.workers.context import Context


def train_recipe_backbone(recipe: Recipe[Any], role: str, context: Context) -> Path:
    """Train one of the recipe's backbones (old, new or the name of a kind) into ``out/backbones/<role>``.

    Trains the old backbone first if it is needed and missing.

    Raises:
        InputError: The role is unknown, or settings, data or ``out`` are wrong.
    """
    kind = None if role in ("old", "new") else all_backbones().get(role)
    if kind is None and role not in ("old", "new"):
        raise unknown_name("model", role, ("old", "new", *all_backbones()))
    folder = context.out / "backbones" / role
    if not is_finished(folder):
        check_recipe(recipe, 1)
    old = train_recipe_backbone(recipe, "old", context) if kind and kind.needs_old else None
    like = kind.like if kind else role
    old_classes, new_classes = recipe_classes(recipe)
    model, classes = (recipe.old, old_classes) if like == "old" else (recipe.new, new_classes)
    title = f"{kind.title if kind else role} backbone"
    name = kind.name if kind else ""
    backbone = kind.backbone(model.backbone, _labels(recipe)) if kind else model.backbone
    job = BackboneJob(title, recipe.source, classes, backbone, model.training, name, old)
    return timed(folder, lambda: train_backbone_stage(folder, job, context.workers, context.overwrite))


def embed_recipe(recipe: Recipe[Any], context: Context) -> Path:
    """Embed all splits with all backbones that the recipe's methods need, into ``out/embeddings``.

    Trains the backbones if they are missing.
    """
    roles = models_of(recipe.evaluation.find_methods())
    models = {role: train_recipe_backbone(recipe, role, context) for role in roles}
    _, new_classes = recipe_classes(recipe)
    folder, training = context.out / "embeddings", recipe.new.training
    return timed(
        folder,
        lambda: embed_stage(
            folder, recipe.source, models, new_classes, training, recipe.embed, context.actors,
            overwrite=context.overwrite,
        ),
    )  # fmt: skip


def embed_before_backfill(recipe: Recipe[Any], context: Context) -> Path:
    """Embed all splits into ``out/before``, the gallery by the old backbone alone: what a forecast starts from."""
    return _embed(recipe, context, context.out / "before", gallery_models=("old",))


def embed_sample(recipe: Recipe[Any], context: Context, sample: Path) -> list[Path]:
    """Embed the gallery items of a sample into ``out/sampled/round-<n>``, one folder for each round of the sample.

    sample: the list that ``sample`` wrote. Rounds that are embedded stay as they are.
    """
    table = read_checked(sample, ["id", "round"])
    ids, rounds = table["id"].to_pylist(), table["round"].to_pylist()
    if not all(isinstance(each, int) for each in ids):
        raise InputError(f"{sample} lists no images of a recipe: their ids are integers")
    folders = []
    for number in sorted(set(rounds)):
        only = sorted(each for each, of in zip(ids, rounds, strict=True) if of == number)
        try:
            folders.append(_embed(recipe, context, context.out / "sampled" / f"round-{number}", only=only))
        except OtherSettingsError as error:  # other backbones would not fit the old embeddings
            why = str(error).partition(";")[0]
            raise InputError(f"{why}; repeat the options with which the old embeddings were made") from error
    return folders


def _embed(recipe: Recipe[Any], context: Context, folder: Path, **options: Any) -> Path:
    """Embed with the old and the new backbone; trains them if they are missing. options: of ``embed_stage``."""
    models = {role: train_recipe_backbone(recipe, role, context) for role in ("old", "new")}
    _, new_classes = recipe_classes(recipe)
    given = recipe.source, models, new_classes, recipe.new.training, recipe.embed, context.actors
    return timed(folder, lambda: embed_stage(folder, *given, overwrite=context.overwrite, **options))


def recipe_classes(recipe: Recipe[Any]) -> tuple[list[int], list[int]]:
    """The classes of the old and of the new model."""
    train = open_images(recipe.source).items("train")
    return split_classes(train.labels_N, recipe.protocol, train.groups_N)


def _labels(recipe: Recipe[Any]) -> int:
    """Number of labels of the train split, from 0 on."""
    return int(open_images(recipe.images).items("train").labels_N.max()) + 1


def timed(folder: Path, stage: Callable[[], Path]) -> Path:
    """Run a stage and record its duration, unless it was already finished."""
    before, started = _finished(folder), time.perf_counter()
    stage()
    if before is None or _finished(folder) != before:  # finished earlier, but with other settings
        note_facts(folder, {"seconds": round(time.perf_counter() - started, 2)})
    return folder


def _finished(folder: Path) -> dict[str, Any] | None:
    """The manifest of a finished stage."""
    return read_json(folder / "manifest.json") if is_finished(folder) else None
