"""Adversarial backward-compatible training: a discriminator between old and new embeddings, and a boundary per class.

Source: Pan et al., "Boundary-Aware Backward-Compatible Representation via Adversarial Learning in Image Retrieval",
CVPR 2023, section 3 (adversarial and boundary-aware compatible modules, figure 3), and the authors' public code:
gradient reversal with factor 2 / (1 + exp(-10 p)) - 1 at progress p, discriminator Linear-BatchNorm-ReLU-Linear,
class radii without outliers (1.5 interquartile ranges), boundary r + (limit - r) sigmoid(w) with a learned w per class,
mean over the images outside.
Deviates: the adversarial weight falls with every step, (1 - p), in the code with every epoch e of E, (E - e + 1) / E.
The number of images outside is counted over all workers. Centres and radii are of plain images and stay as they are,
while the loss sees changed views. Classes that the old classifier does not know have no
boundary, as their images have no influence loss in BCT; if it knows none, all classes have one.

Shapes: B images of this worker, N images of the train split, C new classes, d dimensions of the old model.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.models.gather import gather
from ray_backfill.learn.training.objective import ClassSpread, Objective, fit_width


class AdversarialCompatible(Objective):
    """Classification loss, plus the boundary of each class, plus a discriminator that the backbone has to deceive."""

    def prepare(self, info: BackboneInfo) -> None:
        old, hidden, n_classes = self.old, self.settings.compatible.discriminator, len(info.classes)
        dim = old.info.backbone.dim
        self.discriminator = nn.Sequential(
            nn.Linear(dim, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 2)
        )
        self.elastic_C = nn.Parameter(torch.rand(n_classes) * 2 - 1)
        self._centre_Cd, self._radius_C = old.class_radii(n_classes, class_radii)
        if old.class_means_Cd is None:
            known_C = torch.from_numpy(np.isin(info.classes, old.info.classes)).to(self._radius_C.device)
            self._radius_C = self._radius_C.masked_fill(~known_C, torch.nan)

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        new_Bd, losses_B, right_B = self.classified(views[0], target_B)
        old_Bd = self.old.embed(views[0])
        towards_old_Bd, weights = fit_width(new_Bd, old_Bd.shape[1]), self.settings.compatible
        outside_B = outside_boundary(
            towards_old_Bd, target_B, self._centre_Cd, self._radius_C, self.elastic_C, weights.boundary_limit
        )
        told_B = adversarial(self.discriminator, towards_old_Bd, old_Bd, self.progress) * (target_B >= 0)
        compatible_B = weights.boundary * outside_B + weights.adversarial * (1 - self.progress) * told_B
        return losses_B + compatible_B, right_B


def adversarial(discriminator: nn.Module, new_Bd: Tensor, old_Bd: Tensor, progress: float) -> Tensor:
    """(B,) losses of telling new embeddings (class 0) from old ones (class 1). The gradient of new ones is reversed."""
    told_new_B2, told_old_B2 = discriminator(reverse_gradient(new_Bd, progress)), discriminator(old_Bd)
    return F.cross_entropy(told_new_B2, torch.zeros_like(told_new_B2[:, 0], dtype=torch.long), reduction="none") + (
        F.cross_entropy(told_old_B2, torch.ones_like(told_old_B2[:, 0], dtype=torch.long), reduction="none")
    )


def reverse_gradient(x: Tensor, progress: float) -> Tensor:
    """The same values; their gradient is multiplied by 1 - 2 / (1 + exp(-10 progress)), which is 0 at first, then -1.

    Source: Ganin and Lempitsky, "Unsupervised Domain Adaptation by Backpropagation", 2015.
    """
    factor = 2 / (1 + math.exp(-10 * progress)) - 1
    return x.detach() - factor * (x - x.detach())


def outside_boundary(
    new_Bd: Tensor, target_B: Tensor, centre_Cd: Tensor, radius_C: Tensor, elastic_C: Tensor, limit: float
) -> Tensor:
    """(B,) distance of each new embedding of length 1 from outside to the boundary of its class, 0 inside.

    radius_C: of the old embeddings, NaN for a class without a boundary. Scaled so that the mean over the batches of all
    workers is the mean over the images outside.
    """
    class_B = target_B.clamp(min=0)
    has_boundary_B = (target_B >= 0) & ~radius_C[class_B].isnan()
    radius_B = radius_C.nan_to_num()[class_B]
    boundary_B = radius_B + (limit - radius_B) * elastic_C[class_B].sigmoid()
    outside_B = ((F.normalize(new_Bd, dim=1) - centre_Cd[class_B]).norm(dim=1) - boundary_B).clamp(min=0)
    outside_B = outside_B * has_boundary_B
    counts_2 = torch.stack([(outside_B > 0).sum(), torch.ones_like(target_B).sum()]).to(outside_B)
    n_outside, n_images = gather(counts_2[None]).sum(0)
    return outside_B * (n_images / n_outside.clamp(min=1))


def class_radii(spread: ClassSpread) -> Tensor:
    """(C,) largest distance of an old embedding to the centre of its class, without outliers; NaN if one remains.

    Outliers lie 1.5 interquartile ranges outside the quartiles of a class of four or more images.
    """
    radii = np.full(len(spread.centre_Cd), np.nan)
    for position, ordered in spread.sorted_by_class():
        kept = ordered
        if len(ordered) >= 4:
            low, high = ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]
            room = 1.5 * (high - low)
            kept = ordered[(ordered >= low - room) & (ordered <= high + room)]
        if len(kept) > 1:
            radii[position] = kept[-1]
    return torch.from_numpy(radii).to(spread.centre_Cd)
