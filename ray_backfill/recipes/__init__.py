"""Complete runs as plain settings; one recipe a file, found by module name.

A recipe module defines ``recipe(data_root, seed) -> Recipe``. data_root is None for data that need no files.
"""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from ray_backfill.cluster.embed import EmbedSettings
from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.errors import InputError
from ray_backfill.models.backbones import BackboneSettings
from ray_backfill.plugins import load_plugin, plugin_names
from ray_backfill.protocols import Protocol
from ray_backfill.training.backbone_loop import BackboneTraining
from ray_backfill.training.fits import FitSettings

ImagesT = TypeVar("ImagesT")

# Stands where a data root would, for --help and plans, which can do without.
NO_ROOT = Path("/DATA_ROOT")


@dataclass(frozen=True)
class ModelRecipe:
    """One backbone and how it is trained."""

    backbone: BackboneSettings
    training: BackboneTraining


@dataclass(frozen=True)
class Recipe(Generic[ImagesT]):
    """A whole upgrade: images, who learns which classes, the two models, their embeddings, fits and evaluation.

    images: the ``Settings`` of one of the data sets.
    """

    images: ImagesT
    protocol: Protocol
    old: ModelRecipe
    new: ModelRecipe
    embed: EmbedSettings = field(default_factory=EmbedSettings)
    # Typed without a prefix: --heads..., --transforms..., --adapters...
    fits: Annotated[FitSettings, tyro.conf.arg(name="")] = field(default_factory=FitSettings)
    # Typed without a prefix: --methods, --orders, --metrics, --points.
    evaluation: Annotated[Evaluation, tyro.conf.arg(name="")] = field(default_factory=Evaluation)


def recipe_names() -> list[str]:
    """The known recipes."""
    return plugin_names(sys.modules[__name__])


def load_recipe(name: str, data_root: Path | None = None, seed: int = 0) -> Recipe[Any]:
    """The recipe ``name``. Raises InputError for an unknown name, or if it needs a data_root that is not given."""
    loaded: Recipe[Any] = load_plugin(sys.modules[__name__], name).recipe(data_root, seed)
    return replace(loaded, evaluation=replace(loaded.evaluation, order_seed=seed))


def describe_recipe(name: str) -> str:
    """What a recipe is, in two sentences or so: its first line and what its function says."""
    module = load_plugin(sys.modules[__name__], name)
    texts = (module.__doc__ or "").split("\n\n")[0], module.recipe.__doc__ or ""
    return " ".join(" ".join(texts).split())


def needs_root(data_root: Path | None, what: str) -> str:
    """The data root as a setting. Raises InputError if it is missing."""
    if data_root is None:
        raise InputError(f"this recipe needs --data-root: {what}")
    return str(data_root.expanduser().absolute())
