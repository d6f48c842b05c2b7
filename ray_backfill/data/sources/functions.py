"""Rows that a function of the user's yields, in tables or dicts of columns: ``python:my_store:rows``."""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import Source, SourceKind, skipping
from ray_backfill.data.write import vector_column


def _open(text: str) -> Source:
    _, module, function = (*text.split(":", 2), "")[:3]
    if "" not in sys.path:
        sys.path.append("")  # the current folder, behind PYTHONPATH and what is installed
    numbers: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        schema, rows = None, 0
        try:
            for given in getattr(importlib.import_module(module), function)():
                if isinstance(given, Mapping):  # numpy's matrices are no columns to Arrow
                    given = {name: vector_column(v) if getattr(v, "ndim", 1) == 2 else v for name, v in given.items()}
                table = pa.table(given)
                schema = schema or table.schema
                yield from table.select(schema.names).cast(schema).to_batches()
                rows += len(table)
        except Exception as error:
            is_gone = isinstance(error, ModuleNotFoundError) and error.name == module
            remedy = f"; {module}.py must be in the current folder or on PYTHONPATH" if is_gone else ""
            raise InputError(f"{text}: {error!r}{remedy}") from error
        numbers.append(rows)
        if not rows or rows != numbers[0]:
            raise InputError(f"{text} yields {rows:,} rows; it must yield some, and the same at each call")

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        return skipping((batch.select(list(names)) for batch in batches()), skip)

    columns = {field.name: field.type for field in next(batches()).schema}
    return Source(text, columns, None, read, "", tells_changes=False)


SOURCES = (SourceKind("function", "python:my_store:rows", lambda text: text.startswith("python:"), _open),)
