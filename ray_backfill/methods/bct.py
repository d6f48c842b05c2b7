"""Backward-compatible training: the old classifier must recognise the new embedding.

Source: Shen et al., "Towards Backward-Compatible Representation Learning", 2020, eq. 5 and section 3.3 (classes that
the old classifier does not know: its weights are synthesised as class means of old embeddings).
Deviates: where the old classifier knows some of the classes, images of the others have no influence loss. Class means
are scaled to the length of the old classifier's own weights: embeddings are far longer, and logits of hundreds left
nothing to learn (Omniglot, open class: mAP 2 instead of 51).

Shapes: B images of this worker, C new classes, O old ones.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.methods import BackboneKind
from ray_backfill.methods._compatible import backbone_method
from ray_backfill.models.backbones import Backbone, class_logits
from ray_backfill.models.checkpoints import BackboneInfo
from ray_backfill.training.objective import (
    Objective,
    ObjectiveSettings,
    OldModel,
    classification_losses,
    fit_width,
)


class BackwardCompatible(Objective):
    """Classification, plus the same loss of the frozen old classifier on the new embedding."""

    def __init__(
        self, backbone: Backbone, settings: ObjectiveSettings, old: OldModel, old_target_C: Sequence[int]
    ) -> None:
        """old_target_C: each new class's position in the frozen classifier, -1 where that does not know it."""
        super().__init__(backbone, settings)
        classifier = old.network.classifier
        # Plain tensors, so no part of what is trained or saved. (Not buffers: DDP would send those at every step.)
        own_Cd, own_bias, means = classifier.weight.detach(), classifier.bias, old.class_means_Cd
        self._weight = own_Cd if means is None else F.normalize(means, dim=1) * own_Cd.norm(dim=1).mean()
        self._bias = None if means is not None or own_bias is None else own_bias.detach()
        self._scale = old.network.cosine_scale
        self._old_target = torch.tensor([*old_target_C, -1], device=self._weight.device)  # the last one is for -1

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        embedding_Bd, logits_BC = self.backbone(views[0])
        losses_B = classification_losses(logits_BC, target_B, self.settings, self.backbone.cosine_scale)
        influence_B = self.influence(embedding_Bd, target_B)
        return losses_B + self.settings.compatible.influence * influence_B, logits_BC.argmax(1) == target_B

    def influence(self, embedding_Bd: Tensor, target_B: Tensor) -> Tensor:
        """(B,) loss of the old classifier on new embeddings, 0 for classes that it does not know. Source: eq. 5."""
        towards_old_Bd = fit_width(embedding_Bd, self._weight.shape[1])
        logits_BO = class_logits(towards_old_Bd, self._weight, self._bias, self._scale)
        return classification_losses(logits_BO, self._old_target[target_B], self.settings, self._scale)


def _objective(
    backbone: Backbone, info: BackboneInfo, settings: ObjectiveSettings, old: OldModel | None
) -> BackwardCompatible:
    assert old is not None
    if old.class_means_Cd is not None:
        return BackwardCompatible(backbone, settings, old, range(len(info.classes)))
    place = np.searchsorted(old.info.classes, info.classes)
    known = np.isin(info.classes, old.info.classes)
    return BackwardCompatible(backbone, settings, old, np.where(known, place, -1).tolist())


BACKBONES = (BackboneKind("bct", "BCT", "Shen et al. 2020, eq. 5", like="new", objective=_objective, needs_old=True),)

METHODS = (backbone_method("bct", "BCT", "Shen et al. 2020: {bct, old}, {bct, bct}"),)
