"""The side-information model of FCT: a backbone like the old one, trained without labels on the old model's images.

Source: Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (SimCLR), 2020, eq. 1;
Ramanujan et al., "Forward Compatible Training", 2022, section 4.3 (SimCLR embeddings as side information).

Shapes: b images of this worker, B images of all workers, p dimensions of the projection.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.training.objective import Objective


class SimClr(Objective):
    """Each view of an image must identify the other view among those of all images; labels are not used.

    The projection is only used in training; the embedding below it is kept.
    """

    n_views = 2

    def prepare(self, info: BackboneInfo) -> None:
        # DDP waits for the gradient of every trainable parameter, and this loss gives the classifier none.
        self.backbone.classifier.requires_grad_(False)
        dim = info.backbone.dim
        self.projection = nn.Sequential(
            nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, self.settings.compatible.simclr_dim)
        )

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.projection(self.backbone.embed(torch.cat(list(views)))).chunk(2)
        return nt_xent(first, second, target_B >= 0, self.settings.compatible.simclr_tau)


def nt_xent(first_bp: Tensor, second_bp: Tensor, readable_b: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """(b,) mean loss of each image's two views, and (b,) whether the first view is closest to the second.

    The views of all workers take part, with gradient, except those of unreadable images, whose loss is 0.

    Source: eq. 1.
    Cost: O(b B p).
    """
    first_bp, second_bp = F.normalize(first_bp, dim=1), F.normalize(second_bp, dim=1)
    first_Bp, second_Bp, readable_B = gather(first_bp), gather(second_bp), gather(readable_b.long()) > 0
    own_b = rank_and_size()[0] * len(first_bp) + torch.arange(len(first_bp), device=first_bp.device)
    # An unreadable image keeps its own partner, because without any items its gradient would be NaN.
    out_bB = (~readable_B).expand(len(own_b), -1).scatter(1, own_b[:, None], False)
    losses, right = [], []
    for anchor_bp, partner_Bp, beside_Bp in ((first_bp, second_Bp, first_Bp), (second_bp, first_Bp, second_Bp)):
        to_partner_bB = (anchor_bp @ partner_Bp.T / tau).masked_fill(out_bB, -torch.inf)
        to_beside_bB = (anchor_bp @ beside_Bp.T / tau).masked_fill(out_bB, -torch.inf)
        to_beside_bB = to_beside_bB.scatter(1, own_b[:, None], -torch.inf)  # exclude the view itself
        logits_b2B = torch.cat([to_partner_bB, to_beside_bB], dim=1)
        target_b = torch.where(readable_b, own_b, -1)
        losses.append(F.cross_entropy(logits_b2B, target_b, reduction="none", ignore_index=-1))
        right.append(logits_b2B.argmax(1) == target_b)
    return (losses[0] + losses[1]) / 2, right[0]
