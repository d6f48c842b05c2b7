"""Your own images, with a convnet for CPUs.

On GPUs: --images.image-size 224 --old.backbone.arch resnet18 --new.backbone.arch resnet50 --workers.number 4
"""

from pathlib import Path
from typing import Any

from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import image_folder, manifest
from ray_backfill.recipes import NamedRecipe, Recipe, needs_root
from ray_backfill.recipes._small import small_convnet, small_fits


def _folder(data_root: Path | None, seed: int) -> Recipe[Any]:
    root = needs_root(data_root, "a folder of class folders, or zip files of them")
    return _recipe(image_folder.Settings(root=root), seed)


def _manifest(data_root: Path | None, seed: int) -> Recipe[Any]:
    root = needs_root(data_root, "a .csv or .parquet file with columns path and label")
    return _recipe(manifest.Settings(root=root), seed)


def _recipe(images: Any, seed: int) -> Recipe[Any]:
    return Recipe(
        images=images,
        protocol=Protocol("extended", old_share=0.5),
        old=small_convnet(16, epochs=20, seed=2 * seed),
        new=small_convnet(32, epochs=20, seed=2 * seed + 1),
        fits=small_fits(seed=seed),
    )


_LEARNS = "The old model learns the first half of the classes, the new one all of them and is twice as wide."
RECIPES = (
    NamedRecipe(
        "image_folder",
        "Your own images, a folder per class (or zip files of that), extended class, a convnet for CPUs. " + _LEARNS,
        _folder,
    ),
    NamedRecipe(
        "manifest",
        "Your own images, listed in a CSV or Parquet file of paths or URIs, extended class, a convnet for CPUs. "
        + _LEARNS,
        _manifest,
    ),
)
