"""Cost of one training step, counted in advance on torch's meta device, which has shapes but no data."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

import torch

from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.models.settings import BackboneSettings
from ray_backfill.learn.training.arithmetic import counted_flops, embed_macs, embed_parameters
from ray_backfill.learn.training.objective import Classification, MakeObjective, OldModel
from ray_backfill.learn.training.settings import BackboneTraining

# Images of a step that really runs, for models that cannot be built on the meta device.
_FEW = 2


@dataclass(frozen=True)
class NetworkCost:
    """Cost of one backbone. macs: multiply-accumulates per embedding. parameters: without the classifier's."""

    macs: int
    parameters: int


@lru_cache
def network_cost(backbone: BackboneSettings, channels: int, image_size: int) -> NetworkCost:
    """Cost of one embedding. Raises InputError for an architecture that cannot be built for such images."""
    with _shapes_only(backbone):
        network = BackboneInfo(backbone, channels, image_size, [0, 1]).build()
        return NetworkCost(embed_macs(network, channels, image_size), embed_parameters(network))


def step_flops(
    info: BackboneInfo,
    training: BackboneTraining,
    batch: int,
    make_objective: MakeObjective = Classification,
    old: BackboneInfo | None = None,
) -> float:
    """Floating-point operations of one training step on ``batch`` images (of all workers), including gradients.

    old: the frozen old model, for objectives that need it. Training counts in the same way
    (``TrainedBackbone.flops``), with the same objective.
    """
    counted = batch if _has_shapes(info.backbone) else min(batch, _FEW)
    with _shapes_only(info.backbone):
        frozen = OldModel(old.build().eval(), old) if old else None
        objective = make_objective(info.build(), info, training, frozen)
        view = torch.zeros(counted, info.channels, info.image_size, info.image_size)
        target = torch.zeros(counted, dtype=torch.long)
        with counted_flops() as flops:
            losses, _ = objective([view] * objective.n_views, target)
            losses.sum().backward()
        return flops() * batch / counted


def _has_shapes(backbone: BackboneSettings) -> bool:
    """Whether a model can be built without its weights; models of the hub may load files."""
    return not backbone.arch.startswith("hf:")


@contextmanager
def _shapes_only(backbone: BackboneSettings) -> Iterator[None]:
    with torch.device("meta" if _has_shapes(backbone) else "cpu"):
        yield
