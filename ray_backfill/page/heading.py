"""What a reader must know about the data of a run: data set, recipe, date, whether they are invented, and notes."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from ray_backfill.core.outcome import Remark

# The note in manifests.
INVENTED = Remark(
    "The embeddings are invented: they were drawn from a model of distances, no real item was seen. The figures show "
    "scale and arithmetic, not which method is better."
)
# An absolute path, in quotation marks (then spaces are part of it) or not; not the slash in "m/s" or in an address.
_QUOTED = re.compile(r"""(?P<mark>['"])(?:~?/|[A-Za-z]:\\)(?:[^'"]*[/\\])?(?P<last>[^'"/\\]*)[/\\]?(?P=mark)""")
_PLAIN = re.compile(
    r"""(?<![^\s=(\[,;'"])(?:~?/|[A-Za-z]:\\)(?:[^\s/\\'",;:()]+[/\\])*(?P<last>[^\s/\\'",;:()]+)[/\\]?"""
)


def name_of(data: Mapping[str, Any]) -> str:
    """The name of the data set: as the manifest has it, or the folder of its embeddings; empty if unknown.

    A folder ``RUN/embeddings`` is named after its run.
    """
    if data.get("name", "embeddings") != "embeddings":
        return str(data["name"])
    parts = [part for part in PurePath(str(data.get("path", ""))).parts if part not in ("/", "embeddings")]
    return parts[-1] if parts else ""


def recipe_of(data: Mapping[str, Any]) -> str:
    """The name of the recipe; empty for a folder of embeddings, and if it is unknown."""
    return str(data.get("recipe") or "")


def date_of(created: str) -> str:
    """The time of a run to the minute: "2026-11-22 10:06 UTC"; empty if unknown."""
    return f"{created[:16].replace('T', ' ')} UTC" if created else ""


def top_notes(warnings: Sequence[str]) -> tuple[str, list[str]]:
    """The note that the data are invented, "" if they are not; and the warnings without it, and without folders."""
    others = [without_folders(warning) for warning in warnings if warning != INVENTED]
    return INVENTED * (INVENTED in warnings), others


def without_folders(text: str) -> str:
    """A text whose absolute paths are shortened to their last part: reports should not show their author's folders."""
    text = _QUOTED.sub(lambda path: path["mark"] + path["last"] + path["mark"], text)
    return _PLAIN.sub(lambda path: path["last"], text)


def data_notes(data: Mapping[str, Any], file: Callable[[str], str] = str) -> tuple[Remark, ...]:
    """Sentences about what was left out, with the file that lists it, on weights, and the notes on the data.

    data: the key ``data`` of a manifest. file: what to call a file of the results.
    """
    notes = []
    if skipped := data.get("queries_skipped"):
        lists = f"{file('skipped_queries.parquet')} lists them"
        text = f"Queries without a right answer in the gallery, left out: {skipped:,}; {lists}."
        notes.append(Remark.about(text, skipped, data.get("queries", 0)))
    if broken := data.get("broken_images"):
        text = f"Images that could not be read, left out: {broken:,}; broken.parquet beside the embeddings lists them."
        notes.append(Remark.about(text, broken, data.get("gallery_items", 0)))
    if column := data.get("queries_weighted_by"):
        by = "each query's clicks" if column == "clicks" else f"column {column}"
        notes.append(Remark(f"Every mean over queries is weighted by {by}.", matters=False))
    notes += [Remark(text) for text in data.get("notes", ())]
    return (*notes, *(Remark(text, matters=False) for text in data.get("remarks", ())))
