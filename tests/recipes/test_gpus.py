"""A missing GPU is found before a recipe trains; embedding actors compute in full float32, as CPUs do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ray_backfill.learn.models.backbones import BackboneInfo
from ray_backfill.learn.training.settings import BackboneSettings
from ray_backfill.recipes.run.embed import _ImageEmbedder


def test_an_actor_embeds_in_full_float32_whatever_the_process_trains_in() -> None:
    backends: Any = torch.backends
    places, seen = (backends.cuda.matmul, backends.cudnn.conv), list[str]()
    network = BackboneInfo(BackboneSettings("convnet", dim=6, width=2), 3, 8, [0, 1, 2]).build().eval()
    network.register_forward_hook(lambda *_: seen.extend(place.fp32_precision for place in places))
    actor = object.__new__(_ImageEmbedder)
    actor._models, actor._device, actor._old_classes = {"old": network}, torch.device("cpu"), torch.arange(3)
    before = [place.fp32_precision for place in places]
    for place in places:
        place.fp32_precision = "tf32"
    try:
        found = actor._forward(np.zeros((4, 8, 8, 3), np.uint8), ("old",))
        assert [place.fp32_precision for place in places] == ["tf32", "tf32"]
    finally:
        for place, earlier in zip(places, before, strict=True):
            place.fp32_precision = earlier
    assert seen == ["ieee", "ieee"]
    assert found["old"].shape == (4, 6)


def test_a_missing_gpu_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ray_backfill", "simulate", "--device", "cuda", "--out", str(tmp_path / "run")]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 2
    assert "error: device 'cuda': use device cpu, or mend this: torch " in done.stderr
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("*.safetensors"))
