"""What a reader must know about the data of a run, as sentences for the terminal and the pages."""

from collections.abc import Mapping
from typing import Any


def data_notes(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Sentences about what was left out, with the file that lists it, on weights, and the notes on the data.

    data: the key ``data`` of a manifest.
    """
    found = []
    if skipped := data.get("queries_skipped"):
        found.append(
            f"Queries without a right answer in the gallery, left out: {skipped:,}; skipped_queries.parquet lists them."
        )
    if broken := data.get("broken_images"):
        found.append(
            f"Images that could not be read, left out: {broken:,}; broken.parquet beside the embeddings lists them."
        )
    if column := data.get("queries_weighted_by"):
        by = "each query's clicks" if column == "clicks" else f"column {column}"
        found.append(f"Every mean over queries is weighted by {by}.")
    return (*found, *data.get("notes", ()))
