"""Training objectives of backbones: their interface, plain classification, and what they see of the old model.

Source: Deng et al., "ArcFace: Additive Angular Margin Loss", 2019, eq. 3; FastFill, section 4.2 (label smoothing).

Shapes: N readable images of the train split, B images of this worker, C classes, d dimensions. Targets are positions
in the model's classes, or -1 for an unreadable image, which has no loss and is not a negative of others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from ray_backfill.learn.models.backbones import Backbone, BackboneInfo, pixels_to_float
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.training.batches import PixelFeed
from ray_backfill.learn.training.settings import ClassificationSettings, ObjectiveSettings

# Images of the old model embedded at a time.
_BATCH = 256


@dataclass(frozen=True)
class ClassSpread:
    """Old embeddings of length 1, of images without augmentation.

    centre_Cd: their mean over each class. target_N: position of each image's class. distance_N: Euclidean distance of
    its embedding to the centre of its class.
    """

    centre_Cd: Tensor
    target_N: Tensor
    distance_N: Tensor

    def sorted_by_class(self) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Each class that has readable images, with their distances, ascending."""
        distance_N, target_N = self.distance_N.double().cpu().numpy(), self.target_N.cpu().numpy()
        order = np.lexsort((distance_N, target_N))
        classes, firsts = np.unique(target_N[order], return_index=True)
        yield from zip(classes.tolist(), np.split(distance_N[order], firsts[1:]), strict=True)


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

    def class_radii(self, n_classes: int, radii_of: Callable[[ClassSpread], Tensor]) -> tuple[Tensor, Tensor]:
        """(C, d) centres of the classes and (C,) radii; zeros and ones if only the cost of a step is counted."""
        if self.spread is None:
            return torch.zeros(n_classes, self.info.backbone.dim), torch.ones(n_classes)
        spread = self.spread()
        return spread.centre_Cd, radii_of(spread)


class Objective(nn.Module, ABC):
    """A backbone with its training loss. DDP wraps the objective; only the backbone is kept in the end.

    n_views: number of random views of each image per step. progress: share of the training that is done, from 0 to 1;
    the loop sets it before each step.
    """

    n_views = 1
    progress = 0.0

    def shares(self) -> dict[str, float]:
        """What to show of the steps so far beside loss and accuracy: name -> share of this worker's images."""
        return {}

    def __init__(
        self, backbone: Backbone, info: BackboneInfo, settings: ObjectiveSettings, old: OldModel | None
    ) -> None:
        """backbone: untrained. old: None for objectives that do not need it."""
        super().__init__()
        self.backbone, self.settings = backbone, settings
        # In a tuple torch does not find the old network: it is not trained, put in train mode or saved.
        self._old = (old,)
        self.prepare(info)

    def prepare(self, info: BackboneInfo) -> None:
        """Makes what the loss needs besides the backbone. info: describes it."""

    @property
    def old(self) -> OldModel:
        """The frozen old model, if this objective needs it."""
        (old,) = self._old
        assert old is not None
        return old

    @abstractmethod
    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        """Views, each (B, C, S, S) float in [0, 1] -> (B,) losses, and (B,) bool, which predictions were right."""

    def classified(self, view_BCSS: Tensor, target_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, d) embeddings, (B,) classification losses, and (B,) bool, which predictions are right."""
        embedding_Bd, logits_BC = self.backbone(view_BCSS)
        losses_B = classification_losses(logits_BC, target_B, self.settings, self.backbone.cosine_scale)
        return embedding_Bd, losses_B, logits_BC.argmax(1) == target_B


# The class of an objective, possibly with some arguments bound.
MakeObjective = Callable[[Backbone, BackboneInfo, ObjectiveSettings, OldModel | None], Objective]


class Classification(Objective):
    """The backbone as a classifier of its classes: the objective of the old and the new model."""

    def forward(self, views: Sequence[Tensor], target_B: Tensor) -> tuple[Tensor, Tensor]:
        return self.classified(views[0], target_B)[1:]


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


# Rows, class positions (b,) and embeddings (b, d) of readable images.
_EmbeddedBatch = tuple[NDArray[np.int64], Tensor, Tensor]


@dataclass(frozen=True)
class PlainImages:
    """Images of the train split without augmentation.

    feed: reads them. rows: of the images. targets: class positions of all rows of the split. device: of the old model.
    """

    feed: PixelFeed
    rows: NDArray[np.int64]
    targets: NDArray[np.int64]
    device: torch.device

    def embedded(self, embed: Callable[[Tensor], Tensor]) -> Iterator[_EmbeddedBatch]:
        """This worker's share of them, in batches."""
        rank, size = rank_and_size()
        mine = self.rows[rank::size]
        batches = [mine[i : i + _BATCH] for i in range(0, len(mine), _BATCH)]
        for batch, (pixels, readable) in zip(batches, self.feed.batches(batches), strict=True):
            vectors = embed(pixels_to_float(pixels[torch.from_numpy(readable)].to(self.device)))
            yield batch[readable], torch.from_numpy(self.targets[batch[readable]]).to(self.device), vectors


def freeze_old(old: OldModel, info: BackboneInfo, images: PlainImages, with_means: bool = False) -> OldModel:
    """The old model on the device, in eval mode, with class means if it knows none of the new model's classes.

    A class mean is the mean old embedding of the class's images. info: describes the new model. with_means: with class
    means in any case. Under DDP every worker calls this.
    """
    old = replace(old, network=old.network.to(images.device).eval().requires_grad_(False))
    shape = len(info.classes), old.info.backbone.dim
    old = replace(old, spread=partial(class_spread, old.embed, shape, images))
    if set(old.info.classes) & set(info.classes) and not with_means:
        return old
    return replace(old, class_means_Cd=_class_means(images.embedded(old.embed), shape, images.device))


def class_spread(embed: Callable[[Tensor], Tensor], shape: tuple[int, int], images: PlainImages) -> ClassSpread:
    """embed: the old model. shape: (C, d).

    Under DDP every worker calls this and embeds a share. Cost: each image is embedded twice, so that no embedding has
    to be kept.
    """
    rows, device = images.rows, images.device
    position_of = np.zeros(int(rows.max()) + 1, np.int64)
    position_of[rows] = np.arange(len(rows))

    def unit_embedded() -> Iterator[_EmbeddedBatch]:
        for rows_b, target_b, vectors_bd in images.embedded(embed):
            yield rows_b, target_b, F.normalize(vectors_bd, dim=1)

    centre_Cd = _class_means(unit_embedded(), shape, device)
    # Each worker fills in its own images; the second column says which are readable.
    measured = torch.zeros(len(rows), 2, device=device)
    for rows_b, target_b, unit_bd in unit_embedded():
        distance_b = (unit_bd - centre_Cd[target_b]).norm(dim=1)
        at = torch.from_numpy(position_of[rows_b]).to(device)
        measured[at] = torch.stack([distance_b, torch.ones_like(distance_b)], dim=1)
    measured = gather(measured[None]).sum(0)
    readable_N = measured[:, 1] > 0
    target_N = torch.from_numpy(images.targets[rows]).to(device)[readable_N]
    return ClassSpread(centre_Cd, target_N, measured[readable_N, 0])


def _class_means(batches: Iterable[_EmbeddedBatch], shape: tuple[int, int], device: torch.device) -> Tensor:
    """(C, d) mean of each class over all workers; 0 for a class without readable images."""
    sums = torch.zeros(shape[0], shape[1] + 1, device=device)  # the last column counts the images
    for _, target_b, vectors_bd in batches:
        sums.index_add_(0, target_b, torch.cat([vectors_bd, torch.ones_like(vectors_bd[:, :1])], dim=1))
    sums = gather(sums[None]).sum(0)
    return sums[:, :-1] / sums[:, -1:].clamp(min=1)
