"""What messages call a user's data: the files of a folder, or what was given instead and written to a folder.

Such a folder has ``words.json``, so every process that reads it knows how its user calls it.
"""

from collections.abc import Mapping
from pathlib import Path

from ray_backfill.core.stages import read_json, write_json

# Phrases by name. A split ("train"), a column ("gallery/old") or the whole folder ("") has a name only if its user does
# not know the file.
Words = Mapping[str, str]
FILES: Words = {
    "column": "column {!r}",
    "this": "this folder",
    "each": "both files",
    "ids": "the column 'id' of queries and gallery",
    "no train": "The folder has no train split.",
    "drop": "drop them (simulate --drop-broken leaves such rows out)",
    "l2": "use --distance l2",
    "join": "same row order? Join old and new by id: ray-backfill import --gallery OLD NEW",
    "same id": "give an item the same id in both files",
    "more columns": "",
}
ARRAYS: Words = {
    "": "these arrays",
    "queries": "the query data",
    "gallery": "the gallery data",
    "column": "{}",
    "this": "these arrays",
    "each": "both arrays",
    "ids": "the row numbers of both arrays",
    "no train": "No train items were given.",
    "drop": "drop these rows from every array",
    "join": "row i of old and row i of new must be the same item",
    "same id": "give items ids in a folder (rb.write_folder), the same one to a query and its copy",
    "more columns": "; rb.write_folder writes a folder with further columns",
}
OF_MODELS: Words = {
    "gallery/old": "the old model's vectors of the gallery",
    "gallery/new": "the new model's vectors of the gallery",
    "queries/old": "the old model's vectors of the queries",
    "queries/new": "the new model's vectors of the queries",
    "train": "items for maps (--train)",
    "no train": "No items for maps were given or drawn.",
    "drop": "leave these items out",
}
_FILE = "words.json"


def words_of(path: Path) -> Words:
    """The words for a folder of embeddings, one of its splits, or a part of a split. Cost: looks for a small file."""
    own = next((folder / _FILE for folder in (path, *path.parents[:2]) if (folder / _FILE).is_file()), None)
    return FILES if own is None else {**FILES, **read_json(own)}


def called(path: Path | str, column: str = "", in_short: bool = False) -> str:
    """What a message calls a folder, a split or a column. in_short: a file without its folder."""
    place = path if isinstance(path, Path) else Path(path)
    name, split = place.name if in_short else str(path), "" if (place / _FILE).is_file() else place.stem
    return words_of(place).get(
        f"{split}/{column}" if column else split, f"{name}, column {column!r}" if column else name
    )


def write_words(folder: Path, words: Words) -> None:
    """Record how the user of this folder calls it."""
    if words == FILES:
        (folder / _FILE).unlink(missing_ok=True)
    elif not (folder / _FILE).is_file() or read_json(folder / _FILE) != words:
        write_json(folder / _FILE, dict(words))
