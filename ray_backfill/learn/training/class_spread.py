"""How far the old embeddings of each class lie from their centre, which some compatible losses are made of.

Shapes: N readable images of the train split, C classes, d dimensions of the old model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.learn.models.backbones import pixels_to_float
from ray_backfill.learn.models.gather import gather, rank_and_size
from ray_backfill.learn.training.pixels import PixelFeed

# Images embedded at a time.
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


def class_spread(
    embed: Callable[[Tensor], Tensor],
    dim: int,
    n_classes: int,
    feed: PixelFeed,
    rows: NDArray[np.int64],
    targets: NDArray[np.int64],
    device: torch.device,
) -> ClassSpread:
    """embed: the old model of ``dim`` dimensions. rows: of the train split. targets: class positions of all its rows.

    Under DDP every worker calls this and embeds a share. Cost: each image is embedded twice, so that no embedding has
    to be kept.
    """
    rank, size = rank_and_size()
    position_of = np.zeros(int(rows.max()) + 1, np.int64)
    position_of[rows] = np.arange(len(rows))

    def embedded() -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """Rows of the readable images of a batch, their targets, and their embeddings of length 1."""
        mine = rows[rank::size]
        batches = [mine[i : i + _BATCH] for i in range(0, len(mine), _BATCH)]
        for batch, (pixels, readable) in zip(batches, feed.batches(batches), strict=True):
            vectors = embed(pixels_to_float(pixels[torch.from_numpy(readable)].to(device)))
            yield batch[readable], torch.from_numpy(targets[batch[readable]]).to(device), F.normalize(vectors, dim=1)

    sums = torch.zeros(n_classes, dim + 1, device=device)  # the last column counts the images
    for _, target_b, unit_bd in embedded():
        sums.index_add_(0, target_b, torch.cat([unit_bd, torch.ones_like(unit_bd[:, :1])], dim=1))
    sums = gather(sums[None]).sum(0)
    centre_Cd = sums[:, :-1] / sums[:, -1:].clamp(min=1)
    # Each worker fills in its own images; the second column says which are readable.
    found = torch.zeros(len(rows), 2, device=device)
    for own_rows, target_b, unit_bd in embedded():
        distance_b = (unit_bd - centre_Cd[target_b]).norm(dim=1)
        at = torch.from_numpy(position_of[own_rows]).to(device)
        found[at] = torch.stack([distance_b, torch.ones_like(distance_b)], dim=1)
    found = gather(found[None]).sum(0)
    readable_N = found[:, 1] > 0
    return ClassSpread(centre_Cd, torch.from_numpy(targets[rows]).to(device)[readable_N], found[readable_N, 0])
