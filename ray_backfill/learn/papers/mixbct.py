"""MixBCT: the new classifier must recognise new and old embeddings in the same batch.

Source: Liang et al., "MixBCT: Towards Self-Adapting Backward-Compatible Training", 2023 (arXiv 2308.06948): one
classification loss on a batch in which old embeddings replace a random share of the new ones; old embeddings that are
far from the centre of their class are denoised away. Share 0.3 and trusted share 0.9 as in the authors' public code.
Deviates: the old model embeds the same augmented view as the new one, where the code reads stored embeddings; so an old
embedding is trusted by its own distance, within the radius that holds this share of the class. That radius is of plain
images, and changed views can lie farther out, so that fewer are trusted: 84 instead of 90 % on landmarks, enough for
the share that is mixed in (docs/log.md). The code also scales each dimension to length 1 over all images before it
measures distances. With a linear classifier (softmax) old embeddings keep their length, because the paper's classifier
is ArcFace, which ignores lengths.

Shapes: B images of this worker, C new classes, d dimensions of the old model.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.learn.models.backbones import BackboneInfo, class_logits
from ray_backfill.learn.training.objective import ClassSpread, Objective, classification_losses, fit_width


class MixedCompatible(Objective):
    """Classification loss of new embeddings, a share of which are replaced by old embeddings of the same images."""

    def prepare(self, info: BackboneInfo) -> None:
        share = self.settings.compatible.mix_trusted
        self._centre_Cd, self._trusted_C = self.old.class_radii(
            len(info.classes), lambda spread: trusted_radii(spread, share)
        )
        self._images = self._trusted = self._mixed = 0

    def shares(self) -> dict[str, float]:
        seen = max(self._images, 1)
        return {"old embeddings trusted": self._trusted / seen, "mixed in": self._mixed / seen}

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        new_Bd, old_Bd = self.backbone.embed(views[0]), self.old.embed(views[0])
        class_B = target_B.clamp(min=0)
        distance_B = (F.normalize(old_Bd, dim=1) - self._centre_Cd[class_B]).norm(dim=1)
        trusted_B = (target_B >= 0) & (distance_B <= self._trusted_C[class_B])
        old_B = drawn(trusted_B, int(self.settings.compatible.mix_share * len(target_B)))
        if not trusted_B.is_meta:  # there, only the cost of a step is counted
            self._images += len(target_B)
            self._trusted += int(trusted_B.sum())
            self._mixed += int(old_B.sum())
        mixed_Bd = torch.where(old_B[:, None], fit_width(old_Bd, new_Bd.shape[1]), new_Bd)
        classifier, scale = self.backbone.classifier, self.backbone.cosine_scale
        logits_BC = class_logits(mixed_Bd, classifier.weight, classifier.bias, scale)
        return classification_losses(logits_BC, target_B, self.settings, scale), logits_BC.argmax(1) == target_B


def drawn(allowed_B: Tensor, n: int) -> Tensor:
    """(B,) n random ones of those allowed, or all of them if there are fewer. Uses torch's global generator."""
    score_B = torch.rand(len(allowed_B), device=allowed_B.device).masked_fill(~allowed_B, -1)
    return torch.zeros_like(allowed_B).scatter(0, score_B.topk(n).indices, True) & allowed_B


def trusted_radii(spread: ClassSpread, share: float) -> Tensor:
    """(C,) radius around the centre of each class that holds this share of its old embeddings, rounded up."""
    radii = np.zeros(len(spread.centre_Cd))
    for position, ordered in spread.sorted_by_class():
        radii[position] = ordered[math.ceil(share * len(ordered)) - 1]
    return torch.from_numpy(radii).to(spread.centre_Cd)
