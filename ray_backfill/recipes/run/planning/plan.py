"""The plan of an upgrade: computation and decoding of each stage, and its storage."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ray_backfill.learn.methods import Method, all_backbones, models_of
from ray_backfill.learn.models.checkpoints import BackboneInfo
from ray_backfill.learn.training import pixels
from ray_backfill.learn.training.backbone_loop import images_per_worker
from ray_backfill.learn.training.objective import Classification
from ray_backfill.learn.training.step_cost import network_cost, step_flops
from ray_backfill.learn.training.tuning import trials_of
from ray_backfill.recipes import ModelRecipe, Recipe
from ray_backfill.recipes.run.planning.counts import Counts, ModelCounts
from ray_backfill.recipes.run.planning.settings import PlanningSettings
from ray_backfill.workers.settings import EmbedActors, Workers

STAGES = ("backbones", "embeddings", "maps")
_FLOAT_BYTES, _ID_BYTES = 4, 8
# Ray Train keeps two checkpoints while it writes a third; each has weights and momentum (SGD).
_CHECKPOINTS, _TENSORS_A_WEIGHT = 3, 2


@dataclass(frozen=True)
class Stage:
    """One stage of a run on ``gpus`` GPUs, with ``cpus`` CPUs for decoding, both in total.

    images: images seen over all epochs, each view counted (items, for maps). decoded: number of images decoded from
    files. flops: floating-point operations in total. steps: of all workers together, over all epochs; 0 if nothing is
    trained.
    """

    kind: str
    name: str
    what: str
    epochs: int
    steps: int
    images: int
    decoded: int
    flops: float
    gpus: int
    cpus: float
    settings: PlanningSettings

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU that never waits."""
        return self.flops / self.settings.flops_per_s / 3600

    @property
    def decode_hours(self) -> float:
        """Hours that all CPUs together need for decoding."""
        return self.decoded / (self.cpus * self.settings.decode_images_per_s_per_cpu) / 3600

    @property
    def hours(self) -> float:
        """Elapsed hours: decoding and computing overlap, so the slower one determines them."""
        return max(self.gpu_hours / self.gpus, self.decode_hours)

    @property
    def bottleneck(self) -> str:
        return "decoding" if self.decode_hours > self.gpu_hours / self.gpus else "GPU"


@dataclass(frozen=True)
class Stored:
    """A file or folder on disk. is_kept: False if it is deleted when its stage is finished."""

    name: str
    size_bytes: int
    is_kept: bool = True


@dataclass(frozen=True)
class Plan:
    """Estimated needs of a run; nothing is measured. models: backbone -> macs of one embedding."""

    counts: Counts
    models: dict[str, int]
    stages: tuple[Stage, ...]
    storage: tuple[Stored, ...]
    settings: PlanningSettings
    workers: Workers
    actors: EmbedActors

    @property
    def gpu_hours(self) -> float:
        return sum(stage.gpu_hours for stage in self.stages)

    @property
    def hours(self) -> float:
        return sum(stage.hours for stage in self.stages)

    @property
    def held_gpu_hours(self) -> float:
        """GPU hours that are paid for, including those in which a GPU waits for images."""
        return sum(stage.hours * stage.gpus for stage in self.stages)

    @property
    def kept_bytes(self) -> int:
        return sum(stored.size_bytes for stored in self.storage if stored.is_kept)


def plan_upgrade(
    recipe: Recipe[Any],
    counts: Counts,
    workers: Workers,
    actors: EmbedActors,
    settings: PlanningSettings | None = None,
    models: Sequence[str] | None = None,
    stages: Sequence[str] = STAGES,
) -> Plan:
    """Estimate steps, computation and storage of a recipe's stages; each worker and each actor has a GPU.

    models: the backbones; default: those that the recipe's methods need. stages: a selection of ``STAGES``.
    Not counted: the replay (on CPUs), compilation, start-up, and one pass of the old model over the images if BCT and
    RACT need class means.
    Cost: seconds; networks are built without weights.

    Raises:
        InputError: Names are unknown, or the images cannot be trained on.
    """
    settings = settings or PlanningSettings()
    methods = recipe.evaluation.find_methods()
    models = models_of(methods) if models is None else tuple(models)
    macs = {
        model: network_cost(_role(recipe, model, counts)[0].backbone, counts.channels, counts.image_size)
        for model in models
    }
    all_stages = {
        "backbones": [_backbone_stage(recipe, model, counts, workers, settings) for model in models],
        "embeddings": [_embed_stage(recipe, counts, models, actors, settings)],
        "maps": list(_map_stages(recipe, methods, counts, workers, settings)),
    }
    storage = {
        "backbones": list(_stored_backbones(recipe, counts, models)),
        "embeddings": list(_stored_embeddings(recipe, counts, models)),
        "maps": [],
    }
    return Plan(
        counts,
        {model: cost.macs for model, cost in macs.items()},
        tuple(stage for name in STAGES if name in stages for stage in all_stages[name]),
        tuple(stored for name in STAGES if name in stages for stored in storage[name]),
        settings,
        workers,
        actors,
    )


def _stored_backbones(recipe: Recipe[Any], counts: Counts, models: Sequence[str]) -> Iterator[Stored]:
    sizes = [_weights(recipe, model, counts) for model in models]
    yield Stored("finished backbones", sum(sizes))
    largest = _CHECKPOINTS * _TENSORS_A_WEIGHT * max(sizes)
    yield Stored("checkpoints of the largest backbone while it trains", largest, is_kept=False)


def _role(recipe: Recipe[Any], model: str, counts: Counts) -> tuple[ModelRecipe, str]:
    """The recipe of a backbone, and the model (old or new) whose classes it learns."""
    kind = all_backbones().get(model)
    like = kind.like if kind else model
    how = recipe.old if like == "old" else recipe.new
    return (replace(how, backbone=kind.backbone(how.backbone, counts.labels)) if kind else how), like


def _of(counts: Counts, like: str) -> ModelCounts:
    return counts.old if like == "old" else counts.new


def _info(recipe: Recipe[Any], model: str, counts: Counts) -> BackboneInfo:
    how, like = _role(recipe, model, counts)
    classes = list(range(_of(counts, like).classes))
    scale = how.training.cosine_scale
    return BackboneInfo(how.backbone, counts.channels, counts.image_size, classes, cosine_scale=scale)


def _backbone_stage(
    recipe: Recipe[Any], model: str, counts: Counts, workers: Workers, settings: PlanningSettings
) -> Stage:
    how, like = _role(recipe, model, counts)
    of = _of(counts, like)
    info, old = _info(recipe, model, counts), _info(recipe, "old", counts)
    batch = workers.number * images_per_worker(of.images, info.classes, how.training, workers.number)
    steps = of.images // batch * how.training.epochs
    kind = all_backbones().get(model)
    objective, frozen = (kind.objective, old if kind.needs_old else None) if kind else (Classification, None)
    fits_in_memory = of.images * counts.image_size**2 * counts.channels <= pixels.CACHE_BYTES // workers.number
    return Stage(
        "backbones",
        f"train {model}",
        f"{how.backbone.arch}, {of.images:,} images of {of.classes:,} classes",
        how.training.epochs,
        steps,
        steps * batch,
        # If the images fit in memory, each worker decodes all of them once.
        of.images * workers.number if fits_in_memory else steps * batch,
        step_flops(info, how.training, batch, objective, frozen) * steps,
        workers.number,
        workers.number * workers.cpus,
        settings,
    )


def _embed_stage(
    recipe: Recipe[Any], counts: Counts, models: Sequence[str], actors: EmbedActors, settings: PlanningSettings
) -> Stage:
    images, further = sum(counts.embedded.values()), _further_views(recipe, counts)
    roles = [_role(recipe, model, counts)[0] for model in models]
    macs = sum(network_cost(how.backbone, counts.channels, counts.image_size).macs for how in roles)
    verdict = recipe.old.backbone.dim * counts.old.classes  # of the old classifier
    return Stage(
        "embeddings",
        "embed",
        f"{images:,} images{f' and {further:,} further views' * (further > 0)} by {', '.join(models)}",
        1,
        0,
        images + further,
        images,
        2.0 * ((macs + verdict) * images + macs * further),
        actors.number,
        actors.number * actors.cpus,
        settings,
    )


def _further_views(recipe: Recipe[Any], counts: Counts) -> int:
    """Number of embedded views of train images, besides the images themselves."""
    return (recipe.embed.views - 1) * counts.embedded["train"]


def _map_stages(
    recipe: Recipe[Any], methods: Sequence[Method], counts: Counts, workers: Workers, settings: PlanningSettings
) -> Iterator[Stage]:
    for method in methods:
        if method.fit is None:
            continue
        dims = {model: _role(recipe, model, counts)[0].backbone.dim for model in method.models}
        of, distance = counts.new, recipe.evaluation.distance
        cost = method.fit.cost(dims, of.images, of.classes, recipe.fits, distance, workers.number)
        what = f"{of.images:,} pairs of embeddings" + ("" if cost.steps else ", a formula")
        trials = len(trials_of(method.fit.space, recipe.fits, recipe.fits.tune)) if recipe.fits.tune > 1 else 1
        stages = [("fit", 1, "")]
        if trials > 1:  # a trial costs as much as the fit with the given settings, more or less
            stages = [("tune", trials, f"{trials} trials on "), *stages]
        for name, times, prefix in stages:
            yield Stage(
                "maps",
                f"{name} {method.name}",
                prefix + what,
                cost.epochs,
                times * cost.steps,
                times * cost.items,
                0,
                times * cost.flops,
                workers.number,
                workers.number * workers.cpus,
                settings,
            )


def _weights(recipe: Recipe[Any], model: str, counts: Counts) -> int:
    """Bytes of the weights of a backbone with its classifier."""
    how, like = _role(recipe, model, counts)
    classifier = (how.backbone.dim + (how.training.cosine_scale is None)) * _of(counts, like).classes
    below = network_cost(how.backbone, counts.channels, counts.image_size).parameters
    return (below + classifier) * _FLOAT_BYTES


def _stored_embeddings(recipe: Recipe[Any], counts: Counts, models: Sequence[str]) -> Iterator[Stored]:
    numbers = sum(_role(recipe, model, counts)[0].backbone.dim for model in models)
    dtype = np.dtype(recipe.embed.dtype)
    for split, rows in counts.embedded.items():
        row_bytes = numbers * dtype.itemsize + counts.column_bytes
        yield Stored(f"embeddings/{split}.parquet, {rows:,} x {numbers} {dtype}", rows * row_bytes)
    if further := _further_views(recipe, counts):
        size = further * (numbers * dtype.itemsize + _ID_BYTES)
        yield Stored(f"embeddings/train_views.parquet, {further:,} x {numbers} {dtype}", size)
