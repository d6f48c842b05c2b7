"""Rendered landmarks: the demonstration that needs no files."""

from pathlib import Path

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import landmarks
from ray_backfill.recipes import NamedRecipe, Recipe
from ray_backfill.recipes._small import small_convnet, small_fits
from ray_backfill.workers.settings import EmbedSettings


def _recipe(data_root: Path | None, seed: int) -> Recipe[landmarks.Settings]:
    return Recipe(
        images=landmarks.Settings(seed=seed),
        protocol=Protocol("open", old_share=0.3, seed=seed, validation=0.1),
        old=small_convnet(16, epochs=6, seed=2 * seed),
        new=small_convnet(24, epochs=5, seed=2 * seed + 1),
        embed=EmbedSettings(part_rows=1024),
        fits=small_fits(epochs=20, transform_epochs=30, seed=seed),
        evaluation=Evaluation(metrics=("mAP@100", "CMC@1")),
    )


RECIPES = (
    NamedRecipe(
        "landmarks",
        "Rendered landmarks in the protocol of Google Landmarks v2: open class (30 % / 70 %), separate queries, "
        "mAP@100. Demo size. The old model learns other landmarks than the new one, and fewer.",
        _recipe,
    ),
)
