"""Prepares the frozen old model for the training of a new one."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ray_backfill.learn.models.backbones import pixels_to_float
from ray_backfill.learn.models.checkpoints import BackboneInfo
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.training.class_spread import class_spread
from ray_backfill.learn.training.objective import OldModel
from ray_backfill.learn.training.pixels import PixelFeed

# Images embedded at a time.
_BATCH = 256


def freeze_old(
    old: OldModel,
    info: BackboneInfo,
    feed: PixelFeed,
    rows: NDArray[np.int64],
    targets: NDArray[np.int64],
    device: torch.device,
    with_means: bool = False,
) -> OldModel:
    """The old model on the device, in eval mode, with class means if it knows none of the new model's classes.

    A class mean is the mean old embedding of the class's images without augmentation. info: describes the new model.
    targets: positions of the classes of all train rows. with_means: with class means in any case. Under DDP every
    worker calls this.
    """
    old = replace(old, network=old.network.to(device).eval().requires_grad_(False))
    of_classes = old.info.backbone.dim, len(info.classes)
    old = replace(old, spread=partial(class_spread, old.embed, *of_classes, feed, rows, targets, device))
    if set(old.info.classes) & set(info.classes) and not with_means:
        return old
    rank, size = rank_and_size()
    mine = rows[rank::size]  # each worker embeds a share of the images
    batches = [mine[i : i + _BATCH] for i in range(0, len(mine), _BATCH)]
    sums = torch.zeros(len(info.classes), old.info.backbone.dim + 1, device=device)  # the last column counts the images
    for batch, (pixels, readable) in zip(batches, feed.batches(batches), strict=True):
        vectors = old.embed(pixels_to_float(pixels[torch.from_numpy(readable)].to(device)))
        vectors = torch.cat([vectors, torch.ones_like(vectors[:, :1])], dim=1)
        sums.index_add_(0, torch.from_numpy(targets[batch[readable]]).to(device), vectors)
    total = gather(sums[None]).sum(0)
    return replace(old, class_means_Cd=total[:, :-1] / total[:, -1:].clamp(min=1))
