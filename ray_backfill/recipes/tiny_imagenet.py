"""Photographs of 200 classes at 32 pixels, for CPUs: docs/results/tiny_imagenet.md.

At 64 pixels, the size of the files, --images.image-size 64 takes four times as long. With --images.queries 0 all
photographs of the gallery are queries, ten times as many.
"""

from dataclasses import replace
from pathlib import Path

from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets.folders import TinyImageNetSettings
from ray_backfill.learn.training.settings import Augmentation
from ray_backfill.recipes import ModelRecipe, NamedRecipe, Recipe, needs_root
from ray_backfill.recipes._small import small_convnet, small_fits


def _extended(data_root: Path | None, seed: int) -> Recipe[TinyImageNetSettings]:
    return _recipe(data_root, Protocol("extended", old_share=0.5, validation=0.1), seed)


def _open(data_root: Path | None, seed: int) -> Recipe[TinyImageNetSettings]:
    return _recipe(data_root, Protocol("open", old_share=0.3, seed=seed, validation=0.1), seed)


def _recipe(data_root: Path | None, protocol: Protocol, seed: int) -> Recipe[TinyImageNetSettings]:
    root = needs_root(data_root, "the folder with tiny_imagenet.zip")
    return Recipe(
        images=TinyImageNetSettings(root=root, image_size=32, queries=5),
        protocol=protocol,
        old=_model(16, 2 * seed),
        new=_model(32, 2 * seed + 1),
        fits=small_fits(epochs=10, transform_epochs=10, seed=seed),
    )


def _model(width: int, seed: int) -> ModelRecipe:
    """A small convnet that sees half of the photographs mirrored."""
    plain = small_convnet(width, epochs=8, seed=seed)
    return replace(plain, training=replace(plain.training, augmentation=Augmentation(flip=True)))


RECIPES = (
    NamedRecipe(
        "tiny_imagenet",
        "Photographs (real images) of 200 classes of ImageNet at 32 pixels, extended class: the old model knows the "
        "first 100 classes. Both models are trained alike; the new one is twice as wide and sees all classes.",
        _extended,
    ),
    NamedRecipe(
        "tiny_imagenet_open",
        "Photographs (real images) of 200 classes of ImageNet at 32 pixels, open class (30 % / 70 %): the old model "
        "knows 60 classes drawn at random, the new one the other 140 and is twice as wide.",
        _open,
    ),
)
