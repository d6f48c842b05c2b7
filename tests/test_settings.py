"""Numbers that no setting can be: a line that names the option, not a traceback in the middle of a run."""

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.core.errors import InputError
from ray_backfill.drill.settings import ChurnSettings, LiveSettings, ShardSettings, ThrottleSettings, TrafficSettings
from ray_backfill.engine.index import IndexSettings
from ray_backfill.forecast.settings import ForecastSettings
from ray_backfill.images.class_split import Protocol, split_classes
from ray_backfill.images.datasets import landmarks
from ray_backfill.learn.training import settings as training
from ray_backfill.recipes import EmbedSettings
from ray_backfill.recipes.run.synthetic import SyntheticGallery
from ray_backfill.workers.settings import EmbedActors, ReplayPlace, Workers
from reproduction.settings import Experiment

ALL: tuple[Any, ...] = (
    Evaluation(), ForecastSettings(), ReplayPlace(), Workers(), EmbedActors(), EmbedSettings(), IndexSettings(),
    LiveSettings(), ShardSettings(), TrafficSettings(), ThrottleSettings(), ChurnSettings(),
    Experiment("landmarks"), Protocol(), landmarks.Settings(), SyntheticGallery(), training.FitSettings(),
    training.HeadTraining(), training.LossSettings(), training.TransformTraining(), training.TransformSettings(),
    training.OrthogonalSettings(), training.AdapterSettings(), training.BackboneTraining(), training.CompatibleLosses(),
    training.Augmentation(),
)  # fmt: skip


def numbers() -> Iterator[Any]:
    """Every number of every group of settings, and what it cannot be."""
    for settings in ALL:
        for each in fields(settings):
            value = getattr(settings, each.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                for bad in (-1, math.nan) if isinstance(value, float) else (-1,):
                    yield pytest.param(settings, each.name, bad, id=f"{type(settings).__name__}.{each.name}={bad}")


def used(settings: Any) -> None:
    """What looks at the settings first, where they do not look at themselves."""
    if isinstance(settings, Evaluation | ForecastSettings):
        settings.check()
    elif isinstance(settings, landmarks.Settings):
        landmarks.open_images(settings)
    elif isinstance(settings, Protocol):
        split_classes(np.arange(10), settings)


@pytest.mark.parametrize(("settings", "name", "bad"), list(numbers()))
def test_no_number_is_negative_or_not_a_number(settings: Any, name: str, bad: float) -> None:
    used(settings)
    with pytest.raises(InputError, match=f"{bad}|{name.replace('_', '-')}"):
        used(replace(settings, **{name: bad}))


@pytest.mark.parametrize("seeds", [(), (-1,), (0, 1, 0), (2, -1)])
def test_seeds_are_different_numbers_from_0_on(seeds: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="--seeds must be one or more different numbers from 0 on"):
        Experiment("landmarks", seeds=seeds)


@pytest.mark.parametrize(
    ("settings", "name"),
    [(Experiment("landmarks"), "permutations"), (Evaluation(), "points"), (Evaluation(), "permutations"),
     (Workers(), "number"), (training.HeadTraining(), "blocks"), (SyntheticGallery(), "queries"),
     (LiveSettings(), "part_items"), (ShardSettings(), "number"), (landmarks.Settings(), "queries")],
)  # fmt: skip
def test_counts_are_not_zero(settings: Any, name: str) -> None:
    with pytest.raises(InputError, match="0"):
        used(replace(settings, **{name: 0}))
