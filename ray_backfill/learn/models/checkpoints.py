"""Networks on disk: weights as safetensors, their description as JSON. Nothing is unpickled."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import read_json, write_json, write_whole
from ray_backfill.learn.models.backbones import Backbone
from ray_backfill.learn.models.settings import BackboneSettings


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
    """Write ``model.safetensors`` and ``backbone.json``."""
    _save(folder, model, "backbone.json", asdict(info) | {"trunk_config": model.trunk_config})


def load_backbone(folder: Path) -> tuple[Backbone, BackboneInfo]:
    """Load a network in eval mode. Raises InputError if its files are missing or do not fit."""
    value = read_json(folder / "backbone.json")
    info = BackboneInfo(**value | {"backbone": BackboneSettings(**value["backbone"])})
    model = info.build()
    _load(folder, model)
    return model, info


def _save(folder: Path, model: torch.nn.Module, json_name: str, info: dict[str, Any]) -> None:
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    write_json(folder / json_name, info)
    write_whole(folder / "model.safetensors", lambda temporary: safetensors.torch.save_file(weights, temporary))


def _load(folder: Path, model: torch.nn.Module) -> None:
    path = folder / "model.safetensors"
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"{path} cannot be loaded: {str(error).splitlines()[0]}; train it again") from error
    model.eval()
