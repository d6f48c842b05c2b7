"""``sentence-transformers:NAME_OR_FOLDER``: the library's own pipeline, pooling, normalisation and prompts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import IMAGE, TEXT, Device, Encoder, ModelKind
from ray_backfill.encode.models.huggingface import hash_of_tensors, not_found, torch_dtype
from ray_backfill.encode.spec import Spec


class SentenceTransformers:
    """A SentenceTransformer."""

    batch = 64

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
        self._spec = spec
        self._prompts = {} if spec.prompt else dict(self._model.prompts or {})

    def __call__(self, items: Sequence[Any], side: str) -> Any:
        name = next((each for each in (side, "passage" if side == "document" else "") if self._prompts.get(each)), None)
        return self._model.encode(
            list(items), prompt_name=name, batch_size=len(items), show_progress_bar=False, convert_to_numpy=True,
            normalize_embeddings=self._spec.normalise == "yes",
        )  # fmt: skip

    def identity(self) -> dict[str, Any]:
        pipeline = [type(each).__name__ for each in self._model]
        return {
            "weights": hash_of_tensors(self._model.state_dict().items()), "pipeline": pipeline,
            "length": self._model.max_seq_length, "prompts": self._prompts,
        }  # fmt: skip


def _load(spec: Spec, modality: str, device: Device) -> Encoder:
    if spec.pooling:
        raise InputError(f"{spec}: sentence-transformers models have their own pooling; use hf: to choose one")
    return SentenceTransformers(spec, device)


MODELS = (
    ModelKind(
        "sentence-transformers", (TEXT, IMAGE), "sentence-transformers:NAME_OR_FOLDER",
        "A model of the library sentence-transformers, as its own encode() embeds.", _load, "sentence-transformers",
    ),
)  # fmt: skip
