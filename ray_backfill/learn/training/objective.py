"""Training objectives of backbones: their interface, and plain classification.

Source: Deng et al., "ArcFace: Additive Angular Margin Loss", 2019, eq. 3; FastFill, section 4.2 (label smoothing).

Shapes: B images of this worker, C classes, d dimensions. Targets are positions in the model's classes, or -1 for an
unreadable image, which has no loss and is not a negative of others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.models.backbones import Backbone
from ray_backfill.learn.models.checkpoints import BackboneInfo
from ray_backfill.learn.training.class_spread import ClassSpread
from ray_backfill.learn.training.settings import ClassificationSettings, ObjectiveSettings


@dataclass(frozen=True)
class OldModel:
    """The frozen old backbone: in eval mode, on the training device, neither trained nor saved.

    class_means_Cd: mean old embeddings of the new model's classes, for classes that the old classifier does not know;
    None if only those that it knows take part. spread: computes the spread of the new model's classes, for losses that
    ask for it; None if there are no images, because only the cost of a step is counted.
    """

    network: Backbone
    info: BackboneInfo
    class_means_Cd: Tensor | None = None
    spread: Callable[[], ClassSpread] | None = None

    def embed(self, pixels_BCSS: Tensor) -> Tensor:
        """(B, d_old) embeddings, without gradient."""
        with torch.no_grad():
            return self.network.embed(pixels_BCSS)


class Objective(nn.Module, ABC):
    """A backbone with its training loss. DDP wraps the objective; only the backbone is kept in the end.

    n_views: number of random views of each image per step. progress: share of the training that is done, from 0 to 1;
    the loop sets it before each step.
    """

    n_views = 1
    progress = 0.0

    def __init__(
        self, backbone: Backbone, info: BackboneInfo, settings: ObjectiveSettings, old: OldModel | None
    ) -> None:
        """backbone: untrained. old: None for objectives that do not need it."""
        super().__init__()
        self.backbone, self.settings = backbone, settings

    @abstractmethod
    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        """Views, each (B, C, S, S) float in [0, 1] -> (B,) losses, and (B,) bool, which predictions were right."""


# The class of an objective, possibly with some arguments bound.
MakeObjective = Callable[[Backbone, BackboneInfo, ObjectiveSettings, OldModel | None], Objective]


class Classification(Objective):
    """The backbone as a classifier of its classes: the objective of the old and the new model."""

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        _, logits_BC = self.backbone(views[0])
        losses_B = classification_losses(logits_BC, target_B, self.settings, self.backbone.cosine_scale)
        return losses_B, logits_BC.argmax(1) == target_B


def classification_losses(
    logits_BC: Tensor, target_B: Tensor, settings: ClassificationSettings, cosine_scale: float | None
) -> Tensor:
    """(B,) cross-entropy, 0 where the target is -1.

    cosine_scale: scale of the classifier that made the logits; None: the logits are linear, and no margin applies.
    """
    if cosine_scale is None:
        smoothing = settings.label_smoothing
        return F.cross_entropy(logits_BC, target_B, label_smoothing=smoothing, reduction="none", ignore_index=-1)
    with_margin_BC = _with_margin(logits_BC / cosine_scale, target_B.clamp(min=0), settings.arcface_margin)
    return F.cross_entropy(cosine_scale * with_margin_BC, target_B, reduction="none", ignore_index=-1)


def _with_margin(cosine_BC: Tensor, target_B: Tensor, margin: float) -> Tensor:
    """Replace the cosine of each image's own class by cos(angle + margin). Source: ArcFace, eq. 3.

    Beyond angle + margin = pi the cosine would rise again; cos(angle) - margin sin(margin) replaces it there, as usual.
    """
    own_B1 = target_B[:, None]
    # The derivative of acos is infinite at the ends.
    cosine_B1 = cosine_BC.gather(1, own_B1).clamp(-1 + 1e-7, 1 - 1e-7)
    angle_B1 = cosine_B1.acos()
    harder_B1 = torch.where(
        angle_B1 <= math.pi - margin, (angle_B1 + margin).cos(), cosine_B1 - margin * math.sin(margin)
    )
    return cosine_BC.scatter(1, own_B1, harder_B1)


def fit_width(vectors_Bd: Tensor, width: int) -> Tensor:
    """Truncate or zero-pad vectors to ``width``, if two models differ in dimension. Source: BCT."""
    return F.pad(vectors_Bd, (0, width - vectors_Bd.shape[1]))  # a negative pad truncates
