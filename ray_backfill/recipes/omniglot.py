"""Handwritten characters (real images): the demonstration of docs/results/omniglot.md."""

from dataclasses import replace
from pathlib import Path

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.images.class_split import Protocol
from ray_backfill.images.datasets import omniglot
from ray_backfill.recipes import NamedRecipe, Recipe, needs_root
from ray_backfill.recipes._small import small_convnet, small_fits


def _halves(data_root: Path | None, seed: int) -> Recipe[omniglot.Settings]:
    root = needs_root(data_root, "the folder with omniglot_small1.zip and omniglot_small2.zip")
    return Recipe(
        images=omniglot.Settings(root=root),
        protocol=Protocol("extended", old_share=0.5, validation=0.2),
        old=small_convnet(16, epochs=12, seed=2 * seed),
        new=small_convnet(32, epochs=12, seed=2 * seed + 1),
        fits=small_fits(epochs=100, seed=seed),
    )


def _biased(data_root: Path | None, seed: int) -> Recipe[omniglot.Settings]:
    plain = _halves(data_root, seed)
    return replace(
        plain,
        images=replace(plain.images, groups=True, unseen=0.25),
        protocol=Protocol("biased", old_share=0.1, seed=seed, validation=0.2),
        evaluation=Evaluation(
            methods=("rm_naive", "fct", "fastfill", "rm"),
            orders=(
                *("random", "classifier_score", "entropy", "sigma"),
                *("mapped_class_mean_distance", "mapped_least_confidence"),
            ),
            points=21,  # t = 0.25 is one of them
        ),
    )


RECIPES = (
    NamedRecipe(
        "omniglot",
        "Handwritten characters (real images), extended class: the old model knows half of the 242 characters. Both "
        "models are trained alike; the new one is twice as wide and sees all characters.",
        _halves,
    ),
    NamedRecipe(
        "omniglot_biased",
        "Handwritten characters, with an old model that was trained on few characters of one of two subgroups, as in "
        "FastFill 5.3. A quarter of the characters of each subgroup is left to the gallery, which shows no others. Of "
        "the rest, the old model knows a tenth of the first subgroup and all of the second, the new model all.",
        _biased,
    ),
)
