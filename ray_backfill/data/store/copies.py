"""Which folder of embeddings another one is a cleaned copy of."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ray_backfill.core.stages import read_json, write_json

_FILE = "manifest.json"
_FROM, _LEFT_OUT = "copied_from", "left_out"


class DroppedRows(NamedTuple):
    """How many rows of a split a copy lacks, and how many the split has."""

    rows: int
    of: int


def write_copied_from(copy: Path, source: Path, left_out: Mapping[str, DroppedRows]) -> None:
    """Note in a copy where it comes from. left_out: file name of a split -> rows that the copy lacks."""
    write_json(copy / _FILE, {_FROM: str(source), _LEFT_OUT: {name: each._asdict() for name, each in left_out.items()}})


def copied_from(folder: Path) -> tuple[Path, dict[str, DroppedRows]]:
    """The folder that this is a copy of, and what the copy leaves out; for any other folder, itself and nothing."""
    facts = read_json(folder / _FILE) if (folder / _FILE).is_file() else {}
    if _FROM not in facts:
        return folder, {}
    return Path(facts[_FROM]), {name: DroppedRows(**each) for name, each in facts[_LEFT_OUT].items()}
