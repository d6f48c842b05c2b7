"""The fitted maps of methods, each read from disk once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_backfill.core.stages import read_json
from ray_backfill.learn.methods import Method


@dataclass(frozen=True)
class FittedMaps:
    """Reads fitted maps. folders: method -> folder of its fitted network."""

    folders: Mapping[str, Path] = field(default_factory=dict)
    _read: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def of(self, method: Method) -> Any:
        """The method's network in eval mode; None if the method has no fit."""
        if method.fit is None:
            return None
        if method.name not in self._read:
            from ray_backfill.learn.models.apply import load_network

            self._read[method.name] = load_network(self.folders[method.name])
        return self._read[method.name]

    def training_flops(self, method: Method) -> int:
        """Floating-point operations of the method's fit; 0 if it has none."""
        return read_json(self.folders[method.name] / "manifest.json")["training_flops"] if method.fit else 0
