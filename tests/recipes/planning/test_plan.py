"""Plans against hand-computed arithmetic, published sizes of networks, and what real trainings count and do."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
import torch

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.data.write import vector_column, write_parquet
from ray_backfill.images.class_split import Protocol, split_classes
from ray_backfill.images.datasets import landmarks, open_images
from ray_backfill.learn.methods import all_backbones
from ray_backfill.learn.models.backbones import BackboneInfo, network_cost
from ray_backfill.learn.training import batches as pixels
from ray_backfill.learn.training.backbone_loop import step_cost, train_backbone, training_rows
from ray_backfill.learn.training.objective import Classification, OldModel
from ray_backfill.learn.training.settings import (
    BackboneSettings,
    BackboneTraining,
    FitSettings,
    HeadTraining,
    TransformTraining,
)
from ray_backfill.recipes import EmbedSettings, ModelRecipe, Recipe
from ray_backfill.recipes.run import backbones
from ray_backfill.recipes.run.plan import ImageCounts, ModelCounts, Plan, count_images, describe_plan, plan_upgrade
from ray_backfill.workers.settings import Workers

COUNTS = ImageCounts(
    train=1000,
    gallery=300,
    queries=50,
    labels=10,
    old=ModelCounts(400, 4),
    new=ModelCounts(1000, 10),
    image_size=16,
    channels=3,
    column_bytes=36,
    origin="by hand",
    is_exact=True,
)


def small_recipe(methods: tuple[str, ...] = ("rm_naive", "rm"), kind: str = "extended") -> Recipe[landmarks.Settings]:
    def model(width: int, epochs: int, seed: int) -> ModelRecipe:
        return ModelRecipe(
            BackboneSettings("convnet", dim=12, width=width), BackboneTraining(epochs=epochs, batch=64, seed=seed)
        )

    return Recipe(
        images=landmarks.Settings(image_size=16, landmarks=10, train_images=70, gallery_images=20, queries=8),
        protocol=Protocol(kind, old_share=0.4),  # type: ignore[arg-type]
        old=model(2, epochs=3, seed=0),
        new=model(4, epochs=5, seed=1),
        embed=EmbedSettings(),
        fits=FitSettings(
            heads=HeadTraining(epochs=7, classes=4, items=4), transforms=TransformTraining(epochs=6, batch=100)
        ),
        evaluation=Evaluation(methods=methods),
    )


def convnet_macs(width: int, dim: int, size: int = 16) -> int:
    """Four 3 x 3 convolutions, each followed by a halving, and the linear layer."""
    widths, macs = [3, width, 2 * width, 4 * width, 4 * width], 4 * width * dim
    for block in range(4):
        macs += 9 * widths[block] * widths[block + 1] * (size // 2**block) ** 2
    return macs


def plan(recipe: Recipe[landmarks.Settings], counts: ImageCounts = COUNTS) -> Plan:
    return plan_upgrade(recipe, counts, Workers(2, 1.0))


def count_steps(optimizer: type[torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with every step that an optimizer really takes."""
    steps: list[int] = []
    step = optimizer.step

    def counted(self: torch.optim.Optimizer) -> None:
        steps.append(1)
        step(self)

    monkeypatch.setattr(optimizer, "step", counted)
    return steps


def test_steps_images_and_operations_by_hand() -> None:
    found = plan(small_recipe())
    old, new, embed, head, rm = found.stages
    assert (head.steps, head.images) == (rm.steps, rm.images), "the reference {rho(new), rho(new)} is trained alike"
    # 400 images in batches of 2 x 32 give 6 steps, 3 times; 1000 give 15, 5 times.
    assert (old.steps, old.images) == (18, 18 * 64)
    assert (new.steps, new.images) == (75, 75 * 64)
    # All fit into memory: each of two workers decodes each image once.
    assert (old.decoded, new.decoded) == (800, 2000)
    # Each of 1000 train images is decoded once and embedded in 4 views.
    assert (embed.images, embed.decoded) == (4350, 1350)
    macs = convnet_macs(2, 12) + convnet_macs(4, 12)
    verdicts = 2 * 12 * 4 * 1350  # the old classifier has 4 classes; further views need none
    assert embed.flops == 2 * macs * 4350 + verdicts
    # 4 classes x 4 items make a batch of 16.
    assert (rm.epochs, rm.steps, rm.images, rm.decoded) == (7, 1000 // 16 * 7, 1000 // 16 * 16 * 7, 0)
    assert found.macs == {"old": convnet_macs(2, 12), "new": convnet_macs(4, 12)}


def test_every_trial_of_settings_is_counted() -> None:
    recipe = small_recipe(("rm", "least_squares_gallery"))
    (fit,) = [stage for stage in plan(recipe).stages if stage.name == "fit rm"]
    found = {each.name: each for each in plan(replace(recipe, fits=replace(recipe.fits, tune=5))).stages}
    tune = found["tune rm"]
    assert (tune.steps, tune.images, tune.flops) == (5 * fit.steps, 5 * fit.images, 5 * fit.flops)
    assert found["fit rm"] == fit
    assert "tune least_squares_gallery" not in found, "a formula without settings has no trials"


def test_training_costs_three_times_a_forward_pass_but_for_the_gradient_of_images() -> None:
    info = BackboneInfo(BackboneSettings("convnet", 12, 4), 3, 16, list(range(10)))
    forward = convnet_macs(4, 12) + 12 * 10
    first_layer = 9 * 3 * 4 * 16**2  # nobody needs the gradient of its input
    assert step_cost(info, BackboneTraining(), batch=64).flops == 2 * 64 * (3 * forward - first_layer)


@pytest.mark.parametrize(("arch", "giga_macs"), [("resnet18", 1.8), ("resnet50", 4.1), ("vit_b_32", 4.4)])
def test_known_sizes_of_networks(arch: str, giga_macs: float) -> None:
    # ResNet-18: RM, appendix B.3. The others: torchvision's table of models (4.09 and 4.41).
    assert network_cost(BackboneSettings(arch), 3, 224).macs / 1e9 == pytest.approx(giga_macs, abs=0.06)


@pytest.mark.parametrize("kind", ["", *all_backbones()])
def test_a_backbone_training_does_what_was_planned(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe()
    recipe = replace(
        recipe,
        old=replace(recipe.old, training=BackboneTraining(epochs=2, batch=8)),
        new=replace(recipe.new, training=BackboneTraining(epochs=2, batch=32)),
    )
    counts = count_images(recipe)
    planned = {s.name: s for s in plan_upgrade(recipe, counts, Workers(1), models=(kind or "new",)).stages}
    stage = planned[f"train {kind or 'new'}"]
    source = open_images(recipe.images)
    both = dict(zip(("old", "new"), split_classes(source.items("train").labels_N, recipe.protocol), strict=True))
    infos = {
        role: BackboneInfo(model.backbone, 3, 16, both[role])
        for role, model in (("old", recipe.old), ("new", recipe.new))
    }
    of_kind = all_backbones().get(kind)
    role = of_kind.like if of_kind else "new"
    old = OldModel(infos["old"].build(), infos["old"]) if of_kind and of_kind.needs_old else None
    rows = training_rows(source.items("train").labels_N, both[role])
    steps = count_steps(torch.optim.SGD, monkeypatch)
    training = (recipe.old if role == "old" else recipe.new).training
    objective = of_kind.objective if of_kind else Classification
    info = infos[role]
    if of_kind:
        info = replace(info, backbone=of_kind.backbone(info.backbone, counts.labels))
    trained = train_backbone(source, rows, info, training, make_objective=objective, old=old)
    assert stage.steps == len(steps)
    assert stage.flops == trained.flops


def test_images_that_do_not_fit_into_memory_are_decoded_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "CACHE_BYTES", 2 * 500 * 16 * 16 * 3)  # 500 images for each of two workers
    old, new, *_ = plan(small_recipe()).stages
    assert old.decoded == 2 * 400
    assert new.decoded == new.images == 75 * 64


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_storage_is_that_of_a_real_file(tmp_path: Path, dtype: Literal["float32", "float16"]) -> None:
    rng = np.random.default_rng(0)
    rows, dims = 4000, (128, 96)
    counts = replace(COUNTS, gallery=rows, queries=0, column_bytes=36 + 4 + 30)
    recipe = small_recipe()
    recipe = replace(
        recipe,
        embed=EmbedSettings(dtype=dtype),
        old=replace(recipe.old, backbone=replace(recipe.old.backbone, dim=dims[0])),
        new=replace(recipe.new, backbone=replace(recipe.new.backbone, dim=dims[1])),
    )
    vectors = {
        name: vector_column(rng.normal(size=(rows, dim)).astype(dtype))
        for name, dim in zip(("old", "new"), dims, strict=True)
    }
    verdicts = {name: rng.random(rows, dtype=np.float32) for name in ("old_score", "old_entropy", "old_margin")}
    numbers = {"id": np.arange(rows), "label": rng.integers(0, 1000, rows), "old_class": rng.integers(0, 1000, rows)}
    names = {"name": [f"val/n{rng.integers(10**8):08d}/{rng.integers(10**14):015d}" for _ in range(rows)]}
    write_parquet(tmp_path / "gallery.parquet", pa.table(numbers | vectors | verdicts | names))
    views = {"id": np.arange(3000)} | {name: pa.array(column[:3000]) for name, column in vectors.items()}
    write_parquet(tmp_path / "train_views.parquet", pa.table(views))
    stored = {name.split(",")[0]: size for name, size in plan(recipe, counts).storage.items()}
    assert stored["embeddings/train_views.parquet"] == pytest.approx(
        (tmp_path / "train_views.parquet").stat().st_size, rel=0.05
    )
    one_view = plan(replace(recipe, embed=EmbedSettings(views=1)), counts)
    assert not any("views" in name for name in one_view.storage)
    assert [s.images for s in one_view.stages if s.name == "embed"] == [5000]
    assert stored["embeddings/gallery.parquet"] == pytest.approx(
        (tmp_path / "gallery.parquet").stat().st_size, rel=0.05
    )


def test_checkpoints_and_finished_networks(tmp_path: Path) -> None:
    info = BackboneInfo(BackboneSettings("convnet", 12, 4), 3, 16, list(range(10)))
    network = info.build()
    weights = sum(parameter.numel() for parameter in network.parameters()) * 4
    found = plan_upgrade(small_recipe(), COUNTS, Workers(), models=("new",), stages=("backbones",))
    assert found.storage["finished backbones"] == weights
    (largest,) = (size for name, size in found.storage.items() if name.endswith("(temporary)"))
    assert largest == 3 * 2 * weights  # three checkpoints, each with weights and momentum
    assert re.search(rf"kept in total +{weights / 1e3:.1f} kB", describe_plan(found)), "without what is deleted"


def test_a_plan_in_words_says_what_it_counts() -> None:
    found = plan(small_recipe())
    text = describe_plan(found, "landmarks")
    for part in (
        "1,000 train, 300 gallery, 50 queries",
        "4 classes, 400 images",
        "10 classes, 1,000 images",
        "by hand",
    ):
        assert part in text
    assert f"{sum(stage.flops for stage in found.stages) / 1e9:.1f} G" in text
    assert "ray-backfill plan landmarks" in text
    assert max(len(line) for line in text.splitlines()) <= 140


def test_a_backbone_of_another_size_is_planned_with_its_own() -> None:
    """d-Simplex: as many dimensions as there are labels, less one."""
    found, numbers = plan(small_recipe(("dsimplex",))), 2 * 12 + 2 * 9
    assert any(f"x {numbers} " in name for name in found.storage)


def test_the_memory_of_a_step_is_what_torch_allocates() -> None:
    """By torch's own count of all arrays, which has no room of kernels and allocators."""
    info, batch = BackboneInfo(BackboneSettings("resnet18", dim=64), 3, 32, list(range(10))), 64
    objective = Classification(info.build(), info, BackboneTraining(), None)
    optimizer = torch.optim.SGD(objective.parameters(), 0.1, 0.9)

    def train() -> None:
        losses, _ = objective([torch.zeros(batch, 3, 32, 32)], torch.zeros(batch, dtype=torch.long))
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()

    train()  # makes the momentum
    optimizer.zero_grad()
    held = sum(each.nbytes for each in (*objective.parameters(), *objective.buffers()))
    momentum = sum(each.nbytes for each in objective.parameters())
    with torch.profiler.profile(profile_memory=True) as profile:
        train()
    totals, change = [0], 0
    waiting = list(profile.profiler.kineto_results.experimental_event_tree())
    allocations = []
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.name == "[memory]":
            allocations.append((event.start_time_ns, event.extra_fields.alloc_size))
    for _, size in sorted(allocations):
        change += size
        totals.append(change)
    cost = step_cost(info, BackboneTraining(), batch)
    expected = batch * cost.image_bytes + cost.fixed_bytes - momentum  # without DDP's copy
    assert 0.9 * expected < max(totals) + held + momentum < 1.1 * expected


def test_a_batch_that_does_not_fit_is_refused_with_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe()
    source = open_images(recipe.source)
    how = replace(recipe.old, backbone=BackboneSettings(arch="resnet50"))
    classes = list(range(int(source.items("train").labels_N.max()) + 1))
    training = replace(how.training, batch=1024)
    job = backbones.BackboneJob("old model", recipe.source, classes, how.backbone, training)
    monkeypatch.setattr(backbones, "smallest_gpu", lambda: 0)
    backbones.check_memory_of_gpus(job, source, 5000, 2)  # without GPUs
    monkeypatch.setattr(backbones, "smallest_gpu", lambda: int(2e9))
    with pytest.raises(InputError, match=r"needs about .* for 512 images at a time, and the smallest has 2.0") as e:
        backbones.check_memory_of_gpus(job, source, 5000, 2)
    found = re.search(r"for (\d+); lower its batch to (\d+) .* or use (\d+) GPUs$", str(e.value))
    assert found
    fits, batch, workers = map(int, found.groups())
    assert batch == 2 * fits
    backbones.check_memory_of_gpus(replace(job, training=replace(training, batch=batch)), source, 5000, 2)
    backbones.check_memory_of_gpus(job, source, 5000, workers)
    with pytest.raises(InputError):
        backbones.check_memory_of_gpus(replace(job, training=replace(training, batch=batch + 2)), source, 5000, 2)
    monkeypatch.setattr(backbones, "smallest_gpu", lambda: int(1e9))
    with pytest.raises(InputError, match="for 0; choose a smaller architecture"):
        backbones.check_memory_of_gpus(job, source, 5000, 2)


def test_the_plan_names_the_memory_of_each_gpu() -> None:
    found = plan(small_recipe())
    lines = describe_plan(found).split("memory of each of 2 GPUs (estimate)\n")[1].split("\n\n")[0].splitlines()
    assert [line.split("  ")[1] for line in lines] == list(found.memory)
    for line, memory in zip(lines, found.memory.values(), strict=True):
        fits = memory.cost.images_in(40e9)
        assert f"for {memory.images:,} images at a time; {fits:,} in 40 GB" in line
        assert memory.cost.gpu_bytes(fits) <= 40e9 < memory.cost.gpu_bytes(fits + 1)
