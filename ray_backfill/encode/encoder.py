"""What every kind of model offers, and the checks that all of them share.

Shapes: B items, d dimensions.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import extract_tb
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.encode.spec import SIDES, Spec

# What a model takes; a re-ranker takes pairs of a query and a text.
TEXT, IMAGE, PAIR = "text", "image", "pair"
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

    def prepare(self, items: Sequence[Any], side: str) -> Any:
        """Tokens of texts, pixels of PIL images in RGB, or the items as they are. It runs in another thread than the
        model, which embeds the batch before. side: "query" or "document".
        """
        ...

    def __call__(self, prepared: Any, side: str) -> Any:
        """(B, d) vectors of what ``prepare`` made of B items."""
        ...

    def identity(self) -> dict[str, Any]:
        """What determines its vectors, besides the options of its spec: hashes of weights and configuration."""
        ...


@dataclass(frozen=True)
class Device:
    """Where a model computes: "cpu" or "cuda", and how many CPU threads it may use. processes: that use the same model
    at the same time, and share its limits.
    """

    name: str = "cpu"
    threads: int = 1
    processes: int = 1


@dataclass(frozen=True)
class ModelKind:
    """A kind of model. name: the word before the colon. modalities: what it can embed. example: for messages.

    explains: a sentence for the help. options: of its spec, besides dims, prompt, batch and normalise=yes. extra: what
    pip installs for it. reads: of a service that charges for tokens, the characters of a text that are sent, at most.
    batch: of such a service, the texts of a request. load: loads an ``Encoder`` of texts or images, or a
    ``Reranker`` of pairs; raises InputError.
    """

    name: str
    modalities: tuple[str, ...]
    example: str
    explains: str
    load: Callable[[Spec, str, Device], Any]
    options: tuple[str, ...] = ()
    extra: str = ""
    reads: Callable[[Spec], int] | None = None
    batch: int = 0


class Reranker(Protocol):
    """A loaded model that scores pairs of a query and a text. Its score is larger for a text that answers better."""

    batch: int
    """Pairs at a time that suit it."""

    def score(self, queries: list[str], texts: list[str]) -> Any:
        """(B,) scores of B pairs, one for each query and the text at its place."""
        ...

    def identity(self) -> dict[str, Any]:
        """What determines its scores, besides the options of its spec."""
        ...


@dataclass(eq=False)
class Model:
    """A loaded model with the options of its spec: dimensions, batches, and checks of what it returns."""

    spec: Spec
    modality: str
    encoder: Encoder
    dims: int = field(default=0, init=False)

    @property
    def tokens(self) -> int:
        """Tokens that a paid service has read for this object."""
        return getattr(self.encoder, "tokens", 0)

    @property
    def size(self) -> int:
        """Items of a batch."""
        return self.spec.batch or self.encoder.batch

    def embed(self, items: Sequence[Any], side: str) -> NDArray[np.float32]:
        """(B, d) vectors. Texts of about the same length are embedded together. Raises InputError as ``vectors``."""
        order = by_length(items)
        found = self.vectors(self.prepare([items[row] for row in order], side), side)
        return found[np.argsort(order)]

    def prepare(self, items: Sequence[Any], side: str) -> list[tuple[int, Any]]:
        """The items in batches: their number, and what the model takes of them. Raises InputError as ``vectors``."""
        prompt = "" if self.encoder.has_prompts else self.spec.prompt.get(side, "")
        given = [prompt + item for item in items] if prompt else items
        batches = [given[first : first + self.size] for first in range(0, len(given), self.size)]
        return [(len(batch), self._called(self.encoder.prepare, batch, side, len(batch))) for batch in batches]

    def vectors(self, batches: Sequence[tuple[int, Any]], side: str, ids: Sequence[Any] = ()) -> NDArray[np.float32]:
        """(B, d) vectors of prepared batches. ids: of the items, for messages.

        Raises:
            InputError: The model fails, or returns anything but one finite vector for each item.
        """

        def embedded(batch: Any, side: str) -> NDArray[np.float32]:
            given = np.asarray(self.encoder(batch, side))
            if given.dtype.kind in "cOSUMm":  # of complex numbers numpy would drop the imaginary part
                raise InputError(f"the model {self.spec} returned values of type {given.dtype}; return real numbers")
            with np.errstate(over="ignore"):  # infinite values are refused below
                return np.asarray(given, np.float32)

        of_batches = [self._checked(self._called(embedded, batch, side, items), items) for items, batch in batches]
        vectors = np.concatenate(of_batches) if of_batches else np.empty((0, self.dims), np.float32)
        if not (is_finite := np.isfinite(vectors).all(axis=1)).all():
            first = int(is_finite.argmin())
            remedy = "fix the model, or leave that item out" if self.spec.dtype == "fp32" else "try dtype=fp32"
            of_item = f"item {ids[first]}" if ids else f"{self.modality} {first + 1} of {len(vectors)}"
            raise InputError(f"the model {self.spec} returned a vector that is not finite for {of_item}; {remedy}")
        return vectors

    def _called(self, step: Callable[[Any, str], Any], given: Any, side: str, items: int) -> Any:
        with failing_in_one_line(self.spec, f"on {items} {self.modality}s"):
            return step(given, side)

    def _checked(self, found: NDArray[np.float32], items: int) -> NDArray[np.float32]:
        """The vectors that a model returned for so many items. Raises InputError for anything else."""
        if found.ndim == 3 or (found.ndim == 2 and len(found) != items):
            raise InputError(
                f"the model {self.spec} returned an array of shape {found.shape} for {items} {self.modality}s; "
                "one vector for each item is needed (models with several, such as ColBERT, cannot be replayed)"
            )
        if found.ndim != 2:
            raise InputError(f"the model {self.spec} returned an array of shape {found.shape}, not ({items}, d)")
        if not found.shape[1]:
            raise InputError(f"the model {self.spec} returned vectors of 0 dimensions; return at least one")
        if self.spec.dims > found.shape[1]:
            raise InputError(f"the model {self.spec} has only {found.shape[1]} dimensions; lower dims")
        found = found[:, : self.spec.dims] if self.spec.dims else found
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
            items = [Image.fromarray(pixels).resize((96, 96), Image.Resampling.BICUBIC) for pixels in noise]
        vectors = np.concatenate([self.embed(items, side) for side in SIDES])
        return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30), np.float32)

    def identity(self) -> dict[str, Any]:
        """What determines its vectors, as a manifest's JSON gives it back. Raises InputError if the model fails."""
        with failing_in_one_line(self.spec, "in identity()"):
            return dict(json.loads(json.dumps(self.spec.meaning() | self.encoder.identity(), allow_nan=False)))


@contextmanager
def failing_in_one_line(spec: Spec, where: str, but: tuple[type[Exception], ...] = (InputError,)) -> Iterator[None]:
    """What a user's own code or a library raises in the block, also by ``sys.exit``, becomes an InputError.

    but: errors that stay as they are. So does the exit that Ray asks for when it ends this process.
    """
    try:
        yield
    except but:
        raise
    except (Exception, SystemExit) as error:
        if hasattr(error, "ray_terminate_msg"):
            raise
        name, said, at = type(error).__name__, str(error).strip().splitlines(), extract_tb(error.__traceback__)[-1]
        remedy = "; lower batch or --actors.number" if isinstance(error, MemoryError) else ""
        why = f"{name}: {said[0][:300] if said else ''} ({Path(at.filename).name}, line {at.lineno}){remedy}"
        raise InputError(f"the model {spec} failed {where}: {why}") from error


def tokens_in(characters: int) -> int:
    """About how many tokens so many characters of English are, as OpenAI estimates: a quarter."""
    return -(-characters // 4)


def by_length(items: Sequence[Any]) -> NDArray[np.int64]:
    """(B,) an order of items in which texts of about the same length follow each other; images stay."""
    return np.argsort([len(item) if isinstance(item, str) else 0 for item in items], kind="stable")


def same_model(vectors: NDArray[np.float32], recorded: Sequence[Sequence[float]]) -> bool:
    """Whether two (10, d) arrays of probes are of the same model, up to rounding on another machine."""
    other = np.asarray(recorded, np.float32)
    return vectors.shape == other.shape and bool(abs(vectors - other).max() <= _SAME)
