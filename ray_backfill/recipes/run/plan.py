"""--dry-run: what a run would need: images, steps, GPU hours, storage. Nothing is computed, trained or decoded."""

import math
from collections.abc import Iterator, Sequence
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
from ray_backfill.recipes import NO_ROOT, ModelRecipe, PlanningSettings, Recipe
from ray_backfill.recipes.run.checks import check_choices, check_evaluation, check_recipe, recipe_classes
from ray_backfill.workers.settings import EmbedActors, Workers, number_of

STAGES = ("backbones", "embeddings", "maps")
# Bytes of a stored row besides its vectors and its name: id, label and old_class are int64; old_score, old_entropy and
# old_margin float32.
_COLUMN_BYTES = 3 * 8 + 3 * 4
# Ray Train keeps two checkpoints while it writes a third; each has weights and momentum (SGD).
_CHECKPOINTS = 3 * 2
_TEMPORARY = "(temporary)"


class ModelCounts(NamedTuple):
    """Training data of one model."""

    images: int
    classes: int


@dataclass(frozen=True)
class Counts:
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


def count_images(recipe: Recipe[Any]) -> Counts:
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
    return Counts(
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


def _as_published(recipe: Recipe[Any], size: Published, reason: str) -> Counts:
    """The published sizes with classes of equal size, and two equal subgroups if the protocol needs subgroups."""
    classes = np.arange(size.classes)
    validation = round(size.train * recipe.protocol.validation)
    both = split_classes(classes, recipe.protocol, classes % 2 if recipe.protocol.kind == "biased" else None)
    old, new = (ModelCounts(round((size.train - validation) * len(part) / size.classes), len(part)) for part in both)
    return Counts(
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
    """One stage of a run on ``gpus`` GPUs, with ``cpus`` CPUs for decoding, both in total.

    images: images seen over all epochs, each view counted (items, for maps). decoded: number of images decoded from
    files. flops: floating-point operations in total; in_tf32: torch rounds most of them to TF32. steps: of all workers
    together, over all epochs; 0 if nothing is trained.
    """

    name: str
    what: str
    epochs: int
    steps: int
    images: int
    decoded: int
    flops: float
    in_tf32: bool
    gpus: int
    cpus: float
    settings: PlanningSettings

    @property
    def gpu_hours(self) -> float:
        """Hours of one GPU that never waits."""
        return self.flops / self.settings.flops_per_s(self.in_tf32) / 3600

    @property
    def decode_hours(self) -> float:
        """Hours that all CPUs together need for decoding."""
        return self.decoded / (self.cpus * self.settings.decode_images_per_s_per_cpu) / 3600

    @property
    def hours(self) -> float:
        """Elapsed hours: decoding and computing overlap, so the slower one determines them."""
        return max(self.gpu_hours / self.gpus, self.decode_hours)

    @property
    def waits(self) -> float:
        """How many times as long as the GPUs decoding takes: above 1 they wait for images."""
        return self.decode_hours / max(self.gpu_hours / self.gpus, 1e-12)


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

    counts: Counts
    macs: dict[str, int]
    stages: tuple[Stage, ...]
    storage: dict[str, int]
    memory: dict[str, GpuMemory]
    settings: PlanningSettings
    workers: Workers
    actors: EmbedActors

    @property
    def held_gpu_hours(self) -> float:
        """GPU hours that are paid for, including those in which a GPU waits for images."""
        return sum(stage.hours * stage.gpus for stage in self.stages)


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


def _model(recipe: Recipe[Any], counts: Counts, name: str) -> _Model:
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
    names = models_of(recipe.evaluation.named.methods) if models is None else models
    found = {name: _model(recipe, counts, name) for name in names}
    planned, storage, memory = list[Stage](), dict[str, int](), dict[str, GpuMemory]()
    on_workers = number_of(workers), number_of(workers) * (workers.cpus + workers.decode_cpus), settings
    if "backbones" in stages:
        for name in found:
            needs, memory[f"train {name}"] = _training(recipe, counts, found[name], name, workers)
            planned.append(Stage(*needs, *on_workers))
        sizes = [model.weight_bytes for model in found.values()]
        storage["finished backbones"] = sum(sizes)
        storage[f"checkpoints of the largest backbone while it trains {_TEMPORARY}"] = _CHECKPOINTS * max(sizes)
    if "embeddings" in stages:
        embedding = _embedding(recipe, counts, found)
        gpus = -(-number_of(actors) // actors.per_gpu)
        planned.append(Stage(*embedding, gpus, number_of(actors) * (actors.cpus + actors.decode_cpus), settings))
        storage |= _stored_embeddings(recipe, counts, found)
    if "maps" in stages:
        planned += [Stage(*each, *on_workers) for each in _fits(recipe, counts, workers)]
    macs = {name: model.cost.macs for name, model in found.items()}
    return Plan(counts, macs, tuple(planned), storage, memory, settings, workers, actors)


# The fields of a ``Stage`` up to ``in_tf32``.
_Needs = tuple[str, str, int, int, int, int, float, bool]


def _training(
    recipe: Recipe[Any], counts: Counts, model: _Model, name: str, workers: Workers
) -> tuple[_Needs, GpuMemory]:
    how, of, info, _ = model
    batch = number_of(workers) * images_per_worker(of.images, info.classes, how.training, number_of(workers))
    steps = of.images // batch * how.training.epochs
    kind = all_backbones().get(name)
    old = _model(recipe, counts, "old").info if kind and kind.needs_old else None
    cost = step_cost(info, how.training, batch, kind.objective if kind else Classification, old)
    fits_in_memory = of.images * counts.image_size**2 * counts.channels <= pixels.CACHE_BYTES // number_of(workers)
    # If the images fit in memory, each worker decodes all of them once.
    decoded = of.images * number_of(workers) if fits_in_memory else steps * batch
    what = f"{how.backbone.arch}, {of.images:,} images of {of.classes:,} classes"
    memory, in_tf32 = GpuMemory(batch // number_of(workers), cost), not how.backbone.arch.startswith(("vit", "hf:"))
    epochs, flops = how.training.epochs, cost.flops * steps
    return (f"train {name}", what, epochs, steps, steps * batch, decoded, flops, in_tf32), memory


def _further_views(recipe: Recipe[Any], counts: Counts) -> int:
    """Number of embedded views of train images, besides the images themselves."""
    return (recipe.embed.views - 1) * counts.embedded["train"]


def _embedding(recipe: Recipe[Any], counts: Counts, models: dict[str, _Model]) -> _Needs:
    images, further = sum(counts.embedded.values()), _further_views(recipe, counts)
    macs = sum(model.cost.macs for model in models.values())
    verdict = recipe.old.backbone.dim * counts.old.classes  # of the old classifier
    flops = 2.0 * ((macs + verdict) * images + macs * further)
    what = f"{images:,} images{f' and {further:,} further views' * (further > 0)} by {', '.join(models)}"
    return "embed", what, 1, 0, images + further, images, flops, False


def _fits(recipe: Recipe[Any], counts: Counts, workers: Workers) -> Iterator[_Needs]:
    of, fits = counts.new, recipe.fits
    for method in recipe.evaluation.named.methods:
        if method.fit is None:
            continue
        dims = {name: _model(recipe, counts, name).how.backbone.dim for name in method.models}
        distance = recipe.evaluation.distance
        how = by_size(method.fit, fits, dims, of.images, of.classes, distance)
        cost = method.fit.cost(dims, of.images, of.classes, how, distance, number_of(workers))
        what = f"{of.images:,} pairs of embeddings" + ("" if cost.steps else ", a formula")
        trials = len(trials_of(method.fit.space, fits, fits.tune)) if fits.tune > 1 else 1
        if trials > 1:  # a trial costs as much as the fit with the given settings, more or less
            yield (
                *(f"tune {method.name}", f"{trials} trials on {what}", cost.epochs),
                *(trials * cost.steps, trials * cost.items, 0, trials * cost.flops, False),
            )
        yield f"fit {method.name}", what, cost.epochs, cost.steps, cost.items, 0, cost.flops, False


def _stored_embeddings(recipe: Recipe[Any], counts: Counts, models: dict[str, _Model]) -> Iterator[tuple[str, int]]:
    numbers = sum(model.how.backbone.dim for model in models.values())
    dtype = np.dtype(recipe.embed.dtype)
    files = {split: (rows, counts.column_bytes) for split, rows in counts.embedded.items()}
    if further := _further_views(recipe, counts):
        files["train_views"] = further, 8  # the id
    for name, (rows, more) in files.items():
        yield f"embeddings/{name}.parquet, {rows:,} x {numbers} {dtype}", rows * (numbers * dtype.itemsize + more)


def describe_plan(plan: Plan) -> str:
    """A complete plan, as lines of about 120 characters at most."""
    counts, settings, workers, actors = plan.counts, plan.settings, plan.workers, plan.actors
    held = f" ({counts.validation:,} of them for validation)" if counts.validation else ""
    queries = f"{counts.queries:,} queries" if counts.queries else "the gallery queries itself"
    old, new = (f"{of.classes:,} classes, {of.images:,} images" for of in (counts.old, counts.new))
    macs = ", ".join(f"{model} {macs / 1e6:,.1f}" for model, macs in plan.macs.items())
    return f"""Plan; nothing was computed, trained or decoded.

images: {counts.train:,} train{held}, {counts.gallery:,} gallery, {queries}; \
{counts.image_size} x {counts.image_size} x {counts.channels}
these numbers: {counts.origin}
old model: {old}; new model: {new}

one embedding, in millions of multiply-accumulates: {macs}

{_stage_table(plan)}
GPU hours: computing time of one GPU. hours: elapsed time; the GPUs are reserved for {_hours(plan.held_gpu_hours)} GPU \
hours in total.{_advice(plan)}

{_memory_table(plan)}storage
{_storage_table(plan)}

These hours are estimates from the floating-point operations of the real networks and losses, and from:
  --workers.number {number_of(workers)} --actors.number {number_of(actors)}: GPUs that train and embed
  --planning.gpu-tflops {settings.gpu_tflops:g}: peak of a GPU in training (A100: 156 in TF32, which torch trains \
convolutions in)
  --planning.utilisation {settings.utilisation:g}: share of that peak that is reached
  --planning.float32-tflops {settings.float32_tflops:g}: what a GPU reaches, not its peak, in plain float32: \
embedding, maps, training of "vit" and "hf:"
  --planning.decode-images-per-s-per-cpu {settings.decode_images_per_s_per_cpu:g}: for each of \
{number_of(workers) * (workers.cpus + workers.decode_cpus):g} CPUs that train, \
{number_of(actors) * (actors.cpus + actors.decode_cpus):g} that embed
Without GPUs, state what the CPUs of a worker and of an actor reach.
Not included: the replay (on CPUs), start-up, launching tiny steps of heads. Included: finished stages."""


def _stage_table(plan: Plan) -> str:
    header = ("stage", "epochs", "steps", "images seen", "decoded", "GPU hours", "hours", "slowest", "")
    rows = [
        (
            *(stage.name, str(stage.epochs), f"{stage.steps:,}" if stage.steps else "-", f"{stage.images:,}"),
            *(f"{stage.decoded:,}" if stage.decoded else "-", _hours(stage.gpu_hours), _hours(stage.hours)),
            *("decoding" if stage.waits > 1 else "GPU", stage.what),
        )
        for stage in plan.stages
    ]
    gpu_hours, hours = (sum(getattr(stage, name) for stage in plan.stages) for name in ("gpu_hours", "hours"))
    table = [header, *rows, ("total", "", "", "", "", _hours(gpu_hours), _hours(hours), "", "")]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = (
        [f"{cell:{side}{width}}" for cell, side, width in zip(row, "<>>>>>><<", widths, strict=True)] for row in table
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _advice(plan: Plan) -> str:
    """How many CPUs per GPU would keep the GPUs busy, if decoding is the bottleneck."""
    worst = max(plan.stages, key=lambda stage: stage.waits, default=None)
    if worst is None or worst.waits <= 1:
        return ""
    now = worst.cpus / worst.gpus
    rate = now * plan.settings.decode_images_per_s_per_cpu
    given = f"{now:g} CPU per GPU gives" if now == 1 else f"{now:g} CPUs per GPU give"
    option = "--actors" if worst.name == "embed" else "--workers"
    return (
        f"\ndecoding slows down {worst.name} most: {given} {rate:,.0f} img/s, {math.ceil(now * worst.waits)} would be "
        f"enough;\nset {option}.cpus, or {option}.decode-cpus for CPUs of other nodes beside them."
    )


def _memory_table(plan: Plan) -> str:
    """Memory of a GPU, and how many images would fit in usual ones: a smaller batch also changes BatchNorm."""
    width = max(map(len, plan.memory), default=0)
    lines = [f"  {name:<{width}}  {memory}" for name, memory in plan.memory.items()]
    heading = f"memory of each of {number_of(plan.workers)} GPUs (estimate)"
    return "\n".join([heading, *lines, "", ""]) if lines else ""


def _storage_table(plan: Plan) -> str:
    kept = sum(size for name, size in plan.storage.items() if not name.endswith(_TEMPORARY))
    rows = plan.storage | {"kept in total": kept}
    width = max(map(len, rows))
    return "\n".join(f"  {name:<{width}}  {_size(size):>9}" for name, size in rows.items())


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}" if hours >= 0.01 else "< 0.01"


def _size(size_bytes: float) -> str:
    for unit, one in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= one:
            return f"{size_bytes / one:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def dry_run(
    recipe: Recipe[Any],
    workers: Workers,
    actors: EmbedActors,
    settings: PlanningSettings,
    last_stage: str = STAGES[-1],
    model: str | None = None,
) -> str:
    """The plan up to ``last_stage`` (of ``STAGES``), as text. model: plan the training of this backbone only.

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
    return describe_plan(plan_upgrade(recipe, counts, workers, actors, settings, models, stages))
