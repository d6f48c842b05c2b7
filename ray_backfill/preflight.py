"""What would fail late, after hours of work, is said before the work starts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_backfill.datasets import open_source
from ray_backfill.errors import InputError
from ray_backfill.methods import Method
from ray_backfill.models.backbones import check_arch
from ray_backfill.orders import ORDERS
from ray_backfill.protocols import split_classes
from ray_backfill.recipes import Recipe
from ray_backfill.simulation import Evaluation
from ray_backfill.store import EmbeddingFolder
from ray_backfill.training.backbone_loop import images_per_worker, training_rows
from ray_backfill.training.head_loop import HeadTraining, anchors_per_worker


def check_recipe(recipe: Recipe[Any], workers: int, but: Sequence[str] = ()) -> None:
    """Raises InputError for backbones that cannot be built for these images, or not be trained on them.

    but: of "old" and "new", those that are trained already.
    """
    source = open_source(recipe.images)
    labels = source.items("train").labels_N
    models = zip(("old", "new"), (recipe.old, recipe.new), split_classes(labels, recipe.protocol), strict=True)
    for role, model, classes in models:
        if role in but:
            continue
        check_arch(model.backbone, source.channels, source.image_size)
        images_per_worker(len(training_rows(labels, classes)), classes, model.training, workers)


def check_evaluation(recipe: Recipe[Any], workers: int) -> None:
    """Raises InputError for methods, orders and queries that could not be evaluated once all is embedded."""
    recipe.evaluation.check()
    for order in recipe.evaluation.orders:
        if ORDERS[order].needs not in (None, "label", "old_score"):
            raise InputError(f"order {order!r} needs a column {ORDERS[order].needs!r}, which images do not have")
    methods = recipe.evaluation.find_methods()
    check_distances_agree(methods, recipe.evaluation, recipe.heads)
    source = open_source(recipe.images)
    train, gallery = source.items("train").labels_N, source.items("gallery").labels_N
    if any(method.head for method in methods):
        _, new_classes = split_classes(train, recipe.protocol)
        anchors_per_worker(train[training_rows(train, new_classes)], recipe.heads, workers)
    if "queries" in source.splits:
        unknown = np.setdiff1d(source.items("queries").labels_N, gallery)
        if len(unknown):
            raise InputError(f"the queries show {len(unknown)} classes that the gallery lacks; remove these queries")


def check_distances_agree(methods: list[Method], evaluation: Evaluation, training: HeadTraining) -> None:
    """Raises InputError where heads would be trained under another distance than they are compared by."""
    if any(method.head for method in methods) and training.loss.distance != evaluation.distance:
        raise InputError(
            f"heads would train under the {training.loss.distance} distance but be compared by {evaluation.distance}; "
            "give both --distance and --heads.loss.distance (cosine or l2), or only --methods without heads"
        )


def untrainable(folder: EmbeddingFolder, methods: list[Method]) -> dict[str, str]:
    """Method -> why its heads cannot be trained on this folder."""
    if folder.train is None:
        return {method.name: "needs train.parquet to train its heads" for method in methods if method.head}
    if folder.train.label is None:
        reason = "needs a column 'label' in train.parquet to train its heads"
        return {method.name: reason for method in methods if method.head and method.head.needs_labels}
    return {}
