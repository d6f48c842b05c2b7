"""The kinds of models that there are: what a user types becomes a ``Spec``, and a ``Spec`` a loaded model."""

import os
from dataclasses import fields, replace
from functools import cache
from math import inf
from typing import Any
from urllib.parse import unquote

from ray_backfill.core.errors import InputError, unknown_name
from ray_backfill.core.plugins import own_rows, rows_from_outside
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.encode import models
from ray_backfill.encode.encoder import PAIR, TEXT, Device, Model, ModelKind, Reranker, failing_in_one_line
from ray_backfill.encode.spec import DTYPES, POOLINGS, SIDES, Spec

# Kinds that we refuse, with the reason.
_REFUSED = {
    "colbert": "a model with several vectors for each item (ColBERT)",
    "splade": "a model of sparse vectors (SPLADE)",
}

# Tables of what embeds and of what scores pairs.
EMBED, RERANK = "MODELS", "RERANKERS"
# Options that every kind has, and kinds whose names may be files or folders.
_SHARED = {EMBED: ("dims", "prompt", "batch"), RERANK: ("batch",)}
_OF_FOLDERS = ("hf", "sentence-transformers", "cached", "cross-encoder")
_OF_FILES = (*_OF_FOLDERS, "onnx")


@cache
def all_kinds(table: str = EMBED) -> dict[str, ModelKind]:
    """Every kind by name."""
    rows = [*own_rows(models, table, first="sentence_transformers"), *rows_from_outside(table)]
    return {row.name: row for row in rows}


def parse_spec(text: str, option: str = "model", table: str = EMBED) -> Spec:
    """Read a model's words. option: where they stand, for messages. table: of the kinds that may stand there.

    Raises:
        InputError: The kind or an option is unknown, or a value is impossible.
    """
    kind, colon, rest = text.partition(":")
    known = all_kinds(table)
    if kind.lower() in _REFUSED and table == EMBED:
        raise InputError(f"{option} {text}: {_REFUSED[kind.lower()]} cannot be replayed; use one vector for each item")
    if not colon or kind not in known:
        examples = ", ".join(kind.example for kind in known.values())
        if colon and "/" not in kind and "\\" not in kind:
            raise InputError(f"{unknown_name(f'{option} kind', kind, known)}; a function of yours: python:{text}")
        raise InputError(f"{option} {text!r} names no model; write one of {examples}")
    name, _, options = rest.partition("#")
    if not name:
        raise InputError(f"{option} {text!r} lacks a name, as in {known[kind].example}")
    if kind in _OF_FILES and path_of(name).exists():
        name = str(path_of(name).absolute())  # for actors
    elif kind in _OF_FILES and name.startswith(("/", ".", "~", "s3://", "gs://")):
        raise InputError(f"{option} {text}: there is no {name}; give a file or folder that there is")
    pairs = [option.partition("=") for option in options.split("&")] if options else []
    try:
        if not all(equals for _, equals, _ in pairs):
            raise InputError("options are written as dims=256&batch=64; an & or % in a value as %26 or %25")
        return _with_options(Spec(kind, name), [(n, unquote(value)) for n, _, value in pairs], known[kind], table)
    except InputError as error:
        raise InputError(f"{option} {text}: {error}") from error


def _with_options(spec: Spec, options: list[tuple[str, str]], kind: ModelKind, table: str) -> Spec:
    kinds = {option.name: type(getattr(spec, option.name)) for option in fields(spec)[2:]}
    given: dict[str, Any] = {}
    for name, value in options:
        if name not in kinds:
            raise unknown_name("option", name, kinds)
        if name not in (*_SHARED[table], *kind.options) and (table, name, value) != (EMBED, "normalise", "yes"):
            raise InputError(f"{kind.name}: models have no option {name}={value}")
        if name == "prompt":
            side, colon, text = value.partition(":")
            if not colon or side not in SIDES:
                raise InputError(f"a prompt is written as prompt=query:TEXT or prompt=document:TEXT, not {value!r}")
            given["prompt"] = given.get("prompt", {}) | {side: text}
            continue
        try:
            given[name] = kinds[name](value)
        except ValueError:
            raise InputError(f"{name} must be a number, not {value!r}") from None
        if given[name] != value and not 0 <= given[name] < inf:
            raise InputError(f"{name} must be a number from 0 on, got {value}")
    words: dict[str, tuple[str, ...]] = {"pooling": POOLINGS, "dtype": DTYPES}
    words |= dict.fromkeys(("normalise", "compile", "channels_last"), ("yes", "no"))
    for name, known in words.items():
        if given.get(name, known[0]) not in known:
            raise unknown_name(name, given[name], known)
    return replace(spec, **given)


def load_model(spec: Spec, modality: str, device: Device) -> Model:
    """Load a model. Raises InputError if it is not there, or cannot embed this modality."""
    kind = all_kinds()[spec.kind]
    if modality not in kind.modalities:
        raise InputError(f"{spec} embeds {' or '.join(kind.modalities)}s, not {modality}s")
    if modality != TEXT and (spec.prompt or spec.tokens):
        raise InputError(f"{spec}: prompts and tokens are of texts; leave them out for {modality}s")
    return Model(spec, modality, _loaded(kind, spec, modality, device))


def load_reranker(spec: Spec, device: Device) -> Reranker:
    """Load a re-ranker. Raises InputError if it is not there, or does not score pairs."""
    reranker: Reranker = _loaded(all_kinds(RERANK)[spec.kind], spec, PAIR, device)
    return reranker


def _loaded(kind: ModelKind, spec: Spec, modality: str, device: Device) -> Any:
    try:
        with failing_in_one_line(spec, "while it was loaded", (InputError, ModuleNotFoundError)):
            if kind.name in _OF_FOLDERS and in_store(folder := path_of(spec.name, or_source=True)):
                spec = replace(spec, name=os.fspath(folder))  # libraries read folders of a disk
            return kind.load(spec, modality, device)
    except ModuleNotFoundError as error:
        modules = {word.replace("-", "_") for word in kind.extra.split()} | {"torch", "transformers", "tokenizers"}
        if not kind.extra or (error.name or "").split(".")[0] not in modules:
            raise
        raise InputError(
            f"{spec} needs {error.name}, which is not installed; type: python -m pip install {kind.extra}"
        ) from error
