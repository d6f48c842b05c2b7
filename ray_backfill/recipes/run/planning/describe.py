"""A plan as text."""

import math

from ray_backfill.recipes.run.planning.plan import Plan, Stage

_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def describe_plan(plan: Plan) -> str:
    """A complete plan, as lines of about 120 characters at most."""
    lines = ["Plan; nothing was computed, trained or decoded.", "", *_images(plan), "", *_models(plan), ""]
    return "\n".join([*lines, *_stages(plan), "", *_storage(plan), "", *_assumptions(plan)])


def _images(plan: Plan) -> list[str]:
    counts = plan.counts
    queries = f"{counts.queries:,} queries" if counts.queries else "the gallery queries itself"
    held = f" ({counts.validation:,} of them for validation)" if counts.validation else ""
    return [
        f"images: {counts.train:,} train{held}, {counts.gallery:,} gallery, {queries}; "
        f"{counts.image_size} x {counts.image_size} x {counts.channels}",
        f"these numbers: {counts.origin}",
        f"old model: {counts.old.classes:,} classes, {counts.old.images:,} images; "
        f"new model: {counts.new.classes:,} classes, {counts.new.images:,} images",
    ]


def _models(plan: Plan) -> list[str]:
    costs = ", ".join(f"{model} {macs / 1e6:,.1f}" for model, macs in plan.models.items())
    return [f"one embedding, in millions of multiply-accumulates: {costs}"]


def _stages(plan: Plan) -> list[str]:
    header = ("stage", "epochs", "steps", "images seen", "decoded", "GPU hours", "hours", "slowest", "")
    rows = [_row(stage) for stage in plan.stages]
    total = ("total", "", "", "", "", _hours(plan.gpu_hours), _hours(plan.hours), "", "")
    table = [header, *rows, total]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    texts = {0, 7, 8}  # left-aligned; numbers are right-aligned

    def line(row: tuple[str, ...]) -> str:
        cells = (
            f"{cell:<{width}}" if i in texts else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  ".join(cells).rstrip()

    held = (
        f"GPU hours: computing time of one GPU. hours: elapsed time; the GPUs are reserved for "
        f"{_hours(plan.held_gpu_hours)} GPU hours in total."
    )
    return [*map(line, table), held, *_advice(plan)]


def _row(stage: Stage) -> tuple[str, ...]:
    steps = f"{stage.steps:,}" if stage.steps else "-"
    decoded = f"{stage.decoded:,}" if stage.decoded else "-"
    numbers = (str(stage.epochs), steps, f"{stage.images:,}", decoded, _hours(stage.gpu_hours), _hours(stage.hours))
    return (stage.name, *numbers, stage.bottleneck, stage.what)


def _advice(plan: Plan) -> list[str]:
    """How many CPUs per GPU would keep the GPUs busy, if decoding is the bottleneck."""
    slow = [stage for stage in plan.stages if stage.bottleneck == "decoding"]
    if not slow:
        return []
    worst = max(slow, key=lambda stage: stage.decode_hours / max(stage.gpu_hours / stage.gpus, 1e-12))
    now = worst.cpus / worst.gpus
    needed = now * worst.decode_hours / max(worst.gpu_hours / worst.gpus, 1e-12)
    option = "--actors.cpus" if worst.kind == "embeddings" else "--workers.cpus"
    rate = now * worst.settings.decode_images_per_s_per_cpu
    given = f"{now:g} CPU per GPU gives" if now == 1 else f"{now:g} CPUs per GPU give"
    return [
        f"decoding slows down {worst.name} most: {given} {rate:,.0f} img/s, {math.ceil(needed)} would be enough; "
        f"set {option}."
    ]


def _storage(plan: Plan) -> list[str]:
    rows = [(stored.name + ("" if stored.is_kept else " (temporary)"), stored.size_bytes) for stored in plan.storage]
    rows.append(("kept in total", plan.kept_bytes))
    width = max(len(name) for name, _ in rows)
    return ["storage", *(f"  {name:<{width}}  {_size(size):>9}" for name, size in rows)]


def _assumptions(plan: Plan) -> list[str]:
    settings = plan.settings
    return [
        "These hours are estimates from the floating-point operations of the real networks and losses, and from:",
        f"  --workers.number {plan.workers.number} --actors.number {plan.actors.number}: GPUs that train and embed",
        f"  --planning.gpu-tflops {settings.gpu_tflops:g}: peak of a GPU (A100: 156 in TF32, which torch uses for "
        "convolutions; 19.5 in",
        "      plain float32, which it uses for matrix products: a ViT, heads)",
        f"  --planning.utilisation {settings.utilisation:g}: share of the peak that is reached "
        "(without GPUs: what the CPUs of a worker reach)",
        f"  --planning.decode-images-per-s-per-cpu {settings.decode_images_per_s_per_cpu:g}: for each of "
        f"{plan.workers.number * plan.workers.cpus:g} CPUs that train, "
        f"{plan.actors.number * plan.actors.cpus:g} that embed",
        "Not included: the replay (on CPUs), start-up, launching tiny steps of heads. Included: finished stages.",
    ]


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 10 else f"{hours:.2f}" if hours >= 0.01 else "< 0.01"


def _size(size_bytes: float) -> str:
    for unit, one in _UNITS:
        if size_bytes >= one:
            return f"{size_bytes / one:.1f} {unit}"
    return f"{size_bytes:.0f} B"
