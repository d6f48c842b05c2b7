"""``sentence-transformers:NAME_OR_FOLDER``: the library's own pipeline, pooling, normalisation and prompts."""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from ray_backfill.encode.encoder import IMAGE, TEXT, Device, ModelKind
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
        import torch
        from sentence_transformers import SentenceTransformer

        torch.set_num_threads(device.threads)
        try:
            self._model = SentenceTransformer(
                spec.name,
                device=device.name,
                model_kwargs={"torch_dtype": torch_dtype(spec)},
                local_files_only=Path(spec.name).is_dir(),
            )
        except Exception as error:
            raise not_found(spec, error) from error
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
        model, settings = self._model, []
        for module in model:
            own = module.get_config_dict() if hasattr(module, "get_config_dict") else {}
            of_network = hash_of_config(module.auto_model.config) if hasattr(module, "auto_model") else ""
            settings.append([type(module).__name__, json.loads(json.dumps(own, default=str)), of_network])
        tokenizer = getattr(model, "tokenizer", None)
        return {
            "weights": hash_of_tensors(model.state_dict().items()), "pipeline": hash_of_text(json.dumps(settings)),
            "length": None if model.max_seq_length == inf else model.max_seq_length,
            "prompts": dict(model.prompts or {}),
            "default_prompt": model.default_prompt_name or "",
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
