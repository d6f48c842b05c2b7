"""Graphs of ONNX: from the models' embeddings of queries or items to the vectors that an index is searched by.

Shapes: B queries or items, d dimensions, R references of CSLS.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ray_backfill.core.stages import write_whole
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.merges.csls import n_nearest
from ray_backfill.learn.expressions import Expression, Mapped, Prefix, Stored, dim_of
from ray_backfill.learn.models.apply import named_map
from ray_backfill.learn.models.operators import apply_map, unit_of

# Version of ONNX's operators, and of its files; ONNX Runtime reads both since 1.17.
_OPSET, _IR = 20, 9


class Graph:
    """A graph that grows by operators. dims: model -> d. network: the fitted maps."""

    def __init__(self, dims: Mapping[str, int], network: Any) -> None:
        self._dims, self._network = dims, network
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._known: dict[Expression, tuple[str, int]] = {}
        self._inputs: list[str] = []

    def op(self, kind: str, *inputs: str | NDArray[Any] | np.float32, **attributes: Any) -> str:
        """Apply an operator; returns the name of its first result. Arrays are constants, of float32 or int64."""
        names = []
        for value in inputs:
            if isinstance(value, str):
                names.append(value)
                continue
            names.append(f"constant_{len(self._constants)}")
            array = np.asarray(value, np.int64 if value.dtype.kind == "i" else np.float32)
            self._constants.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), names[-1]))
        result = f"value_{len(self._nodes)}"
        results = [result, f"{result}_places"] if kind == "TopK" else [result]
        self._nodes.append(helper.make_node(kind, names, results, **attributes))
        return result

    def add(self, expression: Expression) -> tuple[str, int]:
        """The name of an expression's value, and its d. Raises InputError if a map cannot be exported."""
        if expression not in self._known:
            self._known[expression] = self._added(expression)
        return self._known[expression]

    def _added(self, expression: Expression) -> tuple[str, int]:
        if isinstance(expression, Stored):
            self._inputs.append(expression.model)
            return expression.model, self._dims[expression.model]
        if isinstance(expression, Mapped):
            network, inputs = named_map(self._network, expression.name), [self.add(inner) for inner in expression.of]
            dim = dim_of(expression, self._dims, self._network)
            return apply_map(self.op, network, *(name for name, _ in inputs)), dim
        (name, dim), width = self.add(expression.of), self._dims[expression.like]
        width = min(dim, width) if isinstance(expression, Prefix) else width
        # A negative number of zeros cuts.
        return (name if width == dim else self.op("Pad", name, np.array([0, 0, 0, width - dim]))), width

    def with_csls(self, name: str, references_Rd: NDArray[np.float32], is_query: bool) -> str:
        """(B, d + 2) vectors whose inner products are CSLS / 2, as ``References.queries`` and ``gallery_items`` are.

        references_Rd: of the other side.
        """
        unit = unit_of(self.op, name)
        cosines = self.op("Gemm", unit, normalise(references_Rd).astype(np.float32), transB=1)
        nearest = self.op("TopK", cosines, np.array([n_nearest(len(references_Rd))]), axis=1)
        half = self.op("Mul", self.op("ReduceMean", nearest, np.array([1]), keepdims=1), np.float32(-0.5))

        def and_one(name: str) -> str:
            return self.op("Pad", name, np.array([0, 0, 0, 1]), np.float32(1))

        if is_query:
            return self.op("Concat", and_one(unit), half, axis=1)
        return and_one(self.op("Concat", unit, half, axis=1))

    def write(self, path: Path, value: str, facts: Mapping[str, str]) -> None:
        """Write a file that maps (B, d) float32 embeddings, by model, to this value as its output ``vector``.

        facts: metadata of the file.
        """
        self._nodes.append(helper.make_node("Identity", [value], ["vector"]))
        shapes = [(model, self._dims[model]) for model in dict.fromkeys(self._inputs)]
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            [helper.make_tensor_value_info(model, TensorProto.FLOAT, ["n", dim]) for model, dim in shapes],
            [helper.make_tensor_value_info("vector", TensorProto.FLOAT, ["n", None])],
            self._constants,
        )
        model = helper.make_model(
            graph, producer_name="ray_backfill", opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
        )
        helper.set_model_props(model, dict(facts))
        onnx.checker.check_model(model)
        write_whole(path, lambda temporary: temporary.write_bytes(model.SerializeToString()))
