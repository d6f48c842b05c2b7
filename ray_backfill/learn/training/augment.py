"""Random views of a batch of images, on the training device."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from ray_backfill.learn.training.settings import Augmentation

# Shape (B, ...) -> random numbers from 0 to 1.
Draw = Callable[..., Tensor]


def augment(pixels_BCSS: Tensor, settings: Augmentation, draw: Draw | None = None) -> Tensor:
    """One random view of each image by one bilinear resampling.

    draw: the random numbers of the images; default: torch's global generator.
    """
    n, device = len(pixels_BCSS), pixels_BCSS.device

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device) if draw is None else draw(*shape).to(device)

    def uniform(limit: float) -> Tensor:
        return (rand(n) * 2 - 1) * limit

    angle = uniform(math.radians(settings.rotate_deg))
    scale = 1 + uniform(settings.zoom)
    mirror = torch.where(rand(n) < 0.5, -1.0, 1.0) if settings.flip else torch.ones_like(scale)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = [
        torch.stack([mirror * cos, -sin, uniform(2 * settings.shift)], dim=1),
        torch.stack([mirror * sin, cos, uniform(2 * settings.shift)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(pixels_BCSS.shape), align_corners=False)
    views = F.grid_sample(pixels_BCSS, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return _recoloured(views, settings.colour, rand) if settings.colour else views


def own_view(pixels_BCSS: Tensor, settings: Augmentation, ids_B: NDArray[np.int64], view: int, seed: int) -> Tensor:
    """The view of each image that its id, the number of the view and the seed determine.

    It is the same in every batch, part and process.
    """
    own = [np.random.default_rng([seed, view, int(image_id) % 2**64]) for image_id in ids_B]

    def draw(_: int, *shape: int) -> Tensor:
        return torch.from_numpy(np.array([rng.random(shape) for rng in own], np.float32))

    return augment(pixels_BCSS, settings, draw)


def _recoloured(pixels_BCSS: Tensor, limit: float, rand: Draw) -> Tensor:
    """Change the contrast around each channel's mean, then the brightness, by random factors within 1 +- limit."""
    contrast, brightness = (1 + (rand(*pixels_BCSS.shape[:2], 1, 1) * 2 - 1) * limit for _ in range(2))
    mean = pixels_BCSS.mean((2, 3), keepdim=True)
    return (((pixels_BCSS - mean) * contrast + mean) * brightness).clamp(0, 1)
