"""Trials of a fit: combinations of settings from the small space that the fit declares. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ray_backfill.learn.training.fit import Choice
from ray_backfill.learn.training.settings import FitSettings

# Dotted name in ``FitSettings`` -> value.
Values = Mapping[str, Any]


def trials_of(space: Sequence[Choice], settings: FitSettings, number: int) -> list[Values]:
    """The values to try: first the given ones, then others drawn from the space, ``number`` in all or fewer if it ends.

    More trials begin with the same ones. A fit without a space has one trial.
    """
    names = [choice.name for choice in space]
    given = tuple(value_of(settings, name) for name in names)
    others = [values for values in product(*(choice.values for choice in space)) if values != given]
    drawn = np.random.default_rng(0).permutation(len(others))[: number - 1]
    return [dict(zip(names, values, strict=True)) for values in (given, *(others[i] for i in drawn))]


def with_values(settings: FitSettings, values: Values) -> FitSettings:
    """The settings with these values."""
    changed = settings
    for name, value in values.items():
        changed = _with_value(changed, name.split("."), value)
    return changed


def value_of(settings: Any, name: str) -> Any:
    """The value of a dotted name."""
    for part in name.split("."):
        settings = getattr(settings, part)
    return settings


def _with_value(settings: Any, path: Sequence[str], value: Any) -> Any:
    first, *rest = path
    return replace(settings, **{first: _with_value(getattr(settings, first), rest, value) if rest else value})


@dataclass(frozen=True)
class Tuned:
    """The settings that --tune chose for a method, by its AUC on the validation split."""

    method: str
    metric: str
    trials: int
    """Number of settings that were tried."""
    values: Mapping[str, Any]
    """Dotted name of a setting, as in heads.loss.tau -> the value that was chosen."""
    score: float | None
    """AUC of the chosen settings, a share; None if every training diverged."""
    given: float | None
    """AUC of the settings that were given; None if their training diverged."""
