"""Backward-compatible training: the old classifier must recognise the new embedding.

Source: Shen et al., "Towards Backward-Compatible Representation Learning", 2020, eq. 5 and section 3.3 (classes that
the old classifier does not know: its weights are synthesised as class means of old embeddings).
Deviates: if the old classifier knows some of the classes, images of the others have no influence loss, as in the
authors' code (openBCT) with its map from new to old labels. Class means are
scaled to the length of the old classifier's own weights, because embeddings are far longer and logits of several
hundred prevented learning (Omniglot, open class: mAP 2 instead of 51).

Shapes: B images of this worker, C new classes, O old classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.models.backbones import Backbone, class_logits
from ray_backfill.models.checkpoints import BackboneInfo
from ray_backfill.models.gather import gather
from ray_backfill.training.objective import Objective, OldModel, classification_losses, fit_width
from ray_backfill.training.settings import ObjectiveSettings


class BackwardCompatible(Objective):
    """Classification loss, plus the same loss of the frozen old classifier on the new embedding."""

    def __init__(
        self, backbone: Backbone, info: BackboneInfo, settings: ObjectiveSettings, old: OldModel | None
    ) -> None:
        super().__init__(backbone, info, settings, old)
        assert old is not None
        classifier = old.network.classifier
        # Plain tensors are neither trained nor saved. (DDP would send buffers at every step.)
        own_Cd, own_bias, means = classifier.weight.detach(), classifier.bias, old.class_means_Cd
        self._weight = own_Cd if means is None else F.normalize(means, dim=1) * own_Cd.norm(dim=1).mean()
        self._bias = None if means is not None or own_bias is None else own_bias.detach()
        self._scale = old.network.cosine_scale
        # Position of each class in the frozen classifier, -1 if unknown; the last entry is for target -1.
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
        """(B,) loss of the old classifier on new embeddings, 0 for classes that it does not know. Source: eq. 5.

        Scaled so that the mean over the batches of all workers is the mean over the images of known classes, as in the
        authors' code (openBCT). If half of the classes are known, the mean over all images would be half of it.
        """
        towards_old_Bd = fit_width(embedding_Bd, self._weight.shape[1])
        logits_BO = class_logits(towards_old_Bd, self._weight, self._bias, self._scale)
        old_target_B = self._old_target[target_B]
        losses_B = classification_losses(logits_BO, old_target_B, self.settings, self._scale)
        counts_2 = torch.stack([(old_target_B >= 0).sum(), torch.ones_like(old_target_B).sum()]).to(losses_B)
        n_known, n_images = gather(counts_2[None]).sum(0)
        return losses_B * (n_images / n_known.clamp(min=1))
