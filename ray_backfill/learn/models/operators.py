"""Fitted maps as operators of ONNX, for services that have neither this package nor torch.

A kind of map has a method ``onnx(op, *inputs)``: it applies operators (opset 20) to values by their names, and returns
the name of its result. Arrays become constants. The package onnx is not needed here.
"""

from collections.abc import Callable
from typing import Any

from ray_backfill.core.errors import InputError

# Operator, inputs (names or arrays) and attributes -> the name of its result.
Op = Callable[..., str]


def apply_map(op: Op, network: Any, *inputs: str) -> str:
    """A map of its inputs: by its own ``onnx``, or as layers of torch in eval mode.

    Layers are Linear, batch normalisation, ReLU and Identity, and sequences of them. Raises InputError for others.
    """
    if hasattr(network, "onnx"):
        return str(network.onnx(op, *inputs))
    from torch import nn

    (x,) = inputs
    match network:
        case nn.Sequential():
            for layer in network:
                x = apply_map(op, layer, x)
            return x
        case nn.Linear(weight=weight, bias=bias):
            return op("Gemm", x, weight.detach().numpy(), bias.detach().numpy(), transB=1)
        case nn.BatchNorm1d():
            arrays: Any = (network.weight, network.bias, network.running_mean, network.running_var)
            return op("BatchNormalization", x, *(array.detach().numpy() for array in arrays), epsilon=network.eps)
        case nn.ReLU():
            return op("Relu", x)
        case nn.Identity():
            return x
    name = getattr(network, "kind", type(network).__name__)
    raise InputError(f"a map of the kind {name!r} cannot be exported: its class has no method onnx(op, *inputs)")


def unit_of(op: Op, x: str) -> str:
    """Vectors scaled to length 1."""
    return op("LpNormalization", x, axis=-1, p=2)
