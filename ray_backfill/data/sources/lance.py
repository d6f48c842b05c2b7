"""Lance datasets: a folder whose name ends in ``.lance``, local or in an object store."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.data.sources import BATCH_ROWS, Source, SourceKind, missing_client


def _open(text: str) -> Source:
    try:
        import lance
    except ImportError as error:
        raise missing_client("a Lance dataset", "pylance", error) from error
    try:
        dataset = lance.dataset(text)
    except (ValueError, OSError) as error:
        raise InputError(f"{text} cannot be opened as a Lance dataset: {' '.join(str(error).split())}") from error

    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        yield from dataset.scanner(list(names), offset=skip, batch_size=BATCH_ROWS, scan_in_order=True).to_batches()

    columns = {field.name: field.type for field in dataset.schema}
    return Source(text, columns, dataset.count_rows(), read, f"version {dataset.version}")


SOURCES = (SourceKind("lance", "items.lance", lambda text: text.rstrip("/").endswith(".lance"), _open),)
