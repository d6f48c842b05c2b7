"""What messages call a user's data: the files of a folder, or what was given instead and written to a folder.

Such a folder has ``words.json``, so every process that reads it knows how its user calls it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ray_backfill.core.stages import read_json, write_json

_FILE = "words.json"


@dataclass(frozen=True)
class Words:
    """What messages call the parts of a user's data, and what they advise to do; by default, those of a folder.

    parts: split, or split/column, or "" for everything -> its name in place of the file's.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    column: str = "column {!r}"
    file: str = "file"
    ids: str = "the column 'id' of queries and gallery"
    no_train: str = "The folder has no train split."
    drop: str = "drop them (simulate --drop-broken leaves such rows out)"
    use_l2: str = "use --distance l2"
    join: str = "same row order? Join old and new by id: ray-backfill import --gallery OLD NEW"
    same_id: str = "give an item the same id in both files"
    more_columns: str = ""

    def called(self, split: str, column: str = "", otherwise: str = "") -> str:
        """The name of a split or of its column. otherwise: where it has none of its own."""
        return self.parts.get(f"{split}/{column}" if column else split, otherwise)


FILES = Words()


def words_of(path: Path) -> Words:
    """The words for a folder of embeddings, one of its splits, or a part of a split. Cost: looks for a small file."""
    found = next((folder / _FILE for folder in (path, *path.parents[:2]) if (folder / _FILE).is_file()), None)
    return FILES if found is None else Words(**read_json(found))


def called(path: Path | str, column: str = "", in_short: bool = False) -> str:
    """What a message calls a folder, a split or a column. in_short: a file without its folder."""
    place = Path(path)
    name, split = place.name if in_short else str(path), "" if (place / _FILE).is_file() else place.stem
    return words_of(place).called(split, column, f"{name}, column {column!r}" if column else name)


def write_words(folder: Path, words: Words) -> None:
    """Record how the user of this folder calls it."""
    if words == FILES:
        (folder / _FILE).unlink(missing_ok=True)
    else:
        write_json(folder / _FILE, asdict(words))


def words_for_arrays(names: Mapping[str, str], train: str, use_l2: str) -> Words:
    """The words for arrays of the queries and of the gallery. names: split/column -> name. train: of items for maps."""
    of_all = {"": "these arrays", "queries": "the query data", "gallery": "the gallery data", "train": train}
    return Words(
        {**of_all, **names},
        column="{}",
        file="array",
        ids="the row numbers of both arrays",
        no_train="No train items were given.",
        drop="drop these rows from every array",
        use_l2=use_l2,
        join="row i of old and row i of new must be the same item",
        same_id="give items ids in a folder (rb.write_folder), the same one to a query and its copy",
        more_columns="; rb.write_folder writes a folder with further columns",
    )


OF_MODELS = Words(
    {
        "train": "items for maps (--train)",
        **{
            f"{split}/{model}": f"the {model} model's vectors of the {split}"
            for split in ("gallery", "queries", "train")
            for model in ("old", "new")
        },
    },
    no_train="No items for maps were given or drawn.",
    drop="leave these items out",
)
"""The words for items that both models embedded."""
