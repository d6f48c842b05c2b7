"""Backward-compatible training: the old classifier must recognise the new embedding.

Source: Shen et al., "Towards Backward-Compatible Representation Learning", 2020, eq. 5 and section 3.3 (classes that
the old classifier does not know: its weights are synthesised as class means of old embeddings).
Deviates: if the old classifier knows some of the classes, images of the others have no influence loss, as in the
authors' code (openBCT) with its map from new to old labels, unless ``pseudo_weights`` is on. Class means are
scaled to the length of the old classifier's own weights, because embeddings are far longer and logits of several
hundred prevented learning (Omniglot, open class: mAP 2 instead of 51).

Shapes: B images of this worker, C new classes, O old classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.learn.models.backbones import BackboneInfo, class_logits
from ray_backfill.learn.models.gather import gather
from ray_backfill.learn.training.objective import Objective, OldModel, classification_losses, fit_width


class BackwardCompatible(Objective):
    """Classification loss, plus the same loss of the frozen old classifier on the new embedding."""

    def prepare(self, info: BackboneInfo) -> None:
        old = self.old
        # Plain tensors are neither trained nor saved. (DDP would send buffers at every step.)
        self._weight, self._bias, position_C = _frozen_classifier(old, info)
        self._scale = old.network.cosine_scale
        self._old_target = torch.tensor([*position_C.tolist(), -1], device=self._weight.device)

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        embedding_Bd, losses_B, right_B = self.classified(views[0], target_B)
        return losses_B + self.settings.compatible.influence * self.influence(embedding_Bd, target_B), right_B

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


def _frozen_classifier(old: OldModel, info: BackboneInfo) -> tuple[Tensor, Tensor | None, NDArray[np.int64]]:
    """(O, d) weights, (O,) bias, and the (C,) row of each new class, -1 for a class without weights.

    With class means, classes that the old classifier does not know have their mean as weights, scaled to the length of
    the others, and the mean bias. If it knows none, its own classes are left out.
    """
    own_Od, own_bias = old.network.classifier.weight.detach(), old.network.classifier.bias
    known_C = np.isin(info.classes, old.info.classes)
    row_C = np.where(known_C, np.searchsorted(old.info.classes, info.classes), -1)
    if old.class_means_Cd is None:
        return own_Od, None if own_bias is None else own_bias.detach(), row_C
    unknown = torch.from_numpy(~known_C).to(own_Od.device)
    pseudo = F.normalize(old.class_means_Cd[unknown], dim=1) * own_Od.norm(dim=1).mean()
    if not known_C.any():
        return pseudo, None, np.arange(len(known_C))
    row_C[~known_C] = len(own_Od) + np.arange(len(pseudo))
    bias = None
    if own_bias is not None:
        bias = torch.cat([own_bias.detach(), own_bias.detach().mean().expand(len(pseudo))])
    return torch.cat([own_Od, pseudo]), bias, row_C
