"""Tables of PostgreSQL, with pgvector's types or arrays of numbers: ``postgresql://user@host/database#table``.

Schema and table are written as they are stored, upper and lower case told apart.

Rows come in the order of the primary key (without one: in that of the disk) by one binary COPY, which sees one
snapshot. A password is best in the environment (PGPASSWORD) or in ``~/.pgpass``.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import Source, SourceKind, batches_of, missing_client

_PREFIXES = ("postgresql://", "postgres://")
_LISTS = pa.list_(pa.float32())
# Type of a column -> the type to select it as, and that of Arrow. Everything else becomes text.
_TYPES = {
    "vector": ("vector", _LISTS),
    "halfvec": ("vector", _LISTS),
    **dict.fromkeys(("_float4", "_float8"), ("float4[]", _LISTS)),
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


class _Column(NamedTuple):
    type: str
    kind: pa.DataType


def _open(text: str) -> Source:
    address, _, table = text.partition("#")
    if not table:
        raise InputError(f"{text} names no table: postgresql://user@host/database#table")
    with _connected(address, text) as connection:
        from psycopg import sql

        name = sql.Identifier(*_names(table))
        quoted = name.as_string(connection)  # a name without quotes would be read in lower case
        columns = {
            each: _Column(*_TYPES.get(kind, _TEXT)) for each, kind in connection.execute(_COLUMNS, [quoted]).fetchall()
        }
        key = [each for (each,) in connection.execute(_KEY, [quoted]).fetchall()]
        order = sql.SQL(", ").join(map(sql.Identifier, key)) if key else sql.SQL("ctid")
        state = sql.SQL("SELECT count(*), coalesce(max(xmin::text::bigint), 0) FROM {}").format(name)
        found = connection.execute(state).fetchone()
        assert found is not None

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        chosen = [columns[each] for each in names]
        wanted = (sql.Identifier(n) + sql.SQL(f"::{c.type}") for n, c in zip(names, chosen, strict=True))
        query = sql.SQL("COPY (SELECT {} FROM {} ORDER BY {} OFFSET {}) TO STDOUT (FORMAT BINARY)").format(
            sql.SQL(", ").join(wanted), name, order, skip
        )
        with _connected(address, text) as opened, opened.cursor().copy(query) as copy:
            copy.set_types([opened.vector_oid if column.type == "vector" else column.type for column in chosen])
            place = list(names).index
            yield from batches_of(copy.rows(), {n: kinds[n] for n in names}, lambda row, name: row[place(name)])

    kinds = {name: column.kind for name, column in columns.items()}
    return Source(text, kinds, int(found[0]), read, f"{found[0]} rows, last change {found[1]}")


def _names(table: str) -> list[str]:
    """The schema, if one is given, and the table. A name may stand in quotes, within which a dot is part of it."""
    found = re.findall(r'"(?:[^"]|"")+"|[^."]+', table)
    return [name[1:-1].replace('""', '"') if name[0] == '"' else name for name in found]


@contextmanager
def _connected(address: str, text: str) -> Iterator[Any]:
    try:
        import psycopg
        from psycopg.adapt import Loader
        from psycopg.pq import Format
    except ImportError as error:
        raise missing_client("a PostgreSQL table", "'psycopg[binary]'", error) from error

    class VectorLoader(Loader):  # type: ignore[misc, unused-ignore]
        """pgvector's binary form: two numbers of 16 bits, the first of which is the dimension, and float32 values."""

        format = Format.BINARY

        def load(self, data: Any) -> Any:
            return np.frombuffer(data, ">f4", offset=4).astype(np.float32)

    try:
        with psycopg.connect(address) as connection:
            found = connection.execute("SELECT oid FROM pg_type WHERE typname = 'vector'").fetchone()
            connection.vector_oid = found[0] if found else 0
            if found:
                connection.adapters.register_loader(found[0], VectorLoader)
            yield connection
    except psycopg.Error as error:
        said = " ".join(str(error).split())
        remedy = "; give the password in PGPASSWORD or ~/.pgpass" if "password" in said else ""
        raise InputError(f"{text}: {said}{remedy}") from error


SOURCES = (
    SourceKind("postgres", "postgresql://user@host/database#table", lambda text: text.startswith(_PREFIXES), _open),
)
