"""Handwritten characters (real images), extended class: the old model knows half of the 242 characters.

Run:      python jobs/simulate.py --recipe omniglot --data-root PATH
Time:     two minutes on two CPU cores.
Expected: docs/results/omniglot.md
"""

from pathlib import Path

from ray_backfill.datasets import omniglot
from ray_backfill.protocols import Protocol
from ray_backfill.recipes import Recipe, needs_root
from ray_backfill.recipes._small import small_convnet, small_fits


def recipe(data_root: Path | None, seed: int) -> Recipe[omniglot.Settings]:
    """Both models are trained alike; the new one is twice as wide and sees all characters."""
    root = needs_root(data_root, "the folder with omniglot_small1.zip and omniglot_small2.zip")

    return Recipe(
        images=omniglot.Settings(root=root),
        protocol=Protocol("extended", old_share=0.5),
        old=small_convnet(16, epochs=12, seed=2 * seed),
        new=small_convnet(32, epochs=12, seed=2 * seed + 1),
        fits=small_fits(epochs=100, seed=seed),
    )
