"""Settings of backbones."""

from dataclasses import dataclass
from typing import Literal

from ray_backfill.core.errors import InputError, require_positive

ARCHITECTURES = ("convnet", "resnet18", "resnet50", "vit_b_32", "hf:NAME_OR_FOLDER")


@dataclass(frozen=True)
class BackboneSettings:
    """Architecture of a backbone and size of its embeddings."""

    arch: str = "convnet"
    """convnet, resnet18, resnet50, vit_b_32, or hf:NAME_OR_FOLDER for any Hugging Face vision model."""
    dim: int = 128
    """Dimensions of the embedding."""
    width: int = 32
    """Channels of the convnet's first block; ignored for other architectures."""
    pretrained: bool = False
    """Start from the published weights of the hf: model instead of random ones."""
    last_layer: Literal["linear", "relu"] = "linear"
    """linear: a linear layer makes the embedding. relu: the last block does, as published, so that no value is < 0."""

    def __post_init__(self) -> None:
        require_positive(self, "{old,new}.backbone", "dim", "width")
        if self.last_layer == "relu" and self.arch.startswith("hf:"):
            raise InputError(
                f"--{{old,new}}.backbone.last-layer relu changes the last block, which {self.arch} keeps as it is; "
                "give --{old,new}.backbone.last-layer linear"
            )
