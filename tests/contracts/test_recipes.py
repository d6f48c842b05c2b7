"""Every recipe, found by itself: its settings are sound and can be written down."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill import recipes
from ray_backfill.cli.main import group_help
from ray_backfill.compare.resolve import check_distances_agree
from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import own_rows
from ray_backfill.images.class_split import split_classes
from ray_backfill.images.datasets import dataset_of, published
from ray_backfill.learn.models.backbones import check_arch
from ray_backfill.recipes import all_recipes, load_recipe
from ray_backfill.recipes.table import PUBLISHED


@pytest.mark.parametrize("name", list(all_recipes()))
def test_every_recipe_is_sound(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, tmp_path, seed=3)
    assert dataset_of(recipe.images).settings is type(recipe.images)
    for model in (recipe.old, recipe.new):
        # Of another dimension it is the same network: so each is built once.
        check_arch(replace(model.backbone, dim=16), channels=3, image_size=64)
    assert recipe.old.training.seed != recipe.new.training.seed, "the same start would make the models alike"
    recipe.evaluation.check()
    assert json.loads(json.dumps(asdict(recipe)))["fits"]["heads"]["seed"] == 3
    assert recipe.evaluation.order_seed == 3
    assert all_recipes()[name].description.endswith(".")


def test_no_name_is_given_twice() -> None:
    names = [row.name for row in own_rows(recipes, "RECIPES")]
    assert len(set(names)) == len(names)


def test_recipes_say_what_they_need() -> None:
    complaints = []
    for name in all_recipes():
        try:
            load_recipe(name)
        except InputError as error:
            complaints.append(str(error))
    assert complaints
    assert all(text.startswith("this recipe needs --data-root: ") for text in complaints)


def test_help_says_what_the_recipe_is() -> None:
    shown = " ".join(group_help("simulate", [], "recipes").split())
    assert f"cifar100_open {all_recipes()['cifar100_open'].description}" in shown
    shown = group_help("simulate", ["--recipe", "cifar100_open"], "protocol")
    assert "--protocol.kind {extended,open,same,biased}" in shown


# Published recipe -> architectures of the old and the new model, and how many classes each knows.
EXPECTED = {
    "imagenet": ("resnet50", "resnet50", 500, 1000),
    "imagenet_18_to_50": ("resnet18", "resnet50", 500, 1000),
    "imagenet_fastfill": ("resnet50", "resnet50", 500, 1000),
    "imagenet_fastfill_18_to_50": ("resnet18", "resnet50", 1000, 1000),
    "cifar100": ("resnet18", "resnet18", 50, 100),
    "cifar100_18_to_50": ("resnet18", "resnet50", 50, 100),
    "cifar100_18_to_vit": ("resnet18", "vit_b_32", 50, 100),
    "cifar100_open": ("resnet18", "resnet18", 30, 70),
    "places365": ("resnet18", "resnet18", 182, 365),
    "places365_18_to_50": ("resnet18", "resnet50", 182, 365),
    "places365_fastfill": ("resnet50", "resnet50", 182, 365),
    "market1501": ("resnet18", "resnet18", 375, 751),
    "market1501_18_to_50": ("resnet18", "resnet50", 375, 751),
    "vggface2": ("resnet18", "resnet50", 863, 8631),
    "vggface2_biased": ("resnet18", "resnet50", 550, 4366),
    "gldv2": ("resnet18", "resnet18", 24_394, 56_919),
}


def test_every_published_recipe_is_expected() -> None:
    assert {row.name for row in PUBLISHED} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_published_recipes_follow_their_protocol(name: str) -> None:
    recipe = load_recipe(name, Path("/data"), seed=1)
    size = published(recipe.images)
    assert size is not None
    labels = np.arange(size.classes)
    groups = labels % 2 if recipe.protocol.kind == "biased" else None
    old, new = split_classes(labels, recipe.protocol, groups)
    assert (recipe.old.backbone.arch, recipe.new.backbone.arch, len(old), len(new)) == EXPECTED[name]
    if recipe.protocol.kind == "extended":
        assert old == list(range(len(old))), "the first classes"
    if recipe.protocol.kind == "open":
        assert not set(old) & set(new)
        assert set(recipe.evaluation.methods) == {"old", "new", "rm_naive", "ract", "rm"}  # RM, section 5.3
    if name == "cifar100_18_to_vit":
        assert "rqt" in recipe.evaluation.methods  # RM, section 5.3
    if name == "vggface2_biased":
        assert (recipe.protocol.old_counts, recipe.protocol.new_counts) == ((50, 500), (2183, 2183))  # women, men
    assert recipe.images.image_size == 224
    # RM: section 5.1. FF's public configuration: 20 moments between the first and the last.
    assert recipe.evaluation.points == (
        22 if name.startswith("vgg") or name.endswith(("_fastfill", "_fastfill_18_to_50")) else 11
    )
    assert recipe.evaluation.metrics == (("mAP@100" if name == "gldv2" else "mAP"), "CMC@1")
    is_fastfill = "fastfill" in recipe.evaluation.methods
    assert recipe.evaluation.orders == (("random", "entropy", "sigma") if is_fastfill else ("classifier_score",))
    check_distances_agree(recipe.evaluation.named.methods, recipe.evaluation.distance, recipe.fits)


@pytest.mark.parametrize("name", EXPECTED)
def test_published_recipes_train_with_the_hyper_parameters_of_the_papers(name: str) -> None:
    recipe = load_recipe(name, Path("/data"), seed=1)
    for model in (recipe.old, recipe.new):
        assert model.backbone.dim == (512 if "places" in name else 128)
        training, losses = model.training, model.training.compatible
        assert (training.epochs, training.batch, training.momentum) == (100, 1024, 0.875)
        # As in the authors' public configuration; FF's appendix A.2 does not say.
        assert not training.nesterov
        assert model.backbone.last_layer == "relu"
        assert training.lr == (0.1 if model.backbone.arch == "vit_b_32" else 1.024)
        assert (training.weight_decay, training.warmup_epochs) == (3.0517578125e-5, 5)
        assert training.label_smoothing == 0.1
        assert (losses.influence, losses.ract_weight, losses.ract_tau) == (1.0, 1.0, 0.5)
        assert (training.arcface_margin, training.arcface_scale) == (0.5, 64.0)
        assert training.classification == ("arcface" if "vgg" in name else "softmax")
    heads, transforms = recipe.fits.heads, recipe.fits.transforms
    assert (heads.lr, heads.loss.tau, heads.loss.hard_mining, heads.epochs) == (1e-4, 1.0, True, 50)
    assert heads.blocks == (5 if "imagenet" in name or "places" in name else 2)
    assert (transforms.lr, transforms.weight_decay, transforms.batch, transforms.epochs) == (5e-4, 2**-15, 1024, 80)
    assert (transforms.hidden, transforms.fixed_norm_from * transforms.epochs) == (2048, 40)
    assert transforms.warmup_epochs == 5
    loss = transforms.loss
    assert (loss.disc_weight, loss.uncertainty_weight, loss.label_smoothing, loss.relative) == (1.0, 0.5, 0.1, False)
    assert (transforms.loss.arcface_margin, transforms.loss.arcface_scale) == (0.5, 64.0)
    assert transforms.loss.classification == recipe.new.training.classification
