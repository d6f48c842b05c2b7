"""How models of torch compute: the one place for all kinds that use it."""

from contextlib import AbstractContextManager
from typing import Any

from ray_backfill.encode.encoder import Device
from ray_backfill.encode.spec import Spec

# Options of a spec that are obeyed here.
OPTIONS = ("dtype", "compile", "channels_last")


def torch_dtype(spec: Spec) -> Any:
    """The torch type of a spec's weights."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.dtype, torch.float32)


def ready(network: Any, spec: Spec, device: Device) -> Any:
    """A torch module on its device, laid out and compiled as its spec asks."""
    import torch

    network = network.eval().to(device.name)
    if spec.channels_last == "yes":
        network = network.to(memory_format=torch.channels_last)
    if spec.compile == "yes":
        network.compile(dynamic=True)  # texts have many lengths
    return network


def precision(spec: Spec) -> AbstractContextManager[None]:
    """Inside, products and convolutions of float32 on GPUs use TF32 only if the spec says tf32.

    The setting is of the whole process: one model computes at a time.
    """
    from ray_backfill.engine.device import full_float32

    return full_float32(tf32=spec.dtype == "tf32")
