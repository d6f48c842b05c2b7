"""Fitted maps: applied to stored vectors, stored and loaded. Formulas are numpy arrays; only networks need torch.

Shapes: N items, B of them at a time, p and q dimensions.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from ray_backfill.core.errors import InputError
from ray_backfill.core.memory import room_for
from ray_backfill.core.plugins import Deferred, rows_from_outside
from ray_backfill.core.stages import read_json, write_json, write_whole
from ray_backfill.engine.systems import FloatArray
from ray_backfill.learn.models.operators import Op, unit_of

if TYPE_CHECKING:
    from torch import nn


Wide = NDArray[np.float64]
FittedMap: TypeAlias = "FormulaMap | nn.Module"

# Kind in network.json -> its class; a network's constructor takes what is its ``shape``.
KINDS = {
    "affine": Deferred("ray_backfill.learn.models.apply", "Affine"),
    "convex": Deferred("ray_backfill.learn.methods.convex", "Convex"),
    "local": Deferred("ray_backfill.learn.methods.local", "Local"),
    "slerp": Deferred("ray_backfill.learn.methods.slerp", "Slerp"),
    "heads": Deferred("ray_backfill.learn.papers.rank_merge", "Heads"),
    "towards_rho": Deferred("ray_backfill.learn.papers.rank_merge", "RhoAndH"),
    "transform": Deferred("ray_backfill.learn.papers.fct", "Transform"),
    "joint": Deferred("ray_backfill.learn.papers.orthogonal", "JointMaps"),
    "residual": Deferred("ray_backfill.learn.papers.drift_adapter", "Residual"),
    "scaled_residual": Deferred("ray_backfill.learn.papers.drift_adapter", "ScaledResidual"),
}
# Stored vectors per forward pass.
_ROWS = 16_384
# Ridge penalty of stand-ins, relative to the mean variance of a dimension.
_PENALTY = 1e-2


class FormulaMap(ABC):
    """A map that a formula gives, a dataclass.

    kind: its name in files. arrays: field -> name in files. Its other fields are part of its shape.
    """

    kind: ClassVar[str]
    arrays: ClassVar[Mapping[str, str]]

    @property
    def weights(self) -> dict[str, NDArray[np.float32]]:
        """Its arrays, by their names in files."""
        return {name: getattr(self, field) for field, name in self.arrays.items()}

    @property
    @abstractmethod
    def shape(self) -> dict[str, Any]:
        """What else determines it, as JSON has it."""

    @abstractmethod
    def output_dim(self, *dims: int) -> int:
        """q. dims: p of each input."""

    @abstractmethod
    def __call__(self, *vectors_Bp: Wide) -> Wide:
        """One (B, p) array for each input -> (B, q)."""

    @property
    def macs(self) -> int:
        """Multiply-accumulates of its matrix products for an item."""
        return sum(weight.size for weight in self.weights.values() if weight.ndim == 2)


@dataclass(eq=False)
class Affine(FormulaMap):
    """x W + b, with x scaled to length 1 if ``unit`` is set. weight_qp: W, transposed. bias_q: b."""

    weight_qp: NDArray[np.float32]
    bias_q: NDArray[np.float32]
    unit: bool = True

    kind, arrays = "affine", {"weight_qp": "linear.weight", "bias_q": "linear.bias"}

    @property
    def shape(self) -> dict[str, Any]:
        q, p = self.weight_qp.shape
        return {"input_dim": p, "output_dim": q, "unit": self.unit}

    def output_dim(self, *dims: int) -> int:
        return len(self.bias_q)

    def __call__(self, *vectors_Bp: Wide) -> Wide:
        (x_Bp,) = vectors_Bp
        return (unit(x_Bp) if self.unit else x_Bp) @ self.weight_qp.T.astype(np.float64) + self.bias_q

    def onnx(self, op: Op, x: str) -> str:
        return op("Gemm", unit_of(op, x) if self.unit else x, self.weight_qp, self.bias_q, transB=1)


def unit(vectors_Np: NDArray[np.floating], dtype: type[np.floating] = np.float64) -> NDArray[Any]:
    """The vectors scaled to length 1; those of length 0 stay as they are."""
    converted = np.asarray(vectors_Np, dtype)
    return converted / np.maximum(np.linalg.norm(converted, axis=1, keepdims=True), 1e-12)


def transform(network: FittedMap, *vectors_Np: FloatArray) -> FloatArray:
    """Apply a map to stored vectors, one (N, p) array per input; returns (N, q) float32.

    Computes in float64, so that the result for a vector does not depend on the
    others in its batch: shards of a gallery must give the same as the whole gallery. Memory: the result, which is
    mapped from a temporary file if it is large.
    """
    mapped_of: Callable[..., Wide]
    if isinstance(network, FormulaMap):
        mapped_of = network
    else:
        import torch

        wide = copy.deepcopy(network).double().eval()

        def mapped_of(*vectors_Bp: Wide) -> Wide:
            with torch.inference_mode():
                return wide(*map(torch.from_numpy, vectors_Bp)).numpy()

    n, out = len(vectors_Np[0]), np.empty((0, 0), np.float32)
    for first in range(0, n, _ROWS):
        mapped = mapped_of(*(v[first : first + _ROWS].astype(np.float64) for v in vectors_Np))
        if first == 0:
            out = room_for(n, mapped.shape[1], np.float32)
        out[first : first + len(mapped)] = mapped
    return out


def named_map(network: Any, name: str) -> Any:
    """The map of this name among those that were fitted together. One that has no ``parts`` is the only one."""
    parts: Mapping[str, str] = getattr(network, "parts", {})
    return getattr(network, parts[name]) if parts else network


def output_dim(network: FittedMap, dims: Sequence[int]) -> int:
    """Dimensions of a map's results. dims: of its inputs."""
    if isinstance(network, FormulaMap):
        return network.output_dim(*dims)
    shape: Mapping[str, Any] = getattr(network, "shape", {})
    return int(shape["output_dim"] if "output_dim" in shape else _linear_layers(network)[-1].out_features)


def macs(network: FittedMap) -> int:
    """Multiply-accumulates of a map for an item: its matrix products. A network may state them as ``macs``."""
    if isinstance(network, FormulaMap) or hasattr(network, "macs"):
        return cast("int", network.macs)
    return sum(layer.weight.numel() for layer in _linear_layers(network))


def _linear_layers(network: nn.Module) -> list[nn.Linear]:
    import torch

    return [layer for layer in network.modules() if isinstance(layer, torch.nn.Linear)]


@contextmanager
def counted_flops(count: bool = True) -> Iterator[Callable[[], int]]:
    """Counts what torch computes in the block: matrix products, convolutions and attention, including gradients.

    count: False counts nothing and costs nothing.
    Yields: a function that returns the floating-point operations so far; a multiply-accumulate counts as two.
    """
    if not count:
        yield lambda: 0
        return
    import torch
    from torch.utils import flop_counter

    def attention(query: Any, key: Any, value: Any, *rest: Any, out_shape: Any = None, **more: Any) -> int:
        return int(flop_counter.sdpa_flop_count(query, key, value))

    def attention_backward(gradient: Any, query: Any, key: Any, value: Any, *rest: Any, **more: Any) -> int:
        return int(flop_counter.sdpa_backward_flop_count(gradient, query, key, value))

    aten: Any = torch.ops.aten
    # torch's own table lacks attention on CPUs.
    on_cpu = {
        aten._scaled_dot_product_flash_attention_for_cpu: attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: attention_backward,
    }
    with flop_counter.FlopCounterMode(display=False, custom_mapping=on_cpu) as counter:
        yield lambda: int(counter.get_total_flops())


def n_parameters(network: FittedMap) -> int:
    """Number of fitted parameters."""
    if isinstance(network, FormulaMap):
        return sum(weight.size for weight in network.weights.values())
    return sum(parameter.numel() for parameter in network.parameters())


def weights_of(network: FittedMap) -> dict[str, NDArray[Any]]:
    """The arrays that are stored, by name."""
    if isinstance(network, FormulaMap):
        return network.weights
    return {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}


def save_network(folder: Path, network: FittedMap, facts: dict[str, str] | None = None) -> None:
    """Write ``model.safetensors`` and ``network.json`` of a map of a known kind. facts: metadata of the weights."""
    weights = {name: np.asarray(array, order="C") for name, array in weights_of(network).items()}
    write_json(folder / "network.json", {"kind": network.kind, "shape": network.shape})
    write_whole(
        folder / "model.safetensors", lambda temporary: temporary.write_bytes(safetensors.numpy.save(weights, facts))
    )


def load_network(folder: Path) -> Any:
    """Load a map, a network in eval mode. Raises InputError if its files are missing or do not fit."""
    value, path = read_json(folder / "network.json"), folder / "model.safetensors"
    name, shape = value.get("kind"), value.get("shape", {})
    # A file names a kind, and no code: one of ours, or one in the table ``MAPS`` of a plugin.
    of_plugins = (kind for kind in rows_from_outside("MAPS") if kind.kind == name)
    kind: Any = KINDS[name].load() if name in KINDS else next(of_plugins, None)
    if kind is None:
        raise InputError(
            f"{folder / 'network.json'}: unknown kind {name!r}; install the plugin that has it, or train it again"
        )
    is_formula = isinstance(kind, type) and issubclass(kind, FormulaMap)
    try:
        weights = safetensors.numpy.load_file(path)
        if is_formula:
            given = {field.name: shape[field.name] for field in fields(kind) if field.name not in kind.arrays}
            formula = kind(**given, **{field: weights[name] for field, name in kind.arrays.items()})
            if formula.shape != shape:
                raise ValueError(f"its weights are those of {formula.shape}")
            return formula
        import torch

        network = kind(**shape)
        network.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    except (OSError, SafetensorError, RuntimeError, KeyError, ValueError) as error:
        raise InputError(f"{path} cannot be loaded: {str(error).splitlines()[0]}; train it again") from error
    return network.eval()


@dataclass(frozen=True)
class StandInMap:
    """Predicts new embeddings from old ones, for items that the new model has not embedded: linear with a constant.

    weights: (d_old + 1, d_new). length: of its results under cosine; 0: as they come.
    """

    weights: NDArray[np.float32]
    length: float

    def __call__(self, old: FloatArray) -> NDArray[np.float32]:
        """(N, d_old) -> (N, d_new) float32. Cost: 2 N d_old d_new."""
        out = room_for(len(old), self.weights.shape[1], np.float32)
        for first in range(0, len(old), 4 * _ROWS):
            rows = old[first : first + 4 * _ROWS].astype(np.float32)
            mapped = (unit(rows, np.float32) if self.length else rows) @ self.weights[:-1] + self.weights[-1]
            out[first : first + 4 * _ROWS] = self.length * unit(mapped, np.float32) if self.length else mapped
        return out


def fit_stand_in(old: FloatArray, new: FloatArray, distance: str) -> StandInMap:
    """Ridge regression of new embeddings on old ones of the same items. Under cosine, lengths do not count.

    Cost: n d_old (d_old + d_new).
    """
    x: NDArray[np.floating] = old.astype(np.float64)
    y: NDArray[np.floating] = new.astype(np.float64)
    length = float(np.linalg.norm(y, axis=1).mean()) if distance == "cosine" else 0.0
    # The penalty is for vectors of length 1.
    scale = 1.0 if length else float(np.sqrt((x * x).sum(axis=1).mean())) or 1.0
    x, y = (unit(x), unit(y)) if length else (x / scale, y)
    x = np.hstack([x, np.ones((len(x), 1))])
    moments = x.T @ x
    moments[np.diag_indices(len(moments))] += _PENALTY * np.trace(moments) / len(moments)
    weights = np.linalg.solve(moments, x.T @ y)
    weights[:-1] /= scale
    return StandInMap(weights.astype(np.float32), length)
