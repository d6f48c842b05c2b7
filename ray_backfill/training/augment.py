"""Random views of a batch of images, on the device that trains."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """How far a view of a training image may differ from it."""

    rotate_deg: float = 10.0
    """Turned by up to so many degrees."""
    shift: float = 0.1
    """Moved by up to this share of its side."""
    zoom: float = 0.15
    """Zoomed in or out by up to this share."""
    flip: bool = False
    """Mirror half of the images; not where left and right mean something, as in handwriting."""
    colour: float = 0.0
    """Each channel brightened or darkened, and its contrast changed, by up to this share."""


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
    """Contrast about each channel's mean, then brightness, both by random factors within 1 +- limit."""
    contrast, brightness = (
        1 + (torch.rand(*pixels_BCSS.shape[:2], 1, 1, device=pixels_BCSS.device) * 2 - 1) * limit for _ in range(2)
    )
    mean = pixels_BCSS.mean((2, 3), keepdim=True)
    return (((pixels_BCSS - mean) * contrast + mean) * brightness).clamp(0, 1)
