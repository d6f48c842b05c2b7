"""Handwritten characters, with an old model that was trained on few characters of one of two subgroups.

Run:      python jobs/simulate.py --recipe omniglot_biased --data-root PATH
Time:     three minutes on two CPU cores.
Expected: docs/results/omniglot.md, "Gap between subgroups"
"""

from dataclasses import replace
from pathlib import Path

from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.datasets import omniglot as images
from ray_backfill.protocols import Protocol
from ray_backfill.recipes import Recipe, omniglot


def recipe(data_root: Path | None, seed: int) -> Recipe[images.Settings]:
    """The old model knows a tenth of the characters of the first subgroup and all of the second, as in FastFill 5.3."""
    plain = omniglot.recipe(data_root, seed)
    return replace(
        plain,
        images=replace(plain.images, groups=True),
        protocol=Protocol("biased", old_share=0.1, seed=seed),
        evaluation=Evaluation(
            methods=("rm_naive", "fct", "fastfill", "rm"),
            orders=("random", "classifier_score", "entropy", "sigma"),
        ),
    )
