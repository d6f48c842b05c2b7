"""Regression-alleviating compatible training: new embeddings are contrasted with old and with new ones.

Source: Zhang et al., "Hot-Refresh Model Upgrades with Regression-Alleviating Compatible Training", 2022, section 3.3;
tau 0.5 and weight 1 as in FastFill's re-run; the authors' code has tau 0.01 and the 10 hardest negatives of each kind.
Negatives that are gathered from other workers have a gradient here, so that W workers train as one does on all items.

Shapes: b images of this worker, B images of all workers, d dimensions.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.learn.models.gather import gather
from ray_backfill.learn.training.objective import Objective, fit_width


class RegressionAlleviating(Objective):
    """Classification loss, plus a contrastive loss against the frozen old model on the same views."""

    hard = False

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        new_bd, losses_b, right_b = self.classified(views[0], target_B)
        settings = self.settings.compatible
        hardest = settings.hard_negatives if self.hard else None
        contrast_b = contrast(new_bd, self.old.embed(views[0]), target_B, settings.ract_tau, hardest)
        return losses_b + settings.ract_weight * contrast_b, right_b


class HardestNegatives(RegressionAlleviating):
    """``RegressionAlleviating`` with only the hardest negatives of each kind."""

    hard = True


def contrast(new_bd: Tensor, old_bd: Tensor, target_b: Tensor, tau: float, hardest: int | None = None) -> Tensor:
    """(b,) InfoNCE loss of each new embedding: its own old embedding against old and new ones of other classes.

    Similarities are cosines / tau; to compare with old embeddings, the new one is truncated or zero-padded to their
    dimension. The items of all workers take part, with gradient. The loss is 0 where the target is -1.

    Cost: O(b B d).
    """
    target_B = gather(target_b)
    # Unreadable images (-1) are not negatives.
    other_bB = (target_b[:, None] != target_B[None, :]) & (target_B[None, :] >= 0)
    new_bd, towards_old_bd = F.normalize(new_bd, dim=1), F.normalize(fit_width(new_bd, old_bd.shape[1]), dim=1)
    old_bd = F.normalize(old_bd, dim=1)
    positive_b = (towards_old_bd * old_bd).sum(1) / tau
    negatives = [towards_old_bd @ gather(old_bd).T / tau, new_bd @ gather(new_bd).T / tau]
    kept = [logits_bB.masked_fill(~other_bB, -torch.inf) for logits_bB in negatives]
    if hardest is not None:
        kept = [logits_bB.topk(min(hardest, logits_bB.shape[1]), dim=1).values for logits_bB in kept]
    everything_b = torch.cat([positive_b[:, None], *kept], dim=1).logsumexp(1)
    return (everything_b - positive_b) * (target_b >= 0)
