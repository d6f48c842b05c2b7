"""Stores that are read by a client of their own, which is imported when a source is opened.

items.lance                                a Lance dataset, local or in an object store
milvus:http://host:19530#collection        a collection of Milvus; milvus:file.db#collection of Milvus Lite
postgresql://user@host/database#table      a table of PostgreSQL, with pgvector's types or arrays of numbers, or a
                                           query that begins with SELECT or WITH
qdrant:http://host:6333#collection         a collection of Qdrant; qdrant:/folder#collection in this process

Secrets are those of the environment: MILVUS_TOKEN, QDRANT_API_KEY, PGPASSWORD (or ``~/.pgpass``).
"""

import logging
import os
import re
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import BATCH_ROWS, Source, SourceKind, batches_of, client_of, one_line

_VECTORS = pa.list_(pa.float32())
# Rows that Milvus and Qdrant are asked for at a time.
_PAGE = 1024
# The column of Qdrant's vectors that have no name.
_UNNAMED = "vector"


def _open_lance(text: str) -> Source:
    with client_of("a Lance dataset", "pylance"):
        import lance
    try:
        dataset = lance.dataset(text)
    except (ValueError, OSError) as error:
        raise InputError(f"{text} cannot be opened as a Lance dataset: {' '.join(str(error).split())}") from error

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        yield from dataset.scanner(list(names), offset=skip, batch_size=BATCH_ROWS, scan_in_order=True).to_batches()

    columns = {field.name: field.type for field in dataset.schema}
    return Source(text, columns, dataset.count_rows(), read, f"version {dataset.version}")


def _reach(text: str, connect: Callable[[str, bool], Any]) -> tuple[Any, str]:
    """The client for the address in ``kind:address#collection``, and the collection.

    connect: makes the client for an address; whether that is a server's.
    """
    address, _, collection = text.partition(":")[2].partition("#")
    is_server = "://" in address
    if not is_server and not Path(address).exists():  # the client would create it
        raise InputError(f"{address} does not exist")
    with one_line(f"{text} cannot be opened"):
        return connect(address, is_server), collection


_MILVUS_TYPES = {
    "FLOAT_VECTOR": _VECTORS,
    **dict.fromkeys(("INT8", "INT16", "INT32", "INT64"), pa.int64()),
    **dict.fromkeys(("FLOAT", "DOUBLE"), pa.float64()),
    "VARCHAR": pa.string(),
}


def _open_milvus(text: str) -> Source:
    def connect(address: str, is_server: bool) -> Any:
        with client_of("a Milvus collection", "pymilvus milvus-lite"):
            from pymilvus import MilvusClient
        logging.getLogger("milvus_lite").addHandler(logging.NullHandler())  # it logs a traceback before it raises
        return MilvusClient(uri=address, token=os.environ.get("MILVUS_TOKEN", "") if is_server else "")

    client, collection = _reach(text, connect)
    with one_line(text):
        if not collection or not client.has_collection(collection):
            has = ", ".join(client.list_collections()) or "none"
            raise InputError(f"{text} names no collection that is there; it has: {has}")
        fields = client.describe_collection(collection)["fields"]
        client.load_collection(collection)
        rows = int(client.query(collection, output_fields=["count(*)"])[0]["count(*)"])
    columns = {
        field["name"]: _MILVUS_TYPES[field["type"].name] for field in fields if field["type"].name in _MILVUS_TYPES
    }

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        def in_order_of_key() -> Iterator[dict[str, Any]]:
            iterator = client.query_iterator(collection, batch_size=_PAGE, output_fields=list(names))
            while page := iterator.next():
                yield from page
            iterator.close()

        wanted = {name: columns[name] for name in names}
        yield from batches_of(islice(in_order_of_key(), skip, None), wanted, lambda row, name: row[name])

    return Source(text, columns, rows, read, f"{rows} rows", tells_changes=False)


# Type of a column -> the type to select it as, and that of Arrow. Everything else becomes text.
_POSTGRES_TYPES = {
    "vector": ("vector", _VECTORS),
    "halfvec": ("vector", _VECTORS),
    **dict.fromkeys(("_float4", "_float8"), ("float4[]", _VECTORS)),
    **dict.fromkeys(("int2", "int4", "int8"), ("int8", pa.int64())),
    **dict.fromkeys(("float4", "float8", "numeric"), ("float8", pa.float64())),
}
_TEXT = ("text", pa.string())

_COLUMNS = """
SELECT a.attname, t.typname FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
WHERE i.indrelid = %s::regclass AND i.indisprimary ORDER BY array_position(i.indkey::int2[], a.attnum)"""


def _open_postgres(text: str) -> Source:
    """Rows of a table come in the order of the primary key (without one: in that of the disk), those of a query in the
    order of its first column; by one binary COPY, which sees one snapshot. Schema and table are written as they are
    stored, upper and lower case told apart.
    """
    address, _, table = text.partition("#")
    if not table:
        raise InputError(f"{text} names no table: postgresql://user@host/database#table")
    is_query = re.match(r"(select|with)\s", table.strip(), re.IGNORECASE)
    with _connected(address, text) as connection:
        from psycopg import sql

        if is_query:
            name: Any = sql.SQL("({}) AS query").format(sql.SQL(table.strip().rstrip(";")))
            described = connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(name)).description
            named = dict(connection.execute("SELECT oid, typname FROM pg_type").fetchall())
            found = [(column.name, named[column.type_code]) for column in described]
            key, last = [found[0][0]], sql.SQL("0")
        else:
            # The schema, if one is given, and the table. A name may stand in quotes, within which a dot is part of it.
            words = re.findall(r'"(?:[^"]|"")+"|[^."]+', table)
            names = [word[1:-1].replace('""', '"') if word[0] == '"' else word for word in words]
            name = sql.Identifier(*names)
            quoted = name.as_string(connection)  # a name without quotes would be read in lower case
            found = connection.execute(_COLUMNS, [quoted]).fetchall()
            key = [column for (column,) in connection.execute(_KEY, [quoted]).fetchall()]
            last = sql.SQL("coalesce(max(xmin::text::bigint), 0)")
        type_of, kind_of = ({column: _POSTGRES_TYPES.get(kind, _TEXT)[i] for column, kind in found} for i in (0, 1))
        order = sql.SQL(", ").join(map(sql.Identifier, key)) if key else sql.SQL("ctid")
        state = sql.SQL("SELECT count(*), {} FROM {}").format(last, name)
        rows, last_change = connection.execute(state).fetchone()

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        wanted = (sql.Identifier(column) + sql.SQL(f"::{type_of[column]}") for column in names)
        query = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {} OFFSET {}) TO STDOUT (FORMAT BINARY)").format(
            sql.SQL(", ").join(wanted), name, order, skip
        )
        with _connected(address, text) as opened, opened.cursor().copy(query) as copy:
            copy.set_types([opened.vector_oid if type_of[n] == "vector" else type_of[n] for n in names])
            place = list(names).index
            yield from batches_of(copy.rows(), {n: kind_of[n] for n in names}, lambda row, name: row[place(name)])

    return Source(text, kind_of, rows, read, f"{rows} rows, last change {last_change}", tells_changes=not is_query)


@contextmanager
def _connected(address: str, text: str) -> Iterator[Any]:
    with client_of("a PostgreSQL table", "'psycopg[binary]'"):
        import psycopg
        from psycopg.adapt import Loader
        from psycopg.pq import Format

    class VectorLoader(Loader):  # type: ignore[misc, unused-ignore]
        """pgvector's binary form: two numbers of 16 bits, the first of which is the dimension, and float32 values."""

        format = Format.BINARY

        def load(self, data: Any) -> Any:
            return np.frombuffer(data, ">f4", offset=4).astype(np.float32)

    try:
        with psycopg.connect(address) as connection:
            connection.read_only = True
            found = connection.execute("SELECT oid FROM pg_type WHERE typname = 'vector'").fetchone()
            connection.vector_oid = found[0] if found else 0
            if found:
                connection.adapters.register_loader(found[0], VectorLoader)
            yield connection
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        remedy = "; give the password in PGPASSWORD or ~/.pgpass" if "password" in said else ""
        raise InputError(f"{text}: {said}{remedy}") from error


def _open_qdrant(text: str) -> Source:
    """The columns are ``id``, each named vector (``vector`` if it has no name), and the fields of the payload."""

    def connect(address: str, is_server: bool) -> Any:
        with client_of("a Qdrant collection", "qdrant-client"):
            from qdrant_client import QdrantClient
        if is_server:
            return QdrantClient(url=address, api_key=os.environ.get("QDRANT_API_KEY"))
        return QdrantClient(path=address)

    client, collection = _reach(text, connect)
    with one_line(text):
        if not collection or not client.collection_exists(collection):
            has = ", ".join(there.name for there in client.get_collections().collections) or "none"
            raise InputError(f"{text} names no collection that is there; it has: {has}")
        info, rows = client.get_collection(collection), client.count(collection, exact=True).count
        params = info.config.params.vectors
        named = params if isinstance(params, dict) else {_UNNAMED: params}
        first, _ = client.scroll(collection, limit=_PAGE, with_payload=True, with_vectors=False)
    vectors = dict.fromkeys(named, _VECTORS)
    cosine = [name for name, vector in named.items() if str(vector.distance).lower().endswith("cosine")]
    note = f"{text}: Qdrant stores the vectors of a cosine collection with length 1 ({', '.join(cosine)})"
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
        yield from batches_of(islice(_qdrant_points(client, collection, names, vectors), skip, None), wanted, value)

    return Source(text, columns, rows, read, f"{rows} points", (note,) if cosine else (), tells_changes=False)


def _qdrant_points(client: Any, collection: str, names: Sequence[str], vectors: Container[str]) -> Iterator[Any]:
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


def _type_of(values: list[Any]) -> pa.DataType:
    try:
        return pa.infer_type([value for value in values if value is not None])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InputError(f"a field of the payload holds values of several types: {error}") from error


SOURCES = (
    SourceKind("lance", "items.lance", lambda text: text.rstrip("/").endswith(".lance"), _open_lance),
    SourceKind("milvus", "milvus:http://host:19530#collection", lambda text: text.startswith("milvus:"), _open_milvus),
    SourceKind(
        "postgres",
        "postgresql://user@host/database#table",
        lambda text: text.startswith(("postgresql://", "postgres://")),
        _open_postgres,
    ),
    SourceKind("qdrant", "qdrant:http://host:6333#collection", lambda text: text.startswith("qdrant:"), _open_qdrant),
)
