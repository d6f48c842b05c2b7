"""Runs of recipes: backbones, embeddings, then maps, replay and report, or a live drill. Finished stages are kept.

Folders of a run: backbones/old, backbones/new, backbones/<kind> for methods that need another one, embeddings (the data
contract), maps/<method>, results. Of a forecast or a drill: before, the state before the backfill.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray_backfill.compare.evaluation import check_memory
from ray_backfill.compare.ray.fits import for_maps
from ray_backfill.compare.ray.shards import check_shards
from ray_backfill.compare.resolve import resolve
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.schema import read_checked
from ray_backfill.core.stages import OtherSettingsError, is_finished, timed
from ray_backfill.data.folder import read_folder
from ray_backfill.drill.jobs import FromImages
from ray_backfill.drill.run import check_drill, check_room, run_resolved
from ray_backfill.drill.settings import LiveSettings
from ray_backfill.engine.index import check_index
from ray_backfill.images.datasets import open_images, pictures
from ray_backfill.learn.methods import all_backbones, models_of
from ray_backfill.learn.training.backbone_loop import training_rows
from ray_backfill.recipes import Recipe
from ray_backfill.recipes.run.backbones import BackboneJob, check_memory_of_gpus, info_of, train_backbone_stage
from ray_backfill.recipes.run.checks import check_evaluation, check_recipe, recipe_classes
from ray_backfill.recipes.run.embed import EmbedRequest, embed_stage
from ray_backfill.workers.session import all_of, placed, session
from ray_backfill.workers.settings import Context, number_of, threads_of


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
    job = _job(recipe, role, old)
    return timed(folder, lambda: train_backbone_stage(folder, job, context.workers, context.overwrite))


def _job(recipe: Recipe[Any], role: str, old: Path | None) -> BackboneJob:
    """The training of a backbone. old: folder of the old one, for kinds that need it."""
    kind = None if role in ("old", "new") else all_backbones()[role]
    old_classes, new_classes = recipe_classes(recipe)
    is_old = (kind.like if kind else role) == "old"
    model, classes = (recipe.old, old_classes) if is_old else (recipe.new, new_classes)
    title, name, backbone = role, "", model.backbone
    if kind:
        labels = int(open_images(recipe.images).items("train").labels_N.max()) + 1
        title, name, backbone = kind.title, kind.name, kind.backbone(model.backbone, labels)
    return BackboneJob(f"{title} backbone", recipe.source, classes, backbone, model.training, name, old)


def _placed(
    recipe: Recipe[Any], context: Context, to_train: Sequence[str],
    actors: Callable[[], tuple[int, bool]] | None = None, shards: Callable[[], None] | None = None,
) -> Context:  # fmt: skip
    """The context with the numbers of workers and actors that the connected cluster has room for.

    to_train: backbones that are missing. actors: how many embed beside a drill's shards. shards: checks the replay's.

    Raises:
        InputError: Something that was asked for has no room; names everything that has none.
    """
    checks = (partial(placed, context.workers), actors or partial(placed, context.actors), shards or (lambda: None))
    (n_workers, on_gpus), (n_actors, _), _ = all_of(*checks)
    for role in to_train if on_gpus else ():
        source, job, old = open_images(recipe.source), _job(recipe, role, None), _job(recipe, "old", None)
        n_rows = len(training_rows(source.items("train").labels_N, job.classes))
        check_memory_of_gpus(job, source, n_rows, n_workers, info_of(old, source) if job.kind else None)
    check_recipe(recipe, n_workers, to_train)
    workers, number = replace(context.workers, number=n_workers), replace(context.actors, number=n_actors)
    return replace(context, workers=workers, actors=number)


def _to_train(roles: Sequence[str], context: Context) -> list[str]:
    """The backbones to train. What is finished may have other settings, so --overwrite takes nothing for granted."""
    return [role for role in roles if context.overwrite or not is_finished(context.out / "backbones" / role)]


def embed_recipe(recipe: Recipe[Any], context: Context) -> Path:
    """Embed all splits with all backbones that the recipe's methods need, into ``out/embeddings``.

    Trains the backbones if they are missing.
    """
    return _embed(recipe, context, context.out / "embeddings", models_of(recipe.evaluation.named.methods))


def embed_before_backfill(recipe: Recipe[Any], context: Context) -> Path:
    """Embed all splits into ``out/before``, the gallery by the old backbone alone: what a forecast starts from."""
    return _embed(recipe, context, context.out / "before", gallery_models=("old",))


def embed_sample(recipe: Recipe[Any], context: Context, sample: Path) -> list[Path]:
    """Embed the gallery items of a sample into ``out/sampled/round-<n>``, one folder for each round of the sample.

    sample: the list that ``sample`` wrote. Rounds that are embedded stay as they are.
    """
    table = read_checked(sample, ["id", "round"])
    ids, rounds = table["id"].to_pylist(), table["round"].to_pylist()
    if not all(isinstance(item, int) for item in ids):
        raise InputError(f"{sample} lists no images of a recipe: their ids are integers")
    folders = []
    for number in sorted(set(rounds)):
        only = sorted(item for item, of_round in zip(ids, rounds, strict=True) if of_round == number)
        try:
            folders.append(_embed(recipe, context, context.out / "sampled" / f"round-{number}", only=only))
        except OtherSettingsError as error:  # other backbones would not fit the old embeddings
            why = str(error).partition(";")[0]
            raise InputError(f"{why}; repeat the options with which the old embeddings were made") from error
    return folders


def _embed(
    recipe: Recipe[Any],
    context: Context,
    folder: Path,
    roles: Sequence[str] = ("old", "new"),
    gallery_models: Sequence[str] | None = None,
    only: Sequence[int] = (),
) -> Path:
    """Embed with the backbones of these roles; trains them if they are missing."""
    to_train = _to_train(roles, context)
    has_work = to_train or not is_finished(folder)
    with session() if has_work else nullcontext():
        if has_work:
            context = _placed(recipe, context, to_train)
        models = {role: train_recipe_backbone(recipe, role, context) for role in roles}
        _, classes = recipe_classes(recipe)
        request = EmbedRequest(recipe.source, models, classes, recipe.new.training, recipe.embed, gallery_models, only)
        return timed(folder, lambda: embed_stage(folder, request, context.actors, context.overwrite))


def run_recipe(recipe: Recipe[Any], context: Context) -> Path:
    """Run everything from images to the report; returns the results folder.

    Raises:
        InputError: Settings, data or ``out`` are wrong; raised before any computation where possible.
    """
    methods, out = recipe.evaluation.named.methods, context.out
    models = models_of(methods)
    to_train = _to_train(models, context)
    check_recipe(recipe, 1, to_train)
    check_evaluation(recipe, 1)
    source = open_images(recipe.source)
    n_queries = len(source.items("queries" if "queries" in source.splits else "gallery"))
    check_memory(recipe.evaluation.named, len(methods), n_queries)
    context.place.check_local()
    stages = [out / "backbones" / model for model in models] + [out / "embeddings"]
    stages += [out / "maps" / method.name for method in methods if method.fit]
    # One Ray for all stages, because starting it takes seconds; none if everything is already finished.
    is_complete = not context.overwrite and all(is_finished(stage) for stage in stages)
    with nullcontext() if is_complete else session():
        if not is_complete:
            shards = partial(check_shards, context.place.shards, context.place.device)
            context = _placed(recipe, context, to_train, shards=shards)
            n_trained = sum(method.is_trained for method in methods)
            check_evaluation(recipe, number_of(for_maps(context.workers)) if n_trained == 1 else 1)
        embeddings = embed_recipe(recipe, context)
        shown = partial(pictures, recipe.images)
        return evaluate_folder(embeddings, recipe.evaluation, recipe.fits, context, asdict(recipe), pictures=shown)


def drill_recipe(recipe: Recipe[Any], live: LiveSettings, context: Context) -> Path:
    """Backfill a recipe's gallery for real, under traffic; returns the folder with the report.

    Raises:
        InputError: Settings, data or ``out`` are wrong; raised before any computation where possible.
    """
    method, evaluation = check_drill(recipe.evaluation, live)
    recipe, out = replace(recipe, evaluation=evaluation), context.out
    roles = models_of(evaluation.named.asked)
    to_train = _to_train(roles, context)
    check_recipe(recipe, 1, to_train)
    check_evaluation(recipe, 1)
    for settings, model in ((live.old_index, recipe.old), (live.new_index, recipe.new)):
        check_index(settings, model.backbone.dim, evaluation.distance)
    with session():
        context = _placed(recipe, context, to_train, partial(check_room, live, context.actors))
        actors = context.actors
        # Without separate queries, gallery items serve as queries, so all models embed the gallery.
        gallery_models = method.old_models if "queries" in open_images(recipe.images).splits else None
        before = _embed(recipe, context, out / "before", roles, gallery_models)
        folder = read_folder(before, roles, gallery_needs=("old",))
        _, on_gpu = check_room(live, actors)
        backbones = {role: out / "backbones" / role for role in roles}
        source = FromImages(
            recipe.images, backbones, folder.gallery.stored, recipe.embed.batch, threads_of(actors), on_gpu,
            zero_is_broken=evaluation.distance == "cosine", lent=actors.decode_cpus,
        )  # fmt: skip
        comparison = resolve(folder, evaluation.named, recipe.fits, from_images=True, to_come=roles)
        return run_resolved(comparison, method, source, recipe.fits, live, context, asdict(recipe))
