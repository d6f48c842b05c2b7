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


@dataclass(frozen=True)
class PlanningSettings:
    """Assumptions of the plan (--dry-run) about your machines. Measure yours for a few minutes and state them here."""

    # TF32 of an A100 (NVIDIA's data sheet), in which torch trains float32 convolutions.
    gpu_tflops: float = 156.0
    """Peak performance of one GPU in TFLOP/s. The default is that of an A100 in TF32."""
    # Not measured on an A100: NVIDIA's tuned ResNet-50 trains 938 images/s there in TF32 (DeepLearningExamples,
    # pytorch 21.03), a share of 0.146; 0.1 is 640 images/s.
    utilisation: float = 0.1
    """Share of that peak that training reaches, at most 1. The default is an estimate, not measured."""
    # Half of an A100's peak of 19.5 (data sheet).
    float32_tflops: float = 10.0
    """TFLOP/s that one GPU reaches, not its peak, in plain float32: embedding, maps, a ViT's training; an estimate."""
    # Less than measured on synthetic photographs (docs/results/stages.md), because real ones hold more detail.
    decode_images_per_s_per_cpu: float = 300.0
    """Image files that one CPU decodes and resizes per second. Recipes of published data sets have their own rates."""

    def __post_init__(self) -> None:
        positive = ("gpu_tflops", "utilisation", "float32_tflops", "decode_images_per_s_per_cpu")
        require_positive(self, "planning", *positive)
        if self.utilisation > 1:
            raise InputError(f"--planning.utilisation is a share and at most 1, got {self.utilisation}")

    def flops_per_s(self, in_tf32: bool) -> float:
        """Floating-point operations per second that one GPU reaches."""
        return 1e12 * (self.gpu_tflops * self.utilisation if in_tf32 else self.float32_tflops)
