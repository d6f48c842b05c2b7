"""Copies of folders without the rows that no run can use, and where such a copy comes from."""

import shutil
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ray_backfill.core.progress import say
from ray_backfill.core.stages import read_json, write_json, write_whole
from ray_backfill.core.store_path import path_of
from ray_backfill.data.columns import MODELS, names_in, part_files
from ray_backfill.data.doctor import SplitScan, scan_split
from ray_backfill.data.folder import left_out_file
from ray_backfill.data.identity import identities_of
from ray_backfill.data.importing import ColumnNames, import_split, imported, remove
from ray_backfill.data.vectors import FINE

_SPLITS = ("gallery", "queries", "train", "validation")
# Files that say nothing of single rows. Views of train items do, so they are not taken.
_OTHERS = ("classifier.parquet", "log.parquet")
_MANIFEST = "manifest.json"
_FROM, _LEFT_OUT = "copied_from", "left_out"


class DroppedRows(NamedTuple):
    """How many rows of a split a copy lacks, and how many the split has."""

    rows: int
    of: int


def cleaned(data: Path, out: Path, overwrite: bool) -> Path:
    """The folder itself, or ``out``: a copy without rows that have no id or a repeated one, or no usable vector.

    A vector is unusable if it is missing, zero or not finite; only those of old and new are looked at.

    Such rows are listed in ``out``, in ``<split>_left_out.parquet``, and counted in its manifest. Cost: a pass over the
    vectors, and a copy of all splits if any row is broken.

    Raises:
        InputError: A file cannot be read, ``out`` holds a copy of other data, or nothing is left of a split.
    """
    splits = [name for name in _SPLITS if (data / f"{name}.parquet").exists()]
    if not any(_is_broken(scan_split(data / f"{name}.parquet")) for name in splits):
        return data
    settings = {"models": identities_of(data)}
    for name in (*(f"{split}.parquet" for split in _SPLITS), *_OTHERS):
        if not (data / name).exists():
            remove(out / name)
            left_out_file(out / name).unlink(missing_ok=True)
    counts: dict[str, DroppedRows] = {}
    for split in splits:
        source = data / f"{split}.parquet"
        columns = tuple(name for name in names_in(part_files(source)[0]) if name not in ("id", *MODELS))
        path = import_split(out / source.name, [str(source)], ColumnNames(keep=columns), True, overwrite)
        made = imported(path)
        if rows := sum(made["left_out"].values()):
            counts[source.name] = DroppedRows(rows, rows + made["rows"])
            number = "1 row" if rows == 1 else f"{rows:,} rows"
            say(f"{source.name}: {number} left out; {left_out_file(path)} lists them")
    for name in _OTHERS:
        if (data / name).exists():
            write_whole(out / name, partial(shutil.copy2, data / name))
    left_out = {name: dropped._asdict() for name, dropped in counts.items()}
    write_json(out / _MANIFEST, {_FROM: str(data), _LEFT_OUT: left_out, "settings": settings})
    return out


def _is_broken(scan: SplitScan) -> bool:
    if scan.ids is None or len(np.unique(scan.ids)) < len(scan.ids):
        return True
    return any((scan.vectors[name].problems != FINE).any() for name in MODELS if name in scan.vectors)


def copied_from(folder: Path) -> tuple[Path, dict[str, DroppedRows]]:
    """The folder that this is a copy of, and what the copy leaves out; for any other folder, itself and nothing."""
    facts = read_json(folder / _MANIFEST) if (folder / _MANIFEST).is_file() else {}
    if _FROM not in facts:
        return folder, {}
    return path_of(facts[_FROM]), {name: DroppedRows(**dropped) for name, dropped in facts[_LEFT_OUT].items()}
