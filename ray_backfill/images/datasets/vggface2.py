"""VGGFace2: faces of 9,131 people, one folder per person; gender from ``identity_meta.csv``.

Source: FastFill, section 5.2 and appendix A.1: the gallery is a fixed random sample of 50 images of each of the 500
people of the test set, and queries itself.
Deviates: gender is taken from ``identity_meta.csv``, which has it for everyone. FastFill used attributes known for
5,300 people, and in its gender experiment evaluated on 250 women and 250 men of the training set.

Shapes: N images; F folders.
"""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import Published, PublishedSettings, require_counts, require_folders, wrong_layout
from ray_backfill.images.sources import ImageSource, Items, digest_items
from ray_backfill.images.sources.draws import shuffled
from ray_backfill.images.sources.folders import Listing, list_folders
from ray_backfill.images.sources.source import FileSource

# Its images have 137 x 180 pixels on average.
PUBLISHED = Published(train=3_141_890, classes=8_631, gallery=25_000, decoded_per_s=1500)
HOME = "https://www.robots.ox.ac.uk/~vgg/data/vgg_face2/ (for research; ask there whether and how it is handed out)"
LAYOUT = (
    "train/n000002/0001_01.jpg ..., test/n000001/0001_01.jpg ... (or both below data/), and identity_meta.csv "
    "(or meta/identity_meta.csv)"
)

_GENDERS = ("f", "m")  # subgroup 0, subgroup 1
_SPLITS = {"train": "train", "gallery": "test"}


@dataclass(frozen=True)
class Settings(PublishedSettings):
    """Location, image size and gallery sample."""

    per_class: int = 50
    """Gallery images per person of the test set."""
    seed: int = 0
    """Random seed for the sample of gallery images."""


def open_images(settings: Settings) -> ImageSource:
    """List the images; nothing is decoded. Labels are the numbers of the people, groups 0 (f) and 1 (m).

    Raises:
        InputError: settings out of range, a folder or ``identity_meta.csv`` is missing, or a person is missing from or
            duplicated in that file.
    Cost: one listing of the tree; the fingerprint reads size and modification time of every file.
    """
    require_counts(settings, "per_class")
    root = settings.folder
    images = root / "data" if (root / "data" / "train").is_dir() else root
    require_folders(settings, images, _SPLITS.values())
    tables = [path for path in (root / "identity_meta.csv", root / "meta" / "identity_meta.csv") if path.is_file()]
    if not tables:
        raise wrong_layout(settings, "there is no file identity_meta.csv")
    listing = list_folders(str(images), below=tuple(_SPLITS.values()))
    positions = _positions(listing, settings)
    labels_F, groups_F = _people(listing, tables[0])
    folder_of = {split: listing.folder_N[rows] for split, rows in positions.items()}
    splits = {split: Items(np.arange(len(at)), labels_F[at], groups_F[at]) for split, at in folder_of.items()}
    return FileSource("vggface2", settings, listing, splits, positions, facts={"items": digest_items(splits)})


def _positions(listing: Listing, settings: Settings) -> dict[str, NDArray[np.int64]]:
    """The file positions of each split: all of train, and the sample of each person of the test set."""
    # Files are sorted by folder, so each person has consecutive positions.
    starts = np.searchsorted(listing.folder_N, np.arange(len(listing.folders) + 1))
    found: dict[str, list[NDArray[np.int64]]] = {split: [] for split in _SPLITS}
    for number, folder in enumerate(listing.folders):
        first, last = int(starts[number]), int(starts[number + 1])
        if folder.startswith("train/"):
            found["train"].append(np.arange(first, last))
        else:
            drawn = shuffled(settings.seed, folder.rpartition("/")[2], last - first)[: settings.per_class]
            found["gallery"].append(first + np.sort(drawn))
    for split, parts in found.items():
        if not parts:
            raise wrong_layout(settings, f"there are no images in {_SPLITS[split]}")
    return {split: np.concatenate(parts) for split, parts in found.items()}


def _people(listing: Listing, table: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(F,) number and (F,) subgroup of the person in each folder."""
    try:
        genders = _read_genders(table)
    except (OSError, csv.Error) as error:
        raise InputError(f"{table} cannot be read ({error}): unpack it again") from error
    labels, groups = [], []
    for folder in listing.folders:
        split, _, person = folder.partition("/")
        if not re.fullmatch(r"n[0-9]+", person):
            raise InputError(f"vggface2: {folder!r} is not a person's folder such as {split}/n000002: remove it")
        if person not in genders:
            raise InputError(f"vggface2: {person}, the person of the folder {folder}, is not in {table}; add a line")
        labels.append(int(person[1:]))
        groups.append(genders[person])
    return np.array(labels, np.int64), np.array(groups, np.int64)


def _read_genders(table: Path) -> dict[str, int]:
    """Person -> subgroup. Fields are counted from the end of a line, as names may contain unquoted commas."""
    genders: dict[str, int] = {}
    # The encoding of the names is uncertain, but they are not used.
    with table.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        rows = (_fields(row) for row in csv.reader(lines, skipinitialspace=True))
        header = next(rows, [])
        if not header or header[0] != "Class_ID" or "Gender" not in header:
            wanted = "Class_ID, Name, Sample_Num, Flag, Gender"
            raise InputError(f"{table} must begin with the line {wanted!r}, not {', '.join(header)!r}")
        from_end = header.index("Gender") - len(header)
        for row in filter(None, rows):
            gender = row[from_end] if len(row) >= len(header) else ""
            if gender not in _GENDERS:
                raise InputError(f"{table}: the gender of {row[0]} must be f or m, not {gender!r}")
            if row[0] in genders:
                raise InputError(f"{table}: {row[0]} has two lines; remove one")
            genders[row[0]] = _GENDERS.index(gender)
    return genders


def _fields(row: list[str]) -> list[str]:
    """The fields without surrounding blanks and without empty fields at the end of the line."""
    row = [field.strip() for field in row]
    while row and not row[-1]:
        row.pop()
    return row
