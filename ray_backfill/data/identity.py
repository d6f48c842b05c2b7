"""Which model made a column of vectors: what a folder of embeddings and its files state, so that no column has two.

Every Parquet file that we write states the models of its own columns in its metadata, so a copied file betrays itself.
So does the manifest of a stage that embeds. ``models.json`` in a folder states those of files that others have made.
An identity is what ``encode.encoder.Model.identity`` tells, and a ``name`` for people; of a model that a user only
names, the name is all that is known.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.runkey import fingerprint
from ray_backfill.core.schema import footers
from ray_backfill.core.secrets import cleaned
from ray_backfill.core.stages import read_json

_SPLITS = ("gallery", "queries", "train", "validation", "train_views", "log")
_KEY = b"ray_backfill.models"  # of the metadata of Parquet and Arrow files

# Column -> the identity of its model.
Identities = dict[str, dict[str, Any]]


def identities_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The models of a folder of embeddings, as far as they are stated: column ("old", "new", ...) -> identity, as JSON.

    Raises InputError if two places state different models for one column. Cost: opens every part file.
    """
    return one_model_each(stated(folder))


def one_model_each(places: Iterable[tuple[str, Identities]]) -> Identities:
    """What several places state together; an identity tells more than a name. places: their names, and what they state.

    Raises InputError if two of them state different models for one column.
    """
    known: Identities = {}
    first: dict[str, str] = {}
    for place, models in places:
        for column, model in models.items():
            if column in known and not _same(known[column], model):
                raise InputError(
                    f"column {column!r} has two models: {short_name(known[column])} in {first[column]}, "
                    f"{short_name(model)} in {place}; embed or import one of them again, by the model of the other"
                )
            if len(model) > len(known.get(column, {})):
                known[column], first[column] = model, place
    return known


def short_name(model: Mapping[str, Any]) -> str:
    """Name and 8 hex digits of a hash of the identity: all-MiniLM-L6-v2@3f2a9c1b. Of a model only named: the name."""
    name, content = " ".join(str(model.get("name", "")).split()), content_of(model)
    if not content:
        return name
    words = name.partition("#")[0] or str(model.get("kind", "model"))
    digits = fingerprint(json.dumps(content, sort_keys=True))[:8]
    return f"{words.partition(':')[2] or words}@{digits}"


def short_names(models: Identities) -> dict[str, str]:
    """Column -> its model in short."""
    return {column: short_name(model) for column, model in models.items()}


def content_of(model: Mapping[str, Any]) -> dict[str, Any]:
    """What determines a model's vectors: its identity without its name."""
    return {key: value for key, value in model.items() if key != "name"}


def stating(table: pa.Table, models: Mapping[str, Mapping[str, Any]]) -> pa.Table:
    """The table, whose metadata state the models of its columns, too. models: of these, and perhaps of others."""
    of_table = {column: cleaned(model) for column, model in models.items() if column in table.column_names}
    added = {_KEY: json.dumps(of_table).encode()} if of_table else {}
    return table.replace_schema_metadata((table.schema.metadata or {}) | added)


def stated_in(metadata: Mapping[bytes, bytes] | None, place: str) -> Identities:
    """The models that the metadata of a file state. Raises InputError if that cannot be read."""
    try:
        return as_identities(json.loads((metadata or {}).get(_KEY, b"{}")), place)
    except ValueError as error:
        raise InputError(f"{place}: its metadata {_KEY.decode()} are no JSON; write the file again") from error


def as_identities(models: Any, place: str) -> Identities:
    """Names or identities of models, by column, as identities. Raises InputError for anything else."""
    known: Identities = {}
    for column, model in models.items() if isinstance(models, dict) else [("", None)]:
        if not isinstance(model, str | dict) or not (model.split() if isinstance(model, str) else model):
            raise InputError(f"{place} must state a model for each column, such as {{'old': 'openai:NAME'}}")
        known[column] = {"name": cleaned(" ".join(model.split()))} if isinstance(model, str) else model
    return known


def stated(folder: Path, but: Collection[str] = ()) -> Iterator[tuple[str, Identities]]:
    """The places of a folder that state models; a file that cannot be read does not. but: splits that do not count."""
    with suppress(InputError):
        settings = read_json(folder / "manifest.json").get("settings")
        models = settings.get("models", {}) if isinstance(settings, dict) else {}
        yield "manifest.json", as_identities(models, "manifest.json")
    if (folder / "models.json").is_file():
        yield "models.json", as_identities(read_json(folder / "models.json"), str(folder / "models.json"))
    for split in (folder / f"{name}.parquet" for name in _SPLITS if name not in but):
        for file in [split] if split.is_file() else sorted(split.glob("*.parquet")):
            metadata = None
            with suppress(InputError):
                metadata = footers([file])[0].metadata
            yield (place := str(file.relative_to(folder))), stated_in(metadata, place)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two statements can be about one model. A model that is only named is compared by its names."""
    contents = [content_of(one), content_of(other)]
    if all(contents):
        return contents[0] == contents[1]
    return bool({str(one.get("name")), short_name(one)} & {str(other.get("name")), short_name(other)})
