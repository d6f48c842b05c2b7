"""Small backbones and objectives of each kind."""

from collections.abc import Callable
from typing import Any

import torch

from ray_backfill.learn.methods import all_backbones
from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.training.objective import ClassSpread, OldModel
from ray_backfill.learn.training.settings import BackboneSettings, ObjectiveSettings

NEW = BackboneInfo(BackboneSettings(dim=6, width=2), 1, 8, classes=[1, 3, 4, 7])
OLD = BackboneInfo(BackboneSettings(dim=4, width=2), 1, 8, classes=[0, 3, 7])
SETTINGS = ObjectiveSettings()


def frozen(
    info: BackboneInfo = OLD, means: torch.Tensor | None = None, spread: Callable[[], ClassSpread] | None = None
) -> OldModel:
    torch.manual_seed(1)
    return OldModel(info.build().eval().requires_grad_(False), info, means, spread)


def objective_of(
    name: str, old: OldModel | None, settings: ObjectiveSettings = SETTINGS, new: BackboneInfo = NEW
) -> Any:
    torch.manual_seed(0)
    return all_backbones()[name].objective(new.build(), new, settings, old)
