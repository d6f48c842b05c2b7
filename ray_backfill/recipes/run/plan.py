"""--dry-run: what a run would need: images, steps, operations, storage. Nothing is computed, trained or decoded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ray_backfill.core.errors import unknown_name
from ray_backfill.images.class_split import split_classes
from ray_backfill.images.datasets import NotThereError, Published, open_images, published
from ray_backfill.learn.methods import all_backbones, models_of
from ray_backfill.learn.models.backbones import BackboneInfo, NetworkCost, network_cost
from ray_backfill.learn.training import batches as pixels
from ray_backfill.learn.training.backbone_loop import StepCost, images_per_worker, step_cost, training_rows
from ray_backfill.learn.training.fit import by_size, trials_of
from ray_backfill.learn.training.objective import Classification
from ray_backfill.page.numbers import amount
from ray_backfill.recipes import NO_ROOT, ModelRecipe, Recipe
from ray_backfill.recipes.run.checks import check_choices, check_evaluation, check_recipe, recipe_classes
from ray_backfill.workers.settings import Workers, number_of

STAGES = ("backbones", "embeddings", "maps")
# Bytes of a stored row besides its vectors and its name: id, label and old_class are int64; old_score, old_entropy and
# old_margin float32.
_COLUMN_BYTES = 3 * 8 + 3 * 4
_TEMPORARY = "(temporary)"


class ModelCounts(NamedTuple):
    """Training data of one model."""

    images: int
    classes: int


@dataclass(frozen=True)
class ImageCounts:
    """The images of a recipe.

    train: the whole split, with ``labels`` labels. old, new: training data of both models; the new model's are also
    embedded. column_bytes: bytes per row of the store besides its vectors. origin: source of these numbers, as text.
    is_exact: whether they are counted in the data. validation: images of train that are held out.
    """

    train: int
    labels: int
    gallery: int
    queries: int
    old: ModelCounts
    new: ModelCounts
    image_size: int
    channels: int
    column_bytes: int
    origin: str
    is_exact: bool
    validation: int = 0

    @property
    def embedded(self) -> dict[str, int]:
        """Split -> number of embedded images."""
        optional = {"queries": self.queries, "validation": self.validation}
        return {"train": self.new.images, "gallery": self.gallery} | {name: n for name, n in optional.items() if n}


def count_images(recipe: Recipe[Any]) -> ImageCounts:
    """Count the data, or use the published sizes if the data are missing.

    Raises:
        InputError: The data are damaged, or missing and their size is not published; or settings or protocol do not fit
            the data.
    """
    try:
        source = open_images(recipe.source)
    except NotThereError as error:
        if (size := published(recipe.images)) is None:
            raise
        reason = "no --data-root is given" if recipe.images.root == str(NO_ROOT) else error.problem
        return _as_published(recipe, size, reason)
    train, gallery = source.items("train"), source.items("gallery")
    sizes = {split: len(source.items(split)) for split in source.splits}
    old, new = (
        ModelCounts(len(training_rows(train.labels_N, classes)), len(classes)) for classes in recipe_classes(recipe)
    )
    some = np.unique(np.linspace(0, len(gallery) - 1, min(len(gallery), 1000)).astype(np.int64))
    names = source.names("gallery", some)
    name_bytes = 4 + round(float(np.mean([len(name.encode()) for name in names]))) if names else 0
    optional = sum(column is not None for column in (gallery.groups_N, gallery.cameras_N))
    return ImageCounts(
        train=len(train) + sizes.get("validation", 0),
        labels=int(train.labels_N.max()) + 1,
        gallery=len(gallery),
        queries=sizes.get("queries", 0),
        old=old,
        new=new,
        image_size=source.image_size,
        channels=source.channels,
        column_bytes=_COLUMN_BYTES + 8 * optional + name_bytes,
        origin="counted in the data",
        is_exact=True,
        validation=sizes.get("validation", 0),
    )


def _as_published(recipe: Recipe[Any], size: Published, reason: str) -> ImageCounts:
    """The published sizes with classes of equal size, and two equal subgroups if the protocol needs subgroups."""
    classes = np.arange(size.classes)
    validation = round(size.train * recipe.protocol.validation)
    both = split_classes(classes, recipe.protocol, classes % 2 if recipe.protocol.kind == "biased" else None)
    old, new = (ModelCounts(round((size.train - validation) * len(part) / size.classes), len(part)) for part in both)
    return ImageCounts(
        train=size.train,
        labels=size.classes,
        gallery=size.gallery,
        queries=size.queries,
        old=old,
        new=new,
        image_size=recipe.images.image_size,
        channels=3,
        column_bytes=_COLUMN_BYTES + 4 + 40,  # names of the usual length
        origin=f"as published, assuming classes of equal size, because the data are missing ({reason})",
        is_exact=False,
        validation=validation,
    )


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    images: images seen over all epochs, each view counted (items, for maps). decoded: number of images decoded from
    files. flops: floating-point operations in total. steps: of all workers together, over all epochs; 0 if nothing is
    trained.
    """

    name: str
    what: str
    epochs: int
    steps: int
    images: int
    decoded: int
    flops: float


@dataclass(frozen=True)
class GpuMemory:
    """Memory of a GPU that trains. images: at a time, its share of a batch. cost: of a step."""

    images: int
    cost: StepCost

    def __str__(self) -> str:
        fits = ", ".join(f"{self.cost.images_in(1e9 * gb):,} in {gb} GB" for gb in (40, 80))
        return f"{_size(self.cost.gpu_bytes(self.images))} for {self.images:,} images at a time; {fits}"


@dataclass(frozen=True)
class Plan:
    """Estimated needs of a run; nothing is measured. macs: of one embedding by each backbone.

    storage: name -> bytes; "(temporary)" at the end of the name if it is deleted when its stage is finished. memory: of
    each GPU in a stage that trains a backbone.
    """

    counts: ImageCounts
    macs: dict[str, int]
    stages: tuple[Stage, ...]
    storage: dict[str, int]
    memory: dict[str, GpuMemory]
    workers: Workers


class _Model(NamedTuple):
    """A backbone of a plan: how it is made, what it learns, and what it costs. weight_bytes: with its classifier."""

    how: ModelRecipe
    of: ModelCounts
    info: BackboneInfo
    cost: NetworkCost

    @property
    def weight_bytes(self) -> int:
        classifier = (self.info.backbone.dim + (self.info.cosine_scale is None)) * self.of.classes
        return 4 * (self.cost.parameters + classifier)


def _model(recipe: Recipe[Any], counts: ImageCounts, name: str) -> _Model:
    """The backbone ``name``: old, new or a kind, which learns like one of the two."""
    kind = all_backbones().get(name)
    how, of = (recipe.old, counts.old) if (kind.like if kind else name) == "old" else (recipe.new, counts.new)
    if kind:
        how = replace(how, backbone=kind.backbone(how.backbone, counts.labels))
    size, scale = (counts.channels, counts.image_size), how.training.cosine_scale
    info = BackboneInfo(how.backbone, *size, list(range(of.classes)), cosine_scale=scale)
    return _Model(how, of, info, network_cost(how.backbone, *size))


def plan_upgrade(
    recipe: Recipe[Any],
    counts: ImageCounts,
    workers: Workers,
    models: Sequence[str] | None = None,
    stages: Sequence[str] = STAGES,
) -> Plan:
    """Count steps, operations and storage of a recipe's stages; each worker has a GPU.

    models: the backbones; default: those that the recipe's methods need. stages: a selection of ``STAGES``.
    Not counted: the replay (on CPUs), compilation, start-up, and one pass of the old model over the images if BCT and
    RACT need class means.
    Cost: seconds; networks are built without weights.

    Raises:
        InputError: Names are unknown, or the images cannot be trained on.
    """
    evaluation, fits = recipe.evaluation, recipe.fits
    names = models_of(evaluation.named.methods) if models is None else models
    backbones = {name: _model(recipe, counts, name) for name in names}
    planned, storage, memory = list[Stage](), dict[str, int](), dict[str, GpuMemory]()
    n_workers = number_of(workers)
    if "backbones" in stages:
        for name, (how, of, info, _) in backbones.items():
            batch = n_workers * images_per_worker(of.images, info.classes, how.training, n_workers)
            epochs = how.training.epochs
            steps = of.images // batch * epochs
            kind = all_backbones().get(name)
            old = _model(recipe, counts, "old").info if kind and kind.needs_old else None
            cost = step_cost(info, how.training, batch, kind.objective if kind else Classification, old)
            # If the images fit in memory, each worker decodes all of them once.
            pixel_bytes = of.images * counts.image_size**2 * counts.channels
            decoded = of.images * n_workers if pixel_bytes <= pixels.CACHE_BYTES // n_workers else steps * batch
            what = f"{how.backbone.arch}, {of.images:,} images of {of.classes:,} classes"
            flops, stage = cost.flops * steps, f"train {name}"
            planned.append(Stage(stage, what, epochs, steps, steps * batch, decoded, flops))
            memory[stage] = GpuMemory(batch // n_workers, cost)
        sizes = [backbone.weight_bytes for backbone in backbones.values()]
        storage["finished backbones"] = sum(sizes)
        # Ray Train keeps two checkpoints while it writes a third; each has weights and momentum (SGD).
        storage[f"checkpoints of the largest backbone while it trains {_TEMPORARY}"] = 3 * 2 * max(sizes)
    macs = {name: backbone.cost.macs for name, backbone in backbones.items()}
    if "embeddings" in stages:
        images, views = sum(counts.embedded.values()), (recipe.embed.views - 1) * counts.embedded["train"]
        verdict = recipe.old.backbone.dim * counts.old.classes  # of the old classifier
        flops = 2.0 * ((sum(macs.values()) + verdict) * images + sum(macs.values()) * views)
        what = f"{images:,} images{f' and {views:,} further views' * (views > 0)} by {', '.join(names)}"
        planned.append(Stage("embed", what, 1, 0, images + views, images, flops))
        numbers, dtype = sum(backbone.how.backbone.dim for backbone in backbones.values()), np.dtype(recipe.embed.dtype)
        files = {split: (rows, counts.column_bytes) for split, rows in counts.embedded.items()}
        files |= {"train_views": (views, 8)} if views else {}  # 8: the id
        for name, (rows, more) in files.items():
            size = rows * (numbers * dtype.itemsize + more)
            storage[f"embeddings/{name}.parquet, {rows:,} x {numbers} {dtype}"] = size
    for method in evaluation.named.methods if "maps" in stages else ():
        if method.fit is None:
            continue
        dims, of = {name: _model(recipe, counts, name).how.backbone.dim for name in method.models}, counts.new
        tuned = by_size(method.fit, fits, dims, of.images, of.classes, evaluation.distance)
        of_fit = method.fit.cost(dims, of.images, of.classes, tuned, evaluation.distance, n_workers)
        what = f"{of.images:,} pairs of embeddings" + ("" if of_fit.steps else ", a formula")
        trials = len(trials_of(method.fit.space, fits, fits.tune)) if fits.tune > 1 else 1
        parts = [(f"fit {method.name}", what, 1)]
        if trials > 1:  # a trial costs as much as the fit with the given settings, more or less
            parts.insert(0, (f"tune {method.name}", f"{trials} trials on {what}", trials))
        for stage, words, times in parts:
            amounts = times * of_fit.steps, times * of_fit.items, 0, times * of_fit.flops
            planned.append(Stage(stage, words, of_fit.epochs, *amounts))
    return Plan(counts, macs, tuple(planned), storage, memory, workers)


def describe_plan(plan: Plan, recipe: str = "") -> str:
    """A complete plan, as lines of about 120 characters at most."""
    counts, workers = plan.counts, plan.workers
    held = f" ({counts.validation:,} of them for validation)" if counts.validation else ""
    queries = f"{counts.queries:,} queries" if counts.queries else "the gallery queries itself"
    old, new = (f"{of.classes:,} classes, {of.images:,} images" for of in (counts.old, counts.new))
    macs = ", ".join(f"{model} {macs / 1e6:,.1f}" for model, macs in plan.macs.items())
    header = ("stage", "epochs", "steps", "images seen", "decoded", "FLOPs", "")
    of_stages = [
        (
            *(stage.name, str(stage.epochs), f"{stage.steps:,}" if stage.steps else "-", f"{stage.images:,}"),
            *(f"{stage.decoded:,}" if stage.decoded else "-", amount(stage.flops), stage.what),
        )
        for stage in plan.stages
    ]
    table = [header, *of_stages, ("total", "", "", "", "", amount(sum(stage.flops for stage in plan.stages)), "")]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    aligned = (
        [f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>>>><", widths, strict=True)] for row in table
    )
    stages = "\n".join("  ".join(line).rstrip() for line in aligned)
    memory = ""
    if plan.memory:  # and how many images would fit in usual ones: a smaller batch also changes BatchNorm
        width = max(map(len, plan.memory))
        lines = [f"  {name:<{width}}  {of_gpu}" for name, of_gpu in plan.memory.items()]
        memory = "\n".join([f"memory of each of {number_of(workers)} GPUs (estimate)", *lines, "", ""])
    kept = sum(size for name, size in plan.storage.items() if not name.endswith(_TEMPORARY))
    rows = plan.storage | {"kept in total": kept}
    storage = [f"  {name:<{max(map(len, rows))}}  {_size(size):>9}" for name, size in rows.items()]
    return f"""Plan; nothing was computed, trained or decoded.

images: {counts.train:,} train{held}, {counts.gallery:,} gallery, {queries}; \
{counts.image_size} x {counts.image_size} x {counts.channels}
these numbers: {counts.origin}
old model: {old}; new model: {new}

one embedding, in millions of multiply-accumulates: {macs}

{stages}

{memory}storage
{chr(10).join(storage)}

FLOPs: floating-point operations of the real networks and losses, finished stages included; k, M, G, T and P stand for
10^3, 10^6, 10^9, 10^12 and 10^15. How long they take depends on the machines: time a stage with few epochs there. For
the gallery: ray-backfill plan {recipe or "RECIPE"} --fleet fleet.yaml
Not included: the replay (on CPUs), start-up."""


def _size(size_bytes: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= one:
            return f"{size_bytes / one:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def dry_run(
    recipe: Recipe[Any], workers: Workers, last_stage: str = STAGES[-1], model: str | None = None, name: str = ""
) -> str:
    """The plan up to ``last_stage`` (of ``STAGES``), as text. model: plan the training of this backbone only.
    name: of the recipe.

    Raises:
        InputError: The run would be refused as well, as far as this can be checked with the available data.
    """
    check_choices(recipe)
    kinds = all_backbones()
    models = models_of(recipe.evaluation.named.methods)
    if model is not None:
        if model not in ("old", "new", *kinds):
            raise unknown_name("model", model, ("old", "new", *kinds))
        models = ("old", model) if model in kinds and kinds[model].needs_old else (model,)
    counts = count_images(recipe)
    if counts.is_exact:
        check_recipe(recipe, number_of(workers), models)
        if model is None:
            check_evaluation(recipe, number_of(workers))
    stages = STAGES[: STAGES.index(last_stage) + 1]
    return describe_plan(plan_upgrade(recipe, counts, workers, models, stages), name)
