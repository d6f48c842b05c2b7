"""``sentence-transformers:NAME_OR_FOLDER``: the library's own pipeline, pooling, normalisation and prompts; and
``cross-encoder:NAME_OR_FOLDER``, which scores pairs.
"""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import IMAGE, PAIR, TEXT, Device, ModelKind
from ray_backfill.encode.models.huggingface import (
    hash_of_config,
    hash_of_tensors,
    hash_of_text,
    hash_of_tokenizer,
    not_found,
)
from ray_backfill.encode.models.torch_settings import OPTIONS, precision, ready, torch_dtype
from ray_backfill.encode.spec import Spec


class SentenceTransformers:
    """A SentenceTransformer."""

    batch, has_prompts = 64, True

    def __init__(self, spec: Spec, device: Device) -> None:
        self._model = _opened("SentenceTransformer", spec, device)
        if spec.tokens:
            self._model.max_seq_length = spec.tokens
        for module in self._model:
            if hasattr(module, "auto_model"):  # the library calls it, and not what contains it
                ready(module.auto_model, spec, device)
        self._spec = spec

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        return items

    def __call__(self, prepared: Any, side: str) -> Any:
        how: dict[str, Any] = {"batch_size": len(prepared), "show_progress_bar": False, "convert_to_numpy": True}
        if side in self._spec.prompt:
            how["prompt"] = self._spec.prompt[side]
        encode = self._model.encode_query if side == "query" else self._model.encode_document
        with precision(self._spec):
            return encode(list(prepared), **how)

    def count_tokens(self, texts: Sequence[Any]) -> int:
        """Tokens of texts, as the model reads them."""
        made = self._model.tokenize(list(texts))
        return int(made["attention_mask"].sum() if "attention_mask" in made else made["input_ids"].numel())

    def identity(self) -> dict[str, Any]:
        return _identity(self._model, self._model.max_seq_length)


class CrossEncoder:
    """A CrossEncoder of one score, which its own ``predict`` computes, with the activation that it has."""

    batch = 32

    def __init__(self, spec: Spec, device: Device) -> None:
        self._model = _opened("CrossEncoder", spec, device, max_length=spec.tokens or None)
        network = self._model.model
        kind, recorded = type(network).__name__, network.config.architectures or ()
        if (
            kind.endswith("ForSequenceClassification") and kind not in recorded
        ):  # the library has drawn a head at random
            raise InputError(f"{spec} has no trained head that scores pairs; name a cross-encoder")
        if self._model.num_labels != 1:
            raise InputError(f"{spec} gives {self._model.num_labels} numbers for a pair; name a model that gives one")
        ready(network, spec, device)
        self._spec = spec

    def score(self, queries: list[str], texts: list[str]) -> Any:
        pairs = list(zip(queries, texts, strict=True))
        with precision(self._spec):
            return self._model.predict(pairs, batch_size=len(pairs), show_progress_bar=False)

    def identity(self) -> dict[str, Any]:
        model = self._model
        marks = {"activation": str(model.activation_fn), "config": hash_of_config(model.model.config)}
        return _identity(model, model.tokenizer.model_max_length) | marks


def _opened(name: str, spec: Spec, device: Device, **settings: Any) -> Any:
    """A model of the library. name: of its class."""
    import sentence_transformers
    import torch

    torch.set_num_threads(device.threads)
    settings |= {"device": device.name, "model_kwargs": {"torch_dtype": torch_dtype(spec)}}
    try:
        return getattr(sentence_transformers, name)(spec.name, local_files_only=Path(spec.name).is_dir(), **settings)
    except Exception as error:
        raise not_found(spec, error) from error


def _identity(model: Any, length: float) -> dict[str, Any]:
    """What determines what a model of the library computes. length: tokens that it reads."""
    settings = []
    for module in model.children():
        own = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
        of_network = hash_of_config(module.auto_model.config) if hasattr(module, "auto_model") else ""
        settings.append([type(module).__name__, json.loads(json.dumps(own, default=str)), of_network])
    tokenizer = getattr(model, "tokenizer", None)
    return {
        "weights": hash_of_tensors(model.state_dict().items()), "pipeline": hash_of_text(json.dumps(settings)),
        "length": None if length == inf else length,
        "prompts": dict(getattr(model, "prompts", None) or {}),
        "default_prompt": getattr(model, "default_prompt_name", None) or "",
        "tokenizer": hash_of_tokenizer(tokenizer) if hasattr(tokenizer, "get_vocab") else "",
    }  # fmt: skip


MODELS = (
    ModelKind(
        "sentence-transformers", (TEXT, IMAGE), "sentence-transformers:NAME_OR_FOLDER",
        "A model of the library sentence-transformers, as its own encode_query() and encode_document() embed.",
        lambda spec, modality, device: SentenceTransformers(spec, device), ("tokens", *OPTIONS),
        "sentence-transformers",
    ),
)  # fmt: skip
RERANKERS = (
    ModelKind(
        "cross-encoder", (PAIR,), "cross-encoder:NAME_OR_FOLDER",
        "A cross-encoder of the library sentence-transformers, as its own predict() scores pairs.",
        lambda spec, modality, device: CrossEncoder(spec, device), ("tokens", "dtype", "compile"),
        "sentence-transformers",
    ),
)  # fmt: skip
