"""Backbones: images in, embeddings and class logits out.

"convnet" is a small network for CPUs; "resnet18", "resnet50" and "vit_b_32" are built from their Hugging Face configs;
"hf:NAME_OR_FOLDER" is any Hugging Face vision model, whose weights are loaded if ``pretrained`` is set.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ray_backfill.errors import InputError

ARCHITECTURES = ("convnet", "resnet18", "resnet50", "vit_b_32", "hf:NAME_OR_FOLDER")

# Statistics of natural images, the usual ones for RGB networks.
_RGB_MEAN, _RGB_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class BackboneSettings:
    """What a backbone is."""

    # convnet, resnet18, resnet50, vit_b_32, or hf:NAME_OR_FOLDER for any Hugging Face vision model.
    arch: str = "convnet"
    # Size of the embedding.
    dim: int = 128
    # Channels of the first block of a convnet.
    width: int = 32
    # Start from the weights of the Hugging Face model.
    pretrained: bool = False


def check_arch(settings: BackboneSettings) -> None:
    """Raises InputError for an architecture that cannot be built, without building it."""
    if settings.arch.startswith("hf:"):
        _hugging_face_config(settings.arch.removeprefix("hf:"))
    elif settings.arch not in ARCHITECTURES:
        raise InputError(f"unknown architecture {settings.arch!r}; known: {', '.join(ARCHITECTURES)}")


class Backbone(nn.Module):
    """A trunk with a linear layer to the embedding and a linear classifier on top of it."""

    mean: Tensor
    std: Tensor

    def __init__(self, settings: BackboneSettings, channels: int, image_size: int, n_classes: int) -> None:
        super().__init__()
        self.trunk, trunk_dim = _trunk(settings, channels, image_size)
        self.project = nn.Linear(trunk_dim, settings.dim)
        self.classifier = nn.Linear(settings.dim, n_classes)
        mean, std = (_RGB_MEAN, _RGB_STD) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def embed(self, pixels_BCSS: Tensor) -> Tensor:
        """(B, C, S, S) float in [0, 1] -> (B, dim) embeddings, not normalised."""
        return self.project(self.trunk((pixels_BCSS - self.mean) / self.std))

    def forward(self, pixels_BCSS: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, S, S) float in [0, 1] -> (B, dim) embeddings and (B, classes) logits."""
        embedding = self.embed(pixels_BCSS)
        return embedding, self.classifier(embedding)


def pixels_to_float(pixels_BSSC: Tensor) -> Tensor:
    """(B, S, S, C) uint8 -> (B, C, S, S) float32 in [0, 1]."""
    return pixels_BSSC.permute(0, 3, 1, 2).contiguous().float() / 255


class _HuggingFaceTrunk(nn.Module):
    """A transformers vision model, reduced to one vector an image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        output: Any = self.model(pixel_values=pixels)
        pooled = getattr(output, "pooler_output", None)
        if pooled is None:
            pooled = (
                output.last_hidden_state.flatten(2).mean(2)
                if output.last_hidden_state.ndim == 4
                else (output.last_hidden_state.mean(1))
            )
        return pooled.flatten(1)


def _trunk(settings: BackboneSettings, channels: int, image_size: int) -> tuple[nn.Module, int]:
    """The network below the embedding and the size of what it returns."""
    if settings.arch == "convnet":
        return _convnet(channels, settings.width), 4 * settings.width
    # transformers takes seconds to import: only those who need it pay.
    import transformers as hf

    if settings.arch == "resnet18":
        config = hf.ResNetConfig(
            num_channels=channels, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"
        )
        return _HuggingFaceTrunk(hf.ResNetModel(config)), 512
    if settings.arch == "resnet50":
        return _HuggingFaceTrunk(hf.ResNetModel(hf.ResNetConfig(num_channels=channels))), 2048
    if settings.arch == "vit_b_32":
        config = hf.ViTConfig(image_size=image_size, patch_size=32, num_channels=channels)
        return _HuggingFaceTrunk(hf.ViTModel(config)), 768
    if settings.arch.startswith("hf:"):
        return _hugging_face(settings.arch.removeprefix("hf:"), settings.pretrained)
    check_arch(settings)
    raise AssertionError(settings.arch)


def _hugging_face(name: str, pretrained: bool) -> tuple[nn.Module, int]:
    import transformers as hf

    config = _hugging_face_config(name)
    try:
        model = hf.AutoModel.from_pretrained(name) if pretrained else hf.AutoModel.from_config(config)
    except (OSError, ValueError) as error:
        raise InputError(f"the Hugging Face model {name!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    model = getattr(model, "vision_model", model)  # the image half of a two-tower model such as CLIP
    config = getattr(config, "vision_config", config)
    hidden = config.hidden_sizes[-1] if getattr(config, "hidden_sizes", None) else config.hidden_size
    return _HuggingFaceTrunk(model), int(hidden)


def _hugging_face_config(name: str) -> Any:
    import transformers as hf

    try:
        return hf.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise InputError(f"the Hugging Face model {name!r} cannot be found: {str(error).splitlines()[0]}") from error


def _convnet(channels: int, width: int) -> nn.Module:
    """Four 3x3 blocks, each halving the image, then the mean over positions: (B, C, S, S) -> (B, 4 * width)."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        ]

    widths = [channels, width, 2 * width, 4 * width, 4 * width]
    layers = [layer for i in range(4) for layer in block(widths[i], widths[i + 1])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
