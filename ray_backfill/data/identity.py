"""Which model made a column of vectors: what a folder of embeddings and its files state, so that no column has two.

Every Parquet file that we write states the models of its own columns in its metadata, so a copied file betrays itself.
So does the manifest of a stage that embeds. ``models.json`` in a folder states those of files that others have made.

An identity is what ``encode.encoder.Model.identity`` tells, and a ``name`` for people. Of a model that a user only
names, the name is all that is known.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Any

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import fingerprint
from ray_backfill.core.schema import open_checked
from ray_backfill.core.secrets import cleaned
from ray_backfill.core.stages import read_json

_SPLITS = ("gallery", "queries", "train", "validation", "train_views", "log")
_KEY = b"ray_backfill.models"  # of the metadata of Parquet and Arrow files

# Column -> the identity of its model.
Identities = dict[str, dict[str, Any]]


def identities_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The models of a folder of embeddings: column ("old", "new", ...) -> identity, as JSON has it; see the module.

    A column that nothing states has none, so {} is a folder without any. Cost: opens every part file.

    Raises:
        InputError: Two places state different models for one column, or ``models.json`` cannot be read.
    """
    return one_model_each(_stated(folder))


def one_model_each(stated: Iterable[tuple[str, Identities]]) -> Identities:
    """What several places state together. stated: the place, for messages, and what it states.

    Raises:
        InputError: Two places state different models for one column.
    """
    known: Identities = {}
    first: dict[str, str] = {}
    for place, models in stated:
        for column, model in models.items():
            if column in known and not _same(known[column], model):
                raise InputError(
                    f"column {column!r} has two models: {short_name(known[column])} in {first[column]}, "
                    f"{short_name(model)} in {place}; embed or import one of them again, by the model of the other"
                )
            if len(model) > len(known.get(column, {})):  # an identity tells more than a name
                known[column], first[column] = model, place
    return known


def short_name(model: Mapping[str, Any]) -> str:
    """A model in short: its name, and 8 hex digits of a hash of its identity: ``all-MiniLM-L6-v2@3f2a9c1b``. Of a model
    that is only named, the name.
    """
    name, content = str(model.get("name", "")), _content(model)
    if not content:
        return name
    words = name.partition("#")[0] or str(model.get("kind", "model"))
    digits = fingerprint(json.dumps(content, sort_keys=True))[:8]
    return f"{PurePath(words.partition(':')[2] or words).name}@{digits}"


def short_names(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Column -> its model in short."""
    return {column: short_name(model) for column, model in models.items()}


def as_metadata(models: Mapping[str, Mapping[str, Any]]) -> dict[bytes, bytes]:
    """What the metadata of a Parquet file states of its columns' models; without secrets."""
    return {_KEY: json.dumps(cleaned(dict(models))).encode()} if models else {}


def stated_in(metadata: Mapping[bytes, bytes] | None, place: str) -> Identities:
    """The models that the metadata of a file state. Raises InputError if nobody can read that."""
    if _KEY not in (metadata or {}):
        return {}
    try:
        return as_identities(json.loads(metadata[_KEY]), place)  # type: ignore[index]
    except ValueError as error:
        raise InputError(f"{place}: its metadata {_KEY.decode()} are no JSON; write the file again") from error


def as_identities(models: Any, place: str) -> Identities:
    """Names or identities of models, by column, as identities. Raises InputError for anything else."""
    if not isinstance(models, dict) or not all(isinstance(model, str | dict) and model for model in models.values()):
        raise InputError(f"{place} must state a model for each column, such as {{'old': 'openai:NAME'}}")
    return {
        str(column): {"name": " ".join(model.split())} if isinstance(model, str) else model
        for column, model in models.items()
    }


def _stated(folder: Path) -> Iterator[tuple[str, Identities]]:
    """Each place of a folder that states models. A file that cannot be read states none: whoever needs it says why."""
    with suppress(InputError):
        if (folder / "manifest.json").is_file():
            settings = read_json(folder / "manifest.json").get("settings")
            models = settings.get("models", {}) if isinstance(settings, dict) else {}
            yield "manifest.json", as_identities(models, "manifest.json")
    if (folder / "models.json").is_file():
        yield "models.json", as_identities(read_json(folder / "models.json"), str(folder / "models.json"))
    for split in (folder / f"{name}.parquet" for name in _SPLITS):
        for file in [split] if split.is_file() else sorted(split.glob("*.parquet")):
            metadata = None
            with suppress(InputError):
                metadata = open_checked(file).schema_arrow.metadata
            yield (place := str(file.relative_to(folder))), stated_in(metadata, place)


def _content(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key != "name"}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two statements can be about one model. A model that was only named is compared by its names."""
    contents = [_content(one), _content(other)]
    if all(contents):
        return contents[0] == contents[1]
    return bool({str(one.get("name")), short_name(one)} & {str(other.get("name")), short_name(other)})
