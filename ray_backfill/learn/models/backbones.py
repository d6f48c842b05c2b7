"""Backbones: images in, embeddings and class logits out.

"convnet" is a small network for CPUs; "resnet18", "resnet50" and "vit_b_32" are built from their Hugging Face configs;
"hf:NAME_OR_FOLDER" is any Hugging Face vision model, whose weights are loaded if ``pretrained`` is set.

The last layer is linear, or that of the authors' code of FCT and FastFill (``models/resnet.py`` of apple/ml-fct), which
rank merge follows: the last block has as many channels as the embedding has dimensions, ends in ReLU, and its mean over
positions is the embedding; the classifier has no bias. A ViT has no such block. Of the published models, its embedding
is a linear layer on the class token, without the pooler (a layer with tanh) between them.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.stages import read_json, write_json, write_whole
from ray_backfill.engine.device import full_float32
from ray_backfill.learn.models.apply import counted_flops
from ray_backfill.learn.training.settings import ARCHITECTURES, BackboneSettings

# Architectures whose last block can end in ReLU and as many channels as the embedding has dimensions.
_ENDS_IN_RELU = ("convnet", "resnet18", "resnet50")
# The usual statistics of natural images (ImageNet) for RGB networks.
_RGB_MEAN, _RGB_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """A trunk, a linear layer to the embedding (none if the trunk ends in it), and a linear classifier on top."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        settings: BackboneSettings,
        channels: int,
        image_size: int,
        n_classes: int,
        trunk_config: dict[str, Any] | None = None,
        cosine_scale: float | None = None,
    ) -> None:
        """trunk_config: config of a saved "hf:" trunk, which is built from it alone; its weights are loaded afterwards.
        cosine_scale: logits are this multiple of the cosines to the class weights (ArcFace); None: linear logits.

        Raises:
            InputError: The architecture is unknown, or a model cannot be loaded or does not accept such images.
        """
        super().__init__()
        self.trunk = _trunk(settings, channels, image_size, trunk_config)
        is_linear = settings.last_layer == "linear"
        trunk_dim = _trunk_dim(self.trunk, settings.arch, channels, image_size)
        ends_in_it = not is_linear and settings.arch in _ENDS_IN_RELU
        self.project: nn.Module = nn.Identity() if ends_in_it else nn.Linear(trunk_dim, settings.dim)
        self.classifier = nn.Linear(settings.dim, n_classes, bias=is_linear and cosine_scale is None)
        self.cosine_scale = cosine_scale
        mean, std = _statistics(settings, channels) if trunk_config is None else ((0.5,) * channels, (0.5,) * channels)
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))  # saved with the weights
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def embed(self, pixels_BCSS: Tensor) -> Tensor:
        """(B, C, S, S) float in [0, 1] -> (B, dim) embeddings, not normalised."""
        embedding_Bd: Tensor = self.project(self.trunk((pixels_BCSS - self.mean) / self.std))
        return embedding_Bd

    def forward(self, pixels_BCSS: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, S, S) float in [0, 1] -> (B, dim) embeddings and (B, classes) logits."""
        embedding = self.embed(pixels_BCSS)
        return embedding, class_logits(embedding, self.classifier.weight, self.classifier.bias, self.cosine_scale)

    @property
    def trunk_config(self) -> dict[str, Any] | None:
        """Config to rebuild the trunk of an "hf:" backbone without its files; None for other architectures."""
        if not isinstance(self.trunk, _HuggingFaceTrunk) or not self.trunk.by_name:
            return None
        model: Any = self.trunk.model
        kinds = {"model": type(model), "config_class": type(model.config)}
        return {name: f"{kind.__module__}:{kind.__name__}" for name, kind in kinds.items()} | {
            "config": model.config.to_dict()
        }


def class_logits(embedding_Bd: Tensor, weight_Cd: Tensor, bias_C: Tensor | None, cosine_scale: float | None) -> Tensor:
    """(B, C) logits of a linear classifier, or of a cosine classifier if a scale is given."""
    if cosine_scale is None:
        return F.linear(embedding_Bd, weight_Cd, bias_C)
    return cosine_scale * F.linear(F.normalize(embedding_Bd, dim=1), F.normalize(weight_Cd, dim=1))


@lru_cache
def check_arch(settings: BackboneSettings, channels: int, image_size: int) -> None:
    """Raises InputError if an architecture cannot be used for such images. Builds it once to find out."""
    model = Backbone(settings, channels, image_size, 2).eval()
    image = torch.rand(1, channels, image_size, image_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if not torch.equal(model.embed(image), model.embed(image)):
            raise InputError(f"{settings.arch} gives a different embedding each time and cannot be used for retrieval")
    if model.trunk_config is not None:
        again = Backbone(settings, channels, image_size, 2, model.trunk_config)
        if again.state_dict().keys() != model.state_dict().keys():
            raise InputError(f"{settings.arch} cannot be rebuilt from its config, so it cannot be saved")


@contextmanager
def embedding() -> Iterator[None]:
    """For forward passes whose results are stored: a gallery that GPUs and CPUs embed is rounded in one way."""
    with torch.inference_mode(), full_float32():
        yield


def pixels_to_float(pixels_BSSC: Tensor) -> Tensor:
    """(B, S, S, C) uint8 -> (B, C, S, S) float32 in [0, 1]."""
    return pixels_BSSC.permute(0, 3, 1, 2).contiguous().float() / 255


class _HuggingFaceTrunk(nn.Module):
    """A transformers vision model that returns one vector per image."""

    def __init__(self, model: nn.Module, by_name: bool = False, first_token: bool = False) -> None:
        super().__init__()
        self.model, self.by_name, self.first_token = model, by_name, first_token

    def forward(self, pixels: Tensor) -> Tensor:
        output: Any = self.model(pixel_values=pixels)
        if self.first_token:
            token: Tensor = output.last_hidden_state[:, 0]
            return token
        pooled = getattr(output, "pooler_output", None)
        if pooled is None:
            hidden = output.last_hidden_state
            pooled = hidden.flatten(2).mean(2) if hidden.ndim == 4 else hidden.mean(1)
        return pooled.flatten(1)


def _trunk_dim(trunk: nn.Module, arch: str, channels: int, image_size: int) -> int:
    """Size of what the trunk returns, found by running it once."""
    training = trunk.training
    try:
        with torch.no_grad():
            return int(trunk.eval()(torch.zeros(1, channels, image_size, image_size)).shape[1])
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{arch} does not accept images of {image_size} x {image_size} x {channels}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        trunk.train(training)


def _trunk(settings: BackboneSettings, channels: int, image_size: int, config: dict[str, Any] | None) -> nn.Module:
    """The network below the embedding."""
    is_linear = settings.last_layer == "linear"
    if settings.arch == "convnet":
        return _convnet(channels, settings.width, 4 * settings.width if is_linear else settings.dim)
    # Imported here because transformers takes seconds to import.
    import transformers as hf

    if settings.arch in ("resnet18", "resnet50"):
        resnet18 = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic"}
        shape = resnet18 if settings.arch == "resnet18" else {}
        resnet = hf.ResNetModel(hf.ResNetConfig(num_channels=channels, **shape))
        if not is_linear:
            _narrow_last_block(resnet, settings.dim)
        return _HuggingFaceTrunk(resnet)
    if settings.arch == "vit_b_32":
        vit = hf.ViTConfig(image_size=image_size, patch_size=32, num_channels=channels)
        return _HuggingFaceTrunk(hf.ViTModel(vit, add_pooling_layer=is_linear), first_token=not is_linear)
    if not settings.arch.startswith("hf:"):
        raise unknown_name("architecture", settings.arch, ARCHITECTURES)
    if config is not None:
        kinds = {name: _transformers_class(config[name]) for name in ("model", "config_class")}
        return _HuggingFaceTrunk(kinds["model"](kinds["config_class"].from_dict(config["config"])), by_name=True)
    name = settings.arch.removeprefix("hf:")
    try:
        model = (
            hf.AutoModel.from_pretrained(name)
            if settings.pretrained
            else hf.AutoModel.from_config(hf.AutoConfig.from_pretrained(name))
        )
    except (OSError, ValueError) as error:
        raise InputError(f"the Hugging Face model {name!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    # The vision tower of a two-tower model such as CLIP.
    return _HuggingFaceTrunk(getattr(model, "vision_model", model), by_name=True)


def _narrow_last_block(resnet: Any, dim: int) -> None:
    """Give the last block of a ResNet ``dim`` channels at its end; its inner channels stay."""
    from transformers.models.resnet.modeling_resnet import ResNetBasicLayer, ResNetConvLayer, ResNetShortCut

    blocks = resnet.encoder.stages[-1].layers
    channels = resnet.config.hidden_sizes[-1]
    if isinstance(blocks[-1], ResNetBasicLayer):
        blocks[-1] = ResNetBasicLayer(channels, dim)
    else:
        inner = blocks[-1].layer[-1].convolution.in_channels
        blocks[-1].layer[-1] = ResNetConvLayer(inner, dim, kernel_size=1, activation=None)
        blocks[-1].shortcut = ResNetShortCut(channels, dim, stride=1)


def _transformers_class(name: str) -> Any:
    """The class "module:name", from transformers only: a checkpoint must not import arbitrary code."""
    module, _, kind = name.partition(":")
    if not module.startswith("transformers.models."):
        raise InputError(f"the checkpoint names {name!r}, which is not a model of transformers")
    return getattr(importlib.import_module(module), kind)


def _statistics(settings: BackboneSettings, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the pixels that the network expects; a pretrained model may state its own."""
    mean, std = (_RGB_MEAN, _RGB_STD) if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
    if settings.pretrained and settings.arch.startswith("hf:"):
        from transformers.image_processing_utils import BaseImageProcessor

        try:
            stated, _ = BaseImageProcessor.get_image_processor_dict(settings.arch.removeprefix("hf:"))
        except OSError:
            stated = {}
        mean, std = tuple(stated.get("image_mean") or mean), tuple(stated.get("image_std") or std)
    return mean, std


def _convnet(channels: int, width: int, last: int) -> nn.Module:
    """Four 3x3 blocks, each halving the image, then the mean over positions: (B, C, S, S) -> (B, last)."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        ]

    widths = [channels, width, 2 * width, 4 * width, last]
    layers = [layer for i in range(4) for layer in block(widths[i], widths[i + 1])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def embed_macs(network: Backbone, channels: int, image_size: int) -> int:
    """Multiply-accumulates of one image's embedding. The network is left in eval mode."""
    image = torch.zeros(1, channels, image_size, image_size, device=network.mean.device)
    with torch.no_grad(), counted_flops() as flops:
        network.eval().embed(image)
    return flops() // 2


def embed_parameters(network: Backbone) -> int:
    """Number of parameters used for embedding: all except the classifier's."""
    return sum(p.numel() for name, p in network.named_parameters() if not name.startswith("classifier."))


@dataclass(frozen=True)
class BackboneInfo:
    """Everything that is needed to rebuild a backbone.

    classes: the labels that its classifier knows, ascending. trunk_config, cosine_scale: see ``Backbone``.
    """

    backbone: BackboneSettings
    channels: int
    image_size: int
    classes: list[int]
    trunk_config: dict[str, Any] | None = None
    cosine_scale: float | None = None

    def build(self) -> Backbone:
        """The untrained network."""
        return Backbone(
            self.backbone, self.channels, self.image_size, len(self.classes), self.trunk_config, self.cosine_scale
        )


def save_backbone(folder: Path, model: Backbone, info: BackboneInfo) -> None:
    """Write ``model.safetensors`` and ``backbone.json``. Nothing is pickled."""
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_json(folder / "backbone.json", asdict(info) | {"trunk_config": model.trunk_config})
    write_whole(folder / "model.safetensors", lambda temporary: safetensors.torch.save_file(weights, temporary))


def load_backbone(folder: Path) -> tuple[Backbone, BackboneInfo]:
    """Load a network in eval mode. Raises InputError if its files are missing or do not fit."""
    value, path = read_json(folder / "backbone.json"), folder / "model.safetensors"
    info = BackboneInfo(**value | {"backbone": BackboneSettings(**value["backbone"])})
    model = info.build()
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"{path} cannot be loaded: {str(error).splitlines()[0]}; train it again") from error
    return model.eval(), info


@dataclass(frozen=True)
class NetworkCost:
    """Cost of one backbone. macs: multiply-accumulates per embedding. parameters: without the classifier's."""

    macs: int
    parameters: int


@lru_cache
def network_cost(backbone: BackboneSettings, channels: int, image_size: int) -> NetworkCost:
    """Cost of one embedding. Raises InputError for an architecture that cannot be built for such images."""
    with shapes_only(backbone):
        network = BackboneInfo(backbone, channels, image_size, [0, 1]).build()
        return NetworkCost(embed_macs(network, channels, image_size), embed_parameters(network))


@contextmanager
def shapes_only(backbone: BackboneSettings) -> Iterator[bool]:
    """Within the block networks have shapes but no data (torch's meta device): their cost is counted, not paid.

    Yields: whether it is so; a model of the hub may load files, and is really built.
    """
    has_shapes = not backbone.arch.startswith("hf:")
    with torch.device("meta" if has_shapes else "cpu"):
        yield has_shapes
