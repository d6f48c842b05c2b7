"""Collections of Milvus: ``milvus:http://host:19530#collection``, or ``milvus:file.db#collection`` (Milvus Lite).

A server's token is that of the environment, MILVUS_TOKEN.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import BATCH_ROWS, Source, SourceKind, missing_client, skipping

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
    try:
        if not collection or not client.has_collection(collection):
            has = ", ".join(client.list_collections()) or "none"
            raise InputError(f"{text} names no collection that is there; it has: {has}")
        fields = client.describe_collection(collection)["fields"]
        client.load_collection(collection)
        rows = int(client.query(collection, output_fields=["count(*)"])[0]["count(*)"])
    except InputError:
        raise
    except Exception as error:  # of several gRPC libraries
        raise InputError(f"{text}: {' '.join(str(error).split())}") from error
    columns = {field["name"]: _TYPES[field["type"].name] for field in fields if field["type"].name in _TYPES}

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        yield from skipping(_batches(client, collection, names, columns), skip)

    return Source(text, columns, rows, read, f"{rows} rows", tells_changes=False)


def _batches(
    client: Any, collection: str, names: Sequence[str], columns: dict[str, pa.DataType]
) -> Iterator[pa.RecordBatch]:
    """In the order of the primary key."""
    iterator = client.query_iterator(collection, batch_size=_PAGE, output_fields=list(names))
    rows: list[dict[str, Any]] = []
    while True:
        page = iterator.next()
        rows.extend(page)
        if rows and (len(rows) >= BATCH_ROWS or not page):
            yield pa.record_batch([pa.array([row[name] for row in rows], columns[name]) for name in names], list(names))
            rows = []
        if not page:
            iterator.close()
            return


def _client(address: str, text: str) -> Any:
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise missing_client("a Milvus collection", "pymilvus milvus-lite", error) from error
    if "://" not in address and not Path(address).exists():  # the client would create it
        raise InputError(f"{address} does not exist")
    try:
        return MilvusClient(uri=address, token=os.environ.get("MILVUS_TOKEN", "") if "://" in address else "")
    except Exception as error:
        raise InputError(f"{text} cannot be opened: {' '.join(str(error).split())}") from error


KINDS = (SourceKind("milvus", "milvus:http://host:19530#collection", lambda text: text.startswith(_PREFIX), _open),)
