"""Numbers of images and classes of a recipe: counted if its data are available, otherwise as published."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.images.class_split import Protocol, split_classes
from ray_backfill.images.datasets import NotThereError, Published, open_images, published
from ray_backfill.images.source import ImageSource
from ray_backfill.learn.training.backbone_loop import training_rows
from ray_backfill.recipes import NO_ROOT, Recipe

# Number of image names from which the mean length is estimated, and the length to assume without data.
_NAMES, _NAME_BYTES = 1000, 40


@dataclass(frozen=True)
class ModelCounts:
    """Training data of one model."""

    images: int
    classes: int


@dataclass(frozen=True)
class Counts:
    """The images of a recipe.

    train: the whole split, with ``labels`` labels. old, new: training data of both models; the new model's are also
    embedded. column_bytes: bytes per row of the store besides its vectors. origin: source of these numbers, as text.
    validation: images of train that are held out.
    """

    train: int
    labels: int
    gallery: int
    queries: int
    old: ModelCounts
    new: ModelCounts
    image_size: int
    channels: int
    column_bytes: int
    origin: str
    is_exact: bool
    validation: int = 0

    @property
    def embedded(self) -> dict[str, int]:
        """Split -> number of embedded images."""
        optional = {"queries": self.queries, "validation": self.validation}
        return {"train": self.new.images, "gallery": self.gallery} | {name: n for name, n in optional.items() if n}


def count_images(recipe: Recipe[Any]) -> Counts:
    """Count the data, or use the published sizes if the data are missing.

    Raises:
        InputError: The data are damaged, or missing and their size is not published; or settings or protocol do not fit
            the data.
    """
    try:
        source = open_images(recipe.source)
    except NotThereError as error:
        size = published(recipe.images)
        if size is None:
            raise
        reason = "no --data-root is given" if recipe.images.root == str(NO_ROOT) else error.problem
        return _as_published(recipe, size, reason)
    return _counted(recipe, source)


def _counted(recipe: Recipe[Any], source: ImageSource) -> Counts:
    train, gallery = source.items("train"), source.items("gallery")
    validation = len(source.items("validation")) if "validation" in source.splits else 0
    both = split_classes(train.labels_N, recipe.protocol, train.groups_N)
    old, new = (ModelCounts(len(training_rows(train.labels_N, classes)), len(classes)) for classes in both)
    some = np.unique(np.linspace(0, len(gallery) - 1, min(len(gallery), _NAMES)).astype(np.int64))
    names = source.names("gallery", some)
    optional = (gallery.groups_N, gallery.cameras_N)
    return Counts(
        train=len(train) + validation,
        labels=int(train.labels_N.max()) + 1,
        gallery=len(gallery),
        queries=len(source.items("queries")) if "queries" in source.splits else 0,
        old=old,
        new=new,
        image_size=source.image_size,
        channels=source.channels,
        column_bytes=_COLUMN_BYTES
        + 8 * sum(column is not None for column in optional)
        + (4 + round(float(np.mean([len(name.encode()) for name in names]))) if names else 0),
        origin="counted in the data",
        is_exact=True,
        validation=validation,
    )


# id, label and old_class are int64; old_score, old_entropy and old_margin float32.
_COLUMN_BYTES = 3 * 8 + 3 * 4


def _as_published(recipe: Recipe[Any], size: Published, reason: str) -> Counts:
    protocol = recipe.protocol
    validation = round(size.train * protocol.validation)
    old, new = (
        ModelCounts(round((size.train - validation) * len(classes) / size.classes), len(classes))
        for classes in _split(size.classes, protocol)
    )
    return Counts(
        train=size.train,
        labels=size.classes,
        gallery=size.gallery,
        queries=size.queries,
        old=old,
        new=new,
        image_size=recipe.images.image_size,
        channels=3,
        column_bytes=_COLUMN_BYTES + 4 + _NAME_BYTES,
        origin=f"as published, assuming classes of equal size, because the data are missing ({reason})",
        is_exact=False,
        validation=validation,
    )


def _split(n_classes: int, protocol: Protocol) -> tuple[list[int], list[int]]:
    """The classes of both models by the protocol; two subgroups of equal size if it needs subgroups."""
    classes: NDArray[np.int64] = np.arange(n_classes)
    return split_classes(classes, protocol, classes % 2 if protocol.kind == "biased" else None)
