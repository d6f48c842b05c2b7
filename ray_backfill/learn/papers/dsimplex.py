"""A fixed classifier: its weights are the vertices of a regular simplex, the same for every model of a data set.

Source: Biondi et al., "CoReS: Compatible Representations via Stationarity", TPAMI 2023 (arXiv 2111.07632), and Pernici
et al., "Regular Polytope Networks", TNNLS 2021 (arXiv 2103.15632): vertices e_1, ..., e_d and (1 - sqrt(d + 1)) / d
(e_1 + ... + e_d), centred and of length 1 as in the authors' public code; d + 1 pre-allocated classes, of which those
without images are outputs of the softmax as well. Label i has vertex i in every model, so that models trained apart
from each other agree.
Deviates: the classification loss is that of the other backbones (label smoothing, or ArcFace); the papers' is plain
cross-entropy.

Shapes: B images of this worker, C classes of this model, K = d + 1 vertices in d dimensions.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ray_backfill.core.errors import InputError
from ray_backfill.learn.models.backbones import BackboneInfo, class_logits
from ray_backfill.learn.training.objective import Objective, classification_losses


class FixedSimplex(Objective):
    """Classification by the vertices of a simplex, which are not trained. No old model takes part."""

    def prepare(self, info: BackboneInfo) -> None:
        dim = info.backbone.dim
        if max(info.classes) > dim:
            raise InputError(
                f"a d-simplex in {dim} dimensions has {dim + 1} vertices, one for each label, but there is label "
                f"{max(info.classes)}; give the backbone {max(info.classes)} dimensions"
            )
        classifier = self.backbone.classifier.requires_grad_(False)
        self._vertex_Kd = simplex(dim).to(classifier.weight)
        # The saved classifier is that of the model's own classes.
        classifier.weight.copy_(self._vertex_Kd[info.classes])
        if classifier.bias is not None:
            classifier.bias.zero_()
        # The last entry is for target -1.
        self._label = torch.tensor([*info.classes, -1], device=classifier.weight.device)

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        scale, label_B = self.backbone.cosine_scale, self._label[target_B]
        logits_BK = class_logits(self.backbone.embed(views[0]), self._vertex_Kd, None, scale)
        return classification_losses(logits_BK, label_B, self.settings, scale), logits_BK.argmax(1) == label_B


def simplex(dim: int) -> Tensor:
    """(dim + 1, dim) vertices of a regular simplex around the origin, of length 1: each two have cosine -1 / dim."""
    last = torch.full((1, dim), (1 - math.sqrt(dim + 1)) / dim, dtype=torch.float64)
    corners_Kd = torch.cat([torch.eye(dim, dtype=torch.float64), last])
    corners_Kd = corners_Kd - corners_Kd.mean(0)
    return (corners_Kd / corners_Kd.norm(dim=1, keepdim=True)).float()
