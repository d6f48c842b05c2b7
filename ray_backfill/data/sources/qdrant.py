"""Collections of Qdrant: ``qdrant:http://host:6333#collection``, or ``qdrant:/folder#collection`` in this process.

A server's key is that of the environment, QDRANT_API_KEY.

Columns: ``id``, each named vector (``vector`` if it has no name), and the fields of the payload.
"""

import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import Source, SourceKind, batches_of, missing_client, one_line, skipping

_PREFIX = "qdrant:"
_UNNAMED = "vector"
_PAGE = 1024
_VECTORS = pa.list_(pa.float32())


def _open(text: str) -> Source:
    address, _, collection = text.removeprefix(_PREFIX).partition("#")
    client = _client(address, text)
    with one_line(text):
        if not collection or not client.collection_exists(collection):
            has = ", ".join(each.name for each in client.get_collections().collections) or "none"
            raise InputError(f"{text} names no collection that is there; it has: {has}")
        info, rows = client.get_collection(collection), client.count(collection, exact=True).count
        vectors, notes = _vectors_of(info.config.params.vectors, text)
        first, _ = client.scroll(collection, limit=_PAGE, with_payload=True, with_vectors=False)
    fields = {key: _type_of([point.payload.get(key) for point in first]) for point in first for key in point.payload}
    columns = {"id": pa.string() if first and isinstance(first[0].id, str) else pa.int64(), **vectors, **fields}

    def value(point: Any, name: str) -> Any:
        if name == "id":
            return point.id
        if name in vectors:
            return point.vector if name == _UNNAMED else (point.vector or {}).get(name)
        return (point.payload or {}).get(name)

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        wanted = {name: columns[name] for name in names}
        yield from skipping(batches_of(_points(client, collection, names, vectors), wanted, value), skip)

    return Source(text, columns, rows, read, f"{rows} points", notes, tells_changes=False)


def _points(client: Any, collection: str, names: Sequence[str], vectors: Container[str]) -> Iterator[Any]:
    wanted: bool | list[str] = [name for name in names if name in vectors]
    if wanted == [_UNNAMED]:
        wanted = True
    payload = [name for name in names if name not in vectors and name != "id"]
    offset, is_last = None, False
    while not is_last:
        found, offset = client.scroll(
            collection, limit=_PAGE, offset=offset, with_payload=payload or False, with_vectors=wanted or False
        )
        yield from found
        is_last = offset is None


def _vectors_of(params: Any, text: str) -> tuple[dict[str, pa.DataType], tuple[str, ...]]:
    named = params if isinstance(params, dict) else {_UNNAMED: params}
    cosine = [name for name, each in named.items() if str(each.distance).lower().endswith("cosine")]
    note = f"{text}: Qdrant stores the vectors of a cosine collection with length 1 ({', '.join(cosine)})"
    return dict.fromkeys(named, _VECTORS), (note,) if cosine else ()


def _type_of(values: list[Any]) -> pa.DataType:
    try:
        return pa.infer_type([value for value in values if value is not None])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"a field of the payload holds values of several types: {error}") from error


def _client(address: str, text: str) -> Any:
    try:
        from qdrant_client import QdrantClient
    except ImportError as error:
        raise missing_client("a Qdrant collection", "qdrant-client", error) from error
    if "://" not in address and not Path(address).exists():  # the client would create it
        raise InputError(f"{address} does not exist")
    with one_line(f"{text} cannot be opened"):
        if "://" not in address:
            return QdrantClient(path=address)
        return QdrantClient(url=address, api_key=os.environ.get("QDRANT_API_KEY"))


SOURCES = (SourceKind("qdrant", "qdrant:http://host:6333#collection", lambda text: text.startswith(_PREFIX), _open),)
