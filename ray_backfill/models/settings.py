"""The settings of backbones."""

from dataclasses import dataclass

from ray_backfill.errors import require_positive

ARCHITECTURES = ("convnet", "resnet18", "resnet50", "vit_b_32", "hf:NAME_OR_FOLDER")


@dataclass(frozen=True)
class BackboneSettings:
    """What a backbone is."""

    arch: str = "convnet"
    """convnet, resnet18, resnet50, vit_b_32, or hf:NAME_OR_FOLDER for any Hugging Face vision model."""
    dim: int = 128
    """Size of the embedding."""
    width: int = 32
    """Channels of the first block of a convnet."""
    pretrained: bool = False
    """Start from the weights of the Hugging Face model."""

    def __post_init__(self) -> None:
        require_positive(self, "dim", "width")
