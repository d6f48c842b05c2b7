"""Complete runs as plain settings, found by name.

A module of recipes defines ``RECIPES``, a tuple of ``NamedRecipe``. Ours are in ``table.py``.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError, require_positive, unknown_name
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.images.class_split import Divided, Protocol
from ray_backfill.learn.training.settings import BackboneSettings, BackboneTraining, FitSettings

ImagesT = TypeVar("ImagesT")

# Placeholder for the data root in --help and plans, which do not need the data.
NO_ROOT = Path("/DATA_ROOT")


@dataclass(frozen=True)
class ModelRecipe:
    """One backbone and its training."""

    backbone: BackboneSettings
    """Architecture of the backbone and size of its embeddings."""
    training: BackboneTraining
    """Training of the backbone."""


@dataclass(frozen=True)
class EmbedSettings:
    """Embedding of the images: parts, batches and number format."""

    part_rows: int = 8192
    """Images per part file. A stopped run loses at most this many images per actor."""
    batch: int = 256
    """Images per forward pass."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number format of stored embeddings. float16 halves their size and keeps three digits of each number."""
    views: int = 4
    """Stored views of each train image: the image itself, and others by the new model's training augmentation. Trained
    fits draw one at each use; everything else uses the image itself."""

    def __post_init__(self) -> None:
        require_positive(self, "embed", "part_rows", "batch", "views")


@dataclass(frozen=True)
class Recipe(Generic[ImagesT]):
    """A complete upgrade: images, protocol, both models, embedding, fits and evaluation.

    images: the ``Settings`` of one of the data sets. fits, evaluation: their options have no prefix, as in --heads.lr
    and --methods.
    """

    images: ImagesT
    protocol: Protocol
    """Classes that each model is trained on."""
    old: ModelRecipe
    """Old model: backbone and training."""
    new: ModelRecipe
    """New model: backbone and training."""
    embed: EmbedSettings = field(default_factory=EmbedSettings)
    """Embedding of the images: parts, batches and number format."""
    fits: FitSettings = field(default_factory=FitSettings)
    """Fitting of heads, transformations and adapters."""
    evaluation: Evaluation = field(default_factory=Evaluation)
    """Methods, orders, merges and metrics to compare."""

    @property
    def source(self) -> Any:
        """Settings to open the images with, divided into train and validation if the protocol says so."""
        return Divided(self.images, self.protocol) if self.protocol.validation else self.images


@dataclass(frozen=True)
class NamedRecipe:
    """A row of ``RECIPES``. name: the value of --recipe. description: one or two sentences.

    build: makes the settings from the data root (None if none was given) and the seed.
    """

    name: str
    description: str
    build: Callable[[Path | None, int], Recipe[Any]]


def all_recipes() -> dict[str, NamedRecipe]:
    """Every known recipe by name, sorted."""
    rows = (*own_rows(sys.modules[__name__], "RECIPES"), *rows_from_outside("RECIPES"))
    return dict(sorted({row.name: row for row in rows}.items()))


def load_recipe(name: str, data_root: Path | None = None, seed: int = 0) -> Recipe[Any]:
    """The recipe ``name``. Raises InputError for an unknown name, or if it needs a data_root that is not given."""
    known = all_recipes()
    if name not in known:
        raise unknown_name("recipe", name, known)
    loaded = known[name].build(data_root, seed)
    return replace(loaded, evaluation=replace(loaded.evaluation, order_seed=seed))


def needs_root(data_root: Path | None, what: str) -> str:
    """The data root as a setting. Raises InputError if it is missing."""
    if data_root is None:
        raise InputError(f"this recipe needs --data-root: {what}")
    return str(data_root.expanduser().absolute())
