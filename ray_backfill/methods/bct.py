"""Backward-compatible training: the old classifier must recognise the new embedding.

Source: Shen et al., "Towards Backward-Compatible Representation Learning", 2020, eq. 5 and section 3.3 (classes that
the old classifier does not know: its weights are synthesised as class means of old embeddings).
Deviates: where the old classifier knows some of the classes, images of the others have no influence loss. Class means
are scaled to the length of the old classifier's own weights: embeddings are far longer, and logits of hundreds left
nothing to learn (Omniglot, open class: mAP 2 instead of 51).

Shapes: B images of this worker, C new classes, O old ones.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.methods import BackboneKind, Embeddings, Method
from ray_backfill.models.backbones import Backbone, class_logits
from ray_backfill.models.checkpoints import BackboneInfo
from ray_backfill.systems import FloatArray, RetrievalSystem, UpgradePair
from ray_backfill.training.objective import Objective, ObjectiveSettings, OldModel, classification_losses, fit_width


class BackwardCompatible(Objective):
    """Classification, plus the same loss of the frozen old classifier on the new embedding."""

    def __init__(
        self, backbone: Backbone, info: BackboneInfo, settings: ObjectiveSettings, old: OldModel | None
    ) -> None:
        super().__init__(backbone, info, settings, old)
        assert old is not None
        classifier = old.network.classifier
        # Plain tensors, so no part of what is trained or saved. (Not buffers: DDP would send those at every step.)
        own_Cd, own_bias, means = classifier.weight.detach(), classifier.bias, old.class_means_Cd
        self._weight = own_Cd if means is None else F.normalize(means, dim=1) * own_Cd.norm(dim=1).mean()
        self._bias = None if means is not None or own_bias is None else own_bias.detach()
        self._scale = old.network.cosine_scale
        # Each class's position in the frozen classifier, -1 where that does not know it; the last one is for -1.
        position_C = np.arange(len(info.classes))
        if means is None:
            known_C = np.isin(info.classes, old.info.classes)
            position_C = np.where(known_C, np.searchsorted(old.info.classes, info.classes), -1)
        self._old_target = torch.tensor([*position_C.tolist(), -1], device=self._weight.device)

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


def backbone_method(name: str, title: str, source: str) -> Method:
    """{x, old} and {x, x}, where x is the backbone of this name."""

    def pair(e: Embeddings, network: Any) -> UpgradePair:
        query, old = e.query[name], e.gallery["old"]
        return UpgradePair(
            RetrievalSystem(_fit_width(query, old.shape[1]), old), RetrievalSystem(query, e.gallery[name])
        )

    return Method(name, title, source, pair, "A new backbone", models=("old", "new", name), forward=name)


def _fit_width(vectors_Nd: FloatArray, width: int) -> FloatArray:
    """The first ``width`` dimensions, or zeros added: as its training compared it with the old model."""
    missing = width - vectors_Nd.shape[1]
    return np.pad(vectors_Nd.astype(np.float32), ((0, 0), (0, missing))) if missing > 0 else vectors_Nd[:, :width]


BACKBONES = (
    BackboneKind("bct", "BCT", "Shen et al. 2020, eq. 5", like="new", objective=BackwardCompatible, needs_old=True),
)

METHODS = (backbone_method("bct", "BCT", "Shen et al. 2020: {bct, old}, {bct, bct}"),)
