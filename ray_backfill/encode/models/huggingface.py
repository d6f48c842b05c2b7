"""``hf:NAME_OR_FOLDER``: a text or vision model of transformers, with its own tokenizer or image processor."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import IMAGE, TEXT, Device, ModelKind
from ray_backfill.encode.models.torch_settings import OPTIONS, precision, ready, torch_dtype
from ray_backfill.encode.spec import POOLINGS, Spec


def not_found(spec: Spec, error: Exception) -> InputError:
    """The error for a model that cannot be loaded."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    remedy = "name a folder that holds it, or a model of the Hugging Face hub while this machine is online"
    return InputError(f"{spec} cannot be loaded ({first[:200]}); {remedy}")


class _OfTransformers:
    """What texts and images have in common."""

    batch, has_prompts = 32, False

    def __init__(self, spec: Spec, device: Device) -> None:
        import torch
        import transformers

        torch.set_num_threads(device.threads)
        self._spec, self._device, self._torch = spec, device.name, torch
        try:
            model = transformers.AutoModel.from_pretrained(spec.name, dtype=torch_dtype(spec))
        except Exception as error:
            raise not_found(spec, error) from error
        self._model = ready(model, spec, device)

    def _finished(self, vectors: Any, default: bool) -> Any:
        if default and self._spec.normalise != "no":
            vectors = self._torch.nn.functional.normalize(vectors.float(), dim=-1)
        return vectors.float().cpu().numpy()

    def _weights(self) -> dict[str, Any]:
        return {
            "weights": hash_of_tensors(self._model.state_dict().items()),
            "config": hash_of_config(self._model.config),
        }


class TextModel(_OfTransformers):
    """A text model with a pooling of its token vectors: that of its folder's sentence-transformers files, or mean."""

    def __init__(self, spec: Spec, device: Device) -> None:
        import transformers

        super().__init__(spec, device)
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(spec.name)
        except Exception as error:
            raise InputError(f"{spec} has no tokenizer, so it embeds no texts: {type(error).__name__}") from error
        folder = Path(spec.name)
        own = _own_pooling(folder)
        self._pooling = spec.pooling or own or "mean"
        if self._pooling not in POOLINGS:
            raise InputError(f"{spec} pools by {own}; use sentence-transformers:, or choose with pooling=mean")
        modules = folder / "modules.json"
        names = modules.read_text(encoding="utf-8") if modules.is_file() else ""
        self._normalise = (folder / "2_Normalize").is_dir() or "Normalize" in names
        self._tokens = spec.tokens or min(self._tokenizer.model_max_length, _positions(self._model))

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        return self._tokenizer(list(items), padding=True, truncation=True, max_length=self._tokens, return_tensors="pt")

    def __call__(self, prepared: Any, side: str) -> Any:
        torch, inputs = self._torch, prepared.to(self._device)
        with torch.inference_mode(), precision(self._spec):
            states = self._model(**inputs).last_hidden_state
        mask = inputs["attention_mask"]
        if self._pooling == "cls":
            pooled = states[:, 0]
        elif self._pooling == "last":
            pooled = states[torch.arange(len(states)), mask.shape[1] - 1 - mask.flip(1).argmax(1)]
        else:
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self._finished(pooled, self._normalise)

    def identity(self) -> dict[str, Any]:
        return self._weights() | {
            "pooling": self._pooling, "normalised": self._normalise and self._spec.normalise != "no",
            "length": self._tokens, "tokenizer": hash_of_tokenizer(self._tokenizer),
        }  # fmt: skip


class VisionModel(_OfTransformers):
    """A vision model, or the image side of CLIP and SigLIP, with its own image processor."""

    def __init__(self, spec: Spec, device: Device) -> None:
        import transformers

        super().__init__(spec, device)
        try:
            self._processor = transformers.AutoImageProcessor.from_pretrained(spec.name, use_fast=False)
        except Exception as error:
            raise InputError(
                f"{spec} has no image processor, so it embeds no images: {type(error).__name__}"
            ) from error

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        return self._processor(images=list(items), return_tensors="pt")["pixel_values"]

    def __call__(self, prepared: Any, side: str) -> Any:
        torch, pixels = self._torch, prepared.to(self._device, torch_dtype(self._spec))
        with torch.inference_mode(), precision(self._spec):
            if hasattr(self._model, "get_image_features"):
                found = self._model.get_image_features(pixel_values=pixels)
                vectors = getattr(found, "pooler_output", found)
            else:
                output = self._model(pixel_values=pixels)
                pooled = getattr(output, "pooler_output", None)
                states = output.last_hidden_state
                wants = self._spec.pooling or ("" if pooled is not None else "mean")
                if wants == "cls":
                    vectors = states[:, 0]
                elif wants == "mean":  # over positions: (B, n, d) of a transformer, (B, d, h, w) of convolutions
                    vectors = states.mean(1) if states.ndim == 3 else states.mean((2, 3))
                else:
                    vectors = pooled
        return self._finished(vectors.flatten(1), False)

    def identity(self) -> dict[str, Any]:
        marks = {"processor": hash_of_text(self._processor.to_json_string()), "pooling": self._spec.pooling}
        return self._weights() | marks


def _positions(model: Any) -> int:
    """Tokens that a text model can read. RoBERTa and its kin number them from the index of padding + 1 on."""
    taken = [
        module.padding_idx + 1 for name, module in model.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None)
    ]  # fmt: skip
    return int(getattr(model.config, "max_position_embeddings", 512)) - max(taken, default=0)


def _own_pooling(folder: Path) -> str:
    """The pooling that a folder of sentence-transformers records, or ""."""
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return ""
    config = json.loads(path.read_text(encoding="utf-8"))
    known = {"pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean"}
    earlier = next((name for key, name in known.items() if config.get(key)), "")
    return {"lasttoken": "last"}.get(config.get("pooling_mode"), config.get("pooling_mode") or earlier)


def hash_of_config(config: Any) -> str:
    """A hash of a transformers configuration, without where it came from."""
    given = config.to_dict()
    for name in ("_name_or_path", "transformers_version", "dtype", "torch_dtype"):
        given.pop(name, None)
    return hash_of_text(json.dumps(given, sort_keys=True, default=str))


def hash_of_tokenizer(tokenizer: Any) -> str:
    """A hash of how a tokenizer makes tokens of texts, whatever it was last asked to pad or cut."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return hash_of_text(json.dumps(sorted(tokenizer.get_vocab().items())))
    given = json.loads(backend.to_str())
    given.pop("padding", None)
    given.pop("truncation", None)
    return hash_of_text(json.dumps(given, sort_keys=True))


def hash_of_text(text: str) -> str:
    """A short hash of a text."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def hash_of_tensors(named: Iterable[tuple[str, Any]]) -> str:
    """A hash of named torch tensors."""
    import torch

    digest = hashlib.blake2b(digest_size=12)
    for name, tensor in named:
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


MODELS = (
    ModelKind(
        "hf", (TEXT, IMAGE), "hf:NAME_OR_FOLDER",
        "A text or vision model of transformers. Texts are pooled as its folder says, otherwise by their mean.",
        lambda spec, modality, device: TextModel(spec, device) if modality == TEXT else VisionModel(spec, device),
        ("pooling", "normalise", "tokens", *OPTIONS), "torch transformers",
    ),
)  # fmt: skip
