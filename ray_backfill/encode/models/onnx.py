"""``onnx:FILE``: a text model by ONNX Runtime, with the tokenizer.json beside it."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import path_of
from ray_backfill.encode.encoder import TEXT, Device, ModelKind
from ray_backfill.encode.spec import Spec


class OnnxModel:
    """Its first output holds vectors, (B, d), or vectors of tokens, (B, n, d), which are pooled."""

    batch, has_prompts = 32, False

    def __init__(self, spec: Spec, device: Device) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        file = path_of(spec.name)
        beside, weights = file.with_name("tokenizer.json"), sorted(file.parent.glob(f"{file.name}*"))
        if not file.is_file():
            raise InputError(f"there is no file {file}; onnx: names a .onnx file")
        if not beside.is_file():
            raise InputError(f"{file} has no tokenizer.json beside it; copy the model's own there")
        local, *_ = map(os.fspath, weights)  # weights of large models stand beside it
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = device.threads
        providers = ["CUDAExecutionProvider"] * (device.name == "cuda") + ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(local, options, providers=providers)
        except Exception as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(f"{file} cannot be loaded by ONNX Runtime: {first[:200]}") from error
        self._tokenizer = Tokenizer.from_file(os.fspath(beside))
        self._tokenizer.enable_truncation(spec.tokens or 512)
        self._tokenizer.enable_padding()
        self._names, self._spec = {given.name for given in self._session.get_inputs()}, spec
        mark = hashlib.blake2b(beside.read_bytes(), digest_size=12)
        for part in weights:
            with part.open("rb") as opened:
                while piece := opened.read(64 << 20):
                    mark.update(piece)
        self._mark = mark.hexdigest()

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        tokens = self._tokenizer.encode_batch(list(items))
        return {
            "input_ids": np.array([of_text.ids for of_text in tokens], np.int64),
            "attention_mask": np.array([of_text.attention_mask for of_text in tokens], np.int64),
            "token_type_ids": np.array([of_text.type_ids for of_text in tokens], np.int64),
        }

    def __call__(self, prepared: Any, side: str) -> Any:
        states = self._session.run(None, {name: x for name, x in prepared.items() if name in self._names})[0]
        mask, pooling = prepared["attention_mask"], self._spec.pooling or "mean"
        if states.ndim != 3:
            return states
        if pooling == "cls":
            return states[:, 0]
        if pooling == "last":
            return states[np.arange(len(states)), mask.sum(1) - 1]
        return (states * mask[..., None]).sum(1) / np.maximum(mask.sum(1, keepdims=True), 1)

    def identity(self) -> dict[str, Any]:
        return {"file": self._mark, "pooling": self._spec.pooling or "mean", "length": self._spec.tokens}


MODELS = (
    ModelKind(
        "onnx", (TEXT,), "onnx:FILE.onnx", "A text model by ONNX Runtime, with tokenizer.json beside the file.",
        lambda spec, modality, device: OnnxModel(spec, device), ("pooling", "tokens"), "onnxruntime tokenizers",
    ),
)  # fmt: skip
