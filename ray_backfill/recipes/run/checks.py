"""Fail-fast checks: errors that would otherwise appear after hours of work."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_backfill.compare.orders import why_not_of_images
from ray_backfill.compare.resolve import check_distances_agree
from ray_backfill.core.errors import InputError
from ray_backfill.engine.orders import find_order
from ray_backfill.images.class_split import VALIDATION, split_classes
from ray_backfill.images.datasets import open_images
from ray_backfill.images.reading import require_readable
from ray_backfill.learn.methods import all_backbones
from ray_backfill.learn.models.backbones import check_arch
from ray_backfill.learn.training.backbone_loop import images_per_worker, training_rows
from ray_backfill.learn.training.fit import TrainSet
from ray_backfill.recipes import Recipe

# Columns by which a recipe's queries can be split, as far as its data set has them.
_SLICES = ("group", "label", "camera")


def recipe_classes(recipe: Recipe[Any]) -> tuple[list[int], list[int]]:
    """The classes of the old and of the new model."""
    train = open_images(recipe.source).items("train")
    return split_classes(train.labels_N, recipe.protocol, train.groups_N)


def check_recipe(recipe: Recipe[Any], workers: int, models: Sequence[str] = ("old", "new")) -> None:
    """Raises InputError if backbones cannot be built for these images or trained on them, or if no image is readable.

    models: backbones that still have to be trained: old, new, or kinds of backbones, which are like one of the two.
    """
    source = open_images(recipe.source)
    labels, kinds = source.items("train").labels_N, all_backbones()
    roles = {kinds[model].like if model in kinds else model for model in models}
    for role, model, classes in zip(("old", "new"), (recipe.old, recipe.new), recipe_classes(recipe), strict=True):
        if role in roles:
            check_arch(model.backbone, source.channels, source.image_size)
            images_per_worker(len(training_rows(labels, classes)), classes, model.training, workers)
    if roles:
        require_readable(source)


def check_choices(recipe: Recipe[Any]) -> None:
    """Raises InputError for methods, orders, losses and columns that do not fit together, regardless of the images."""
    evaluation = recipe.evaluation
    evaluation.check()
    if evaluation.filter:
        raise InputError("--filter needs a folder of embeddings (--data) with this column; a recipe's images lack it")
    if unknown := [name for name in evaluation.slices if name not in _SLICES]:
        raise InputError(
            f"--slices: a recipe's queries have no column {unknown[0]!r}; choose from {', '.join(_SLICES)}, or "
            "simulate a folder of embeddings (--data) that has it"
        )
    methods = evaluation.named.methods
    for name in evaluation.orders:
        if reason := why_not_of_images(find_order(name), methods):
            raise InputError(f"order {name!r} {reason}")
    check_distances_agree(methods, evaluation.distance, recipe.fits)
    for method in methods:
        if method.fit and (problem := method.fit.classifier_problem(recipe.fits, recipe.new.training.classification)):
            raise InputError(problem)


def check_evaluation(recipe: Recipe[Any], workers: int) -> None:
    """Raises InputError for methods, orders and queries that could not be evaluated after the embedding."""
    check_choices(recipe)
    source = open_images(recipe.source)
    train = source.items("train").labels_N
    rows = training_rows(train, recipe_classes(recipe)[1])
    # The checks only use its size and its labels.
    stand_in = TrainSet({"": np.empty((len(rows), 0))}, train[rows])
    for method in recipe.evaluation.named.methods:
        if method.fit is not None:
            method.fit.check(stand_in, recipe.fits, workers)
    if recipe.fits.tune > 1 and VALIDATION not in source.splits:
        raise InputError("--tune needs a validation split, and nothing is held out: give --protocol.validation 0.1")
    labels, counts = np.unique(source.items("gallery").labels_N, return_counts=True)  # -1: of an unknown class
    queries = source.items("queries") if "queries" in source.splits else None
    if queries is None:
        if not (counts[labels >= 0] > 1).any():
            raise InputError("the gallery queries itself, but no class has two images there: there is nothing to find")
    elif queries.positives_N is not None:
        if not len(queries.positives_N.flatten()):
            raise InputError("no query has a right answer in the gallery: there is nothing to measure")
    elif not np.isin(queries.labels_N, labels[labels >= 0]).any():
        raise InputError("no query shows a class that the gallery has: there is nothing to find")
