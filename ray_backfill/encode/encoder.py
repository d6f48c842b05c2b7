"""What every kind of model offers, and the checks that all of them share.

Shapes: B items, d dimensions.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.encode.spec import SIDES, Spec

TEXT, IMAGE = "text", "image"
# Items that every model embeds, so that a model can be recognised by their vectors.
PROBES = (
    "a photograph of a cat", "The price is 12.50 EUR.", "backfill the gallery", "Wie spät ist es?",
    "def f(x): return x + 1",
)  # fmt: skip
# Largest difference of a probe's vectors of length 1, by the same model on two machines.
_SAME = 5e-3


class Encoder(Protocol):
    """A loaded model."""

    batch: int
    """Items at a time that suit it."""
    has_prompts: bool
    """Whether it puts the prompts of its spec before texts by itself."""

    def __call__(self, items: Sequence[Any], side: str) -> Any:
        """(B, d) vectors of texts, or of PIL images in RGB. side: "query" or "document"."""
        ...

    def identity(self) -> dict[str, Any]:
        """What determines its vectors, besides the options of its spec: hashes of weights and configuration."""
        ...


@dataclass(frozen=True)
class Device:
    """Where a model computes: "cpu" or "cuda", and how many CPU threads it may use."""

    name: str = "cpu"
    threads: int = 1


@dataclass(frozen=True)
class ModelKind:
    """A kind of model. name: the word before the colon. modalities: what it can embed. example: for messages.

    explains: a sentence for the help. options: of its spec, besides dims, prompt, batch and normalise=yes. extra: what
    pip installs for it. load: loads the model for texts or images; raises InputError.
    """

    name: str
    modalities: tuple[str, ...]
    example: str
    explains: str
    load: Callable[[Spec, str, Device], Encoder]
    options: tuple[str, ...] = ()
    extra: str = ""


@dataclass(eq=False)
class Model:
    """A loaded model with the options of its spec: dimensions, batches, and checks of what it returns."""

    spec: Spec
    modality: str
    encoder: Encoder
    dims: int = field(default=0, init=False)

    def embed(self, items: Sequence[Any], side: str) -> NDArray[np.float32]:
        """(B, d) vectors. Texts of about the same length are embedded together.

        Raises:
            InputError: The model fails, or returns anything but one finite vector for each item.
        """
        size = self.spec.batch or self.encoder.batch
        lengths = [len(item) if isinstance(item, str) else 0 for item in items]
        order = np.argsort(lengths, kind="stable")
        out: NDArray[np.float32] | None = None
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            found = self._vectors([items[row] for row in rows], side)
            out = np.empty((len(items), found.shape[1]), np.float32) if out is None else out
            out[rows] = found
        return np.empty((0, self.dims), np.float32) if out is None else out

    def _vectors(self, items: Sequence[Any], side: str) -> NDArray[np.float32]:
        prompt = "" if self.encoder.has_prompts else self.spec.prompt.get(side, "")
        try:
            given = self.encoder([prompt + item for item in items] if prompt else items, side)
            found = np.asarray(given, np.float32)
        except (InputError, KeyboardInterrupt, MemoryError):
            raise
        except Exception as error:  # of a user's own code or of a library
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise InputError(
                f"the model {self.spec} failed on {len(items)} {self.modality}s: {why[0][:300]}"
            ) from error
        if found.ndim == 3 or (found.ndim == 2 and len(found) != len(items)):
            raise InputError(
                f"the model {self.spec} returned an array of shape {found.shape} for {len(items)} {self.modality}s; "
                "one vector for each item is needed (models with several, such as ColBERT, cannot be replayed)"
            )
        if found.ndim != 2:
            raise InputError(f"the model {self.spec} returned an array of shape {found.shape}, not ({len(items)}, d)")
        if self.spec.dims > found.shape[1]:
            raise InputError(f"the model {self.spec} has only {found.shape[1]} dimensions; lower dims")
        found = found[:, : self.spec.dims] if self.spec.dims else found
        if not np.isfinite(found).all():
            remedy = "mend it, or leave out what it fails on" if self.spec.dtype == "fp32" else "try dtype=fp32"
            raise InputError(f"the model {self.spec} returned a vector that is not finite; {remedy}")
        if self.dims and found.shape[1] != self.dims:
            raise InputError(
                f"the model {self.spec} returned vectors of {self.dims} and of {found.shape[1]} dimensions"
            )
        self.dims = found.shape[1]
        if self.spec.normalise == "yes":
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.float32(1e-30))
        return found

    def probes(self) -> NDArray[np.float32]:
        """(10, d) vectors of length 1 of five fixed items on both sides, by which the model is recognised."""
        items: Sequence[Any] = PROBES
        if self.modality == IMAGE:
            from PIL import Image

            noise = np.random.default_rng(0).integers(0, 256, (len(PROBES), 8, 8, 3), dtype=np.uint8)
            items = [Image.fromarray(each).resize((96, 96), Image.Resampling.BICUBIC) for each in noise]
        found = np.concatenate([self.embed(items, side) for side in SIDES])
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-30), np.float32)

    def identity(self) -> dict[str, Any]:
        """What determines its vectors."""
        return self.spec.meaning() | self.encoder.identity()


def same_model(found: NDArray[np.float32], recorded: Sequence[Sequence[float]]) -> bool:
    """Whether two (10, d) arrays of probes are of the same model, up to rounding on another machine."""
    other = np.asarray(recorded, np.float32)
    return found.shape == other.shape and bool(abs(found - other).max() <= _SAME)
