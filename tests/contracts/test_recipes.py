"""Every recipe, found by itself: its settings are sound and can be written down."""

import importlib
import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from papers import published
from papers.published import PublishedTable
from ray_backfill.cluster.embed import EmbedActors
from ray_backfill.cluster.train import Workers
from ray_backfill.comparison.resolve import check_distances_agree
from ray_backfill.datasets import dataset_module, dataset_names
from ray_backfill.errors import InputError
from ray_backfill.models.backbones import check_arch
from ray_backfill.protocols import split_classes
from ray_backfill.recipes import describe_recipe, load_recipe, recipe_names
from ray_backfill.runs.planning import count_images, plan_upgrade


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_sound(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, tmp_path, seed=3)
    assert type(recipe.images).__module__.rsplit(".", 1)[-1] in dataset_names()
    for model in (recipe.old, recipe.new):
        # Of another dimension it is the same network: so each is built once.
        check_arch(replace(model.backbone, dim=16), channels=3, image_size=64)
    assert recipe.old.training.seed != recipe.new.training.seed, "the same start would make the models alike"
    recipe.evaluation.check()
    assert json.loads(json.dumps(asdict(recipe)))["fits"]["heads"]["seed"] == 3
    assert recipe.evaluation.order_seed == 3


def test_recipes_say_what_they_need() -> None:
    complaints = []
    for name in recipe_names():
        try:
            load_recipe(name)
        except InputError as error:
            complaints.append(str(error))
    assert complaints
    assert all(text.startswith("this recipe needs --data-root: ") for text in complaints)


# Recipe -> the tables that its header must print, and how many of its classes the old and the new model know.
PUBLISHED = {
    "imagenet": (["RM, table 1, ImageNet-1K"], (500, 1000)),
    "cifar100": (["RM, table 1, CIFAR-100"], (50, 100)),
    "places365": (["RM, table 1, Places-365"], (182, 365)),
    "market1501": (["RM, table 1, Market-1501"], (375, 751)),
    "imagenet_18_to_50": (["RM, table A2, ImageNet-1K"], (500, 1000)),
    "cifar100_18_to_50": (["RM, table A2, CIFAR-100"], (50, 100)),
    "places365_18_to_50": (["RM, table A2, Places-365"], (182, 365)),
    "market1501_18_to_50": (["RM, table A2, Market-1501"], (375, 751)),
    "imagenet_fastfill": (["FF, tables 1, 2 and 3, ImageNet-1k (table 1)", "FF, table 5, ImageNet-1k"], (500, 1000)),
    "imagenet_fastfill_18_to_50": (["FF, table 4, ImageNet-1k"], (1000, 1000)),
    "places365_fastfill": (["FF, tables 1, 2 and 3, Places-365 (table 3)"], (182, 365)),
    "vggface2": (["FF, tables 1, 2 and 3, VGGFace2 (table 2)"], (863, 8631)),
    # Curves, or a few numbers in the text, are all that the papers print of these.
    "cifar100_18_to_vit": ([], (50, 100)),
    "cifar100_open": ([], (30, 70)),
    "gldv2": ([], (24_394, 56_919)),
    "vggface2_biased": ([], (550, 4_366)),
}
NUMBERS = re.compile(r"^ {12}(\w+)(?:, (\w+))? +([\d.]+) / ([\d.]+)(?: / (\d+))?$")


def header(name: str) -> str:
    return importlib.import_module(f"ray_backfill.recipes.{name}").__doc__ or ""


def printed_tables(name: str) -> dict[str, list[tuple[str, str | None, float, float, float | None]]]:
    """Heading of each table in the header -> its rows: method, order, AUC mAP, AUC CMC@1, gain."""
    tables: dict[str, list[tuple[str, str | None, float, float, float | None]]] = {}
    for line in header(name).splitlines():
        if heading := re.match(r"(?:Expected:| {9}) (\S.*): AUC mAP / AUC CMC@1", line):
            rows = tables.setdefault(heading[1], [])
        elif found := NUMBERS.match(line):
            method, order, auc_map, auc_cmc1, gain = found.groups()
            rows.append((method, order, float(auc_map), float(auc_cmc1), float(gain) if gain else None))
    return tables


def test_every_recipe_of_a_paper_is_listed_here() -> None:
    of_papers = {name for name in recipe_names() if "A100" in header(name)}
    assert of_papers == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_headers_print_the_published_figures(name: str) -> None:
    headings, _ = PUBLISHED[name]
    tables = {
        f"{table.source}, {data_set}": (table, i)
        for table in vars(published).values()
        if isinstance(table, PublishedTable)
        for i, data_set in enumerate(table.data_sets)
    }
    printed = printed_tables(name)
    assert list(printed) == headings
    for heading, rows in printed.items():
        table, i = tables[heading]
        cells = [(entry.method, entry.order, entry.cells[i]) for entry in table.rows]
        assert rows == [(method, order, *cell) for method, order, cell in cells if cell is not None]
        # What the table compares, and in which order, is what the recipe compares.
        evaluation = load_recipe(name, Path("/data")).evaluation
        assert {method for method, *_ in rows} <= set(evaluation.methods)
        assert {order for _, order, *_ in rows if order} <= set(evaluation.orders)
        assert evaluation.distance == ("cosine" if "l2 distance" not in table.setting or "vgg" in name else "l2")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes_follow_their_protocol(name: str) -> None:
    recipe = load_recipe(name, Path("/data"), seed=1)
    size = dataset_module(type(recipe.images).__module__.rsplit(".", 1)[-1]).PUBLISHED
    labels = np.arange(size.classes)
    groups = labels % 2 if recipe.protocol.kind == "biased" else None
    old, new = split_classes(labels, recipe.protocol, groups)
    assert (len(old), len(new)) == PUBLISHED[name][1]
    if recipe.protocol.kind == "extended":
        assert old == list(range(len(old))), "the first classes"
    if recipe.protocol.kind == "open":
        assert not set(old) & set(new)
    assert recipe.images.image_size == 224
    for model in (recipe.old, recipe.new):
        assert model.backbone.dim == (512 if "places" in name else 128)
        assert (model.training.epochs, model.training.batch, model.training.momentum) == (100, 1024, 0.875)
        assert model.training.lr == (0.1 if model.backbone.arch == "vit_b_32" else 1.024)
        assert (model.training.weight_decay, model.training.warmup_epochs) == (3.0517578125e-5, 5)
        assert model.training.label_smoothing == 0.1
        losses = model.training.compatible
        assert (losses.influence, losses.ract_weight, losses.ract_tau) == (1.0, 1.0, 0.5)
        assert (model.training.arcface_margin, model.training.arcface_scale) == (0.5, 64.0)
    assert recipe.old.backbone.arch == ("resnet50" if name in RESNET_50_TWICE else "resnet18")
    assert recipe.new.backbone.arch == _new_arch(name)
    heads, transforms = recipe.fits.heads, recipe.fits.transforms
    assert (heads.lr, heads.loss.tau, heads.epochs) == (1e-4, 1.0, 50)
    assert heads.blocks == (5 if "imagenet" in name or "places" in name else 2)
    assert (transforms.lr, transforms.weight_decay, transforms.batch, transforms.epochs) == (5e-4, 2**-15, 1024, 80)
    assert (transforms.hidden, transforms.fixed_norm_from * transforms.epochs) == (2048, 40)
    assert (heads.loss.hard_mining, transforms.warmup_epochs) == (True, 5)
    assert (transforms.loss.arcface_margin, transforms.loss.arcface_scale) == (0.5, 64.0)
    assert recipe.evaluation.points == 11
    assert recipe.evaluation.metrics == (("mAP@100" if name == "gldv2" else "mAP"), "CMC@1")
    is_fastfill = "fastfill" in recipe.evaluation.methods
    assert recipe.evaluation.orders == (("random", "entropy", "sigma") if is_fastfill else ("classifier_score",))
    if "open" in recipe.protocol.kind:
        assert set(recipe.evaluation.methods) == {"old", "new", "rm_naive", "ract", "rm"}  # RM, section 5.3
    if name == "cifar100_18_to_vit":
        assert "rqt" in recipe.evaluation.methods  # RM, section 5.3
    if name == "vggface2_biased":
        assert (recipe.protocol.old_counts, recipe.protocol.new_counts) == ((50, 500), (2183, 2183))  # women, men
    is_face = "vgg" in name
    assert recipe.new.training.classification == transforms.loss.classification == ("arcface" if is_face else "softmax")
    check_distances_agree(recipe.evaluation.find_methods(), recipe.evaluation.distance, recipe.fits)


RESNET_50_TWICE = {"imagenet", "imagenet_fastfill", "places365_fastfill"}


def _new_arch(name: str) -> str:
    if name.endswith("_to_vit"):
        return "vit_b_32"
    is_50 = name in RESNET_50_TWICE or name.endswith("_to_50") or name.startswith("vggface2")
    return "resnet50" if is_50 else "resnet18"


@pytest.mark.parametrize("name", PUBLISHED)
def test_headers_say_how_to_run_and_what_the_papers_leave_open(name: str) -> None:
    text = header(name)
    assert f"python jobs/simulate.py --recipe {name} --data-root PATH" in text
    assert "--workers.number 4" in text
    assert "estimate" in text
    assert "Expected: " in text
    assert "Silent:   " in text
    assert describe_recipe(name).count(".") >= 2
    assert load_recipe(name, Path("/data")).images.root == "/data"


@pytest.mark.parametrize("name", ["cifar100_open", "gldv2"])
def test_estimates_in_headers_are_those_of_the_dry_run(name: str) -> None:
    printed = re.search(r"about ([\d.]+) GPU hours", header(name))
    assert printed is not None
    recipe = load_recipe(name, Path("/nowhere"))
    plan = plan_upgrade(recipe, count_images(recipe), Workers(4, 8), EmbedActors(4, 8))
    assert float(printed[1]) == pytest.approx(plan.gpu_hours, rel=0.05)
