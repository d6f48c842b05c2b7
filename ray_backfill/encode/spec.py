"""The words that name a model: ``KIND:NAME#option=value&option=value``."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

from ray_backfill.core.store_path import path_of

SIDES = ("query", "document")
POOLINGS = ("mean", "cls", "last")
DTYPES = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Spec:
    """A model and how it is used. Options are written behind a ``#``, as in a web address.

    kind, name: the words before and after the first colon. prompt: side -> text before each item, from
    ``prompt=query:...`` and ``prompt=document:...``.
    """

    kind: str
    name: str
    dims: int = 0
    """The first so many dimensions only (Matryoshka); 0: all."""
    prompt: dict[str, str] = field(default_factory=dict)
    pooling: str = ""
    """mean, cls or last: how vectors of tokens become one; empty: as the model's own configuration says."""
    normalise: str = ""
    """yes or no: whether vectors get length 1; empty: as the model's own configuration says."""
    batch: int = 0
    """Items at a time; 0: as the kind of model prefers."""
    tokens: int = 0
    """Tokens of a text that are read, at most; 0: as many as the model can."""
    dtype: str = "fp32"
    """fp32, bf16 or fp16: precision of the weights and of the arithmetic. tf32: fp32, but GPUs multiply 10 bits."""
    compile: str = ""
    """yes: by torch.compile, which takes a minute at the start of each actor."""
    channels_last: str = ""
    """yes: the layout of memory that convolutions of GPUs prefer."""
    rpm: int = 0
    """openai: requests per minute of all actors together, at most; 0: no limit of ours."""
    tpm: int = 0
    """openai: tokens per minute of all actors together, at most; 0: no limit of ours."""
    price: float = 0.0
    """openai: dollars per million tokens, for the estimate and the bill."""

    def __str__(self) -> str:
        """As it is typed, without options that have their defaults."""
        given = [
            (f.name, getattr(self, f.name)) for f in fields(self)[2:] if f.name != "prompt" and getattr(self, f.name)
        ]
        words = [f"{name}={value}" for name, value in given if (name, value) != ("dtype", "fp32")]
        for side, text in sorted(self.prompt.items()):
            words.append(f"prompt={side}:{text.replace('%', '%25').replace('&', '%26')}")
        return f"{self.kind}:{self.name}{'#' * bool(words)}{'&'.join(words)}"

    def recorded_name(self) -> str:
        """As it is typed, for people who read records: without folders of this machine, limits and prices."""
        place, last = path_of(self.name, or_source=True), 2 if self.kind == "cached" else 1  # CACHE/TASK
        name = "/".join(place.parts[-last:]) if place.exists() else self.name
        return str(replace(self, name=name, batch=0, rpm=0, tpm=0, price=0.0))

    def meaning(self) -> dict[str, Any]:
        """What of it changes embeddings. The name of a file or folder does not: its content is hashed. Pooling and
        length are those that the model uses in the end, which its own identity has.
        """
        return {
            "kind": self.kind, "dims": self.dims, "prompt": dict(sorted(self.prompt.items())), "dtype": self.dtype,
            "unit": self.normalise == "yes",
        }  # fmt: skip
