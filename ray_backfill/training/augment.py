"""Random views of a batch of images, on the training device."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_backfill.training.settings import Augmentation


def augment(pixels_BCSS: Tensor, settings: Augmentation) -> Tensor:
    """One random view of each image by one bilinear resampling. Uses torch's global generator."""
    n, device = len(pixels_BCSS), pixels_BCSS.device

    def uniform(limit: float) -> Tensor:
        return (torch.rand(n, device=device) * 2 - 1) * limit

    angle = uniform(math.radians(settings.rotate_deg))
    scale = 1 + uniform(settings.zoom)
    mirror = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0) if settings.flip else torch.ones_like(scale)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    rows = [
        torch.stack([mirror * cos, -sin, uniform(2 * settings.shift)], dim=1),
        torch.stack([mirror * sin, cos, uniform(2 * settings.shift)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), list(pixels_BCSS.shape), align_corners=False)
    views = F.grid_sample(pixels_BCSS, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return _recoloured(views, settings.colour) if settings.colour else views


def _recoloured(pixels_BCSS: Tensor, limit: float) -> Tensor:
    """Change the contrast around each channel's mean, then the brightness, by random factors within 1 +- limit."""
    contrast, brightness = (
        1 + (torch.rand(*pixels_BCSS.shape[:2], 1, 1, device=pixels_BCSS.device) * 2 - 1) * limit for _ in range(2)
    )
    mean = pixels_BCSS.mean((2, 3), keepdim=True)
    return (((pixels_BCSS - mean) * contrast + mean) * brightness).clamp(0, 1)
