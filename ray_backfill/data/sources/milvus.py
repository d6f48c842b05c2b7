"""Collections of Milvus: ``milvus:http://host:19530#collection``, or ``milvus:file.db#collection`` (Milvus Lite).

A server's token is that of the environment, MILVUS_TOKEN.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import Source, SourceKind, batches_of, missing_client, one_line, skipping

_PREFIX = "milvus:"
_PAGE = 1024
_TYPES = {
    "FLOAT_VECTOR": pa.list_(pa.float32()),
    "INT8": pa.int64(),
    "INT16": pa.int64(),
    "INT32": pa.int64(),
    "INT64": pa.int64(),
    "FLOAT": pa.float64(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
}


def _open(text: str) -> Source:
    address, _, collection = text.removeprefix(_PREFIX).partition("#")
    client = _client(address, text)
    with one_line(text):
        if not collection or not client.has_collection(collection):
            has = ", ".join(client.list_collections()) or "none"
            raise InputError(f"{text} names no collection that is there; it has: {has}")
        fields = client.describe_collection(collection)["fields"]
        client.load_collection(collection)
        rows = int(client.query(collection, output_fields=["count(*)"])[0]["count(*)"])
    columns = {field["name"]: _TYPES[field["type"].name] for field in fields if field["type"].name in _TYPES}

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        wanted = {name: columns[name] for name in names}
        yield from skipping(batches_of(_rows(client, collection, names), wanted, lambda row, name: row[name]), skip)

    return Source(text, columns, rows, read, f"{rows} rows", tells_changes=False)


def _rows(client: Any, collection: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """In the order of the primary key."""
    iterator = client.query_iterator(collection, batch_size=_PAGE, output_fields=list(names))
    while page := iterator.next():
        yield from page
    iterator.close()


def _client(address: str, text: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise missing_client("a Milvus collection", "pymilvus milvus-lite", error) from error
    if "://" not in address and not Path(address).exists():  # the client would create it
        raise InputError(f"{address} does not exist")
    with one_line(f"{text} cannot be opened"):
        return MilvusClient(uri=address, token=os.environ.get("MILVUS_TOKEN", "") if "://" in address else "")


SOURCES = (SourceKind("milvus", "milvus:http://host:19530#collection", lambda text: text.startswith(_PREFIX), _open),)
