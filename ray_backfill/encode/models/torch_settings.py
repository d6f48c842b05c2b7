"""How models of torch compute: the one place for all kinds that use it."""

from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def precision(spec: Spec) -> Iterator[None]:
    """Inside, products and convolutions of float32 on GPUs use TF32 only if the spec says tf32.

    torch lets convolutions use it by default, and then a GPU's embeddings differ from a CPU's in their third digit. The
    setting is of the whole process: one model computes at a time.
    """
    from torch import backends

    backend: Any = backends
    value: Any
    wants_tf32 = spec.dtype == "tf32"
    if hasattr(backend.cuda.matmul, "fp32_precision"):
        name, value, places = (
            "fp32_precision",
            "tf32" if wants_tf32 else "ieee",
            (backend.cuda.matmul, backend.cudnn.conv),
        )
    else:  # before torch 2.9
        name, value, places = "allow_tf32", wants_tf32, (backend.cuda.matmul, backend.cudnn)
    before = [getattr(place, name) for place in places]
    for place in places:
        setattr(place, name, value)
    try:
        yield
    finally:
        for place, earlier in zip(places, before, strict=True):
            setattr(place, name, earlier)
