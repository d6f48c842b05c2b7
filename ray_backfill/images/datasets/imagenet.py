"""ImageNet-1K (ILSVRC 2012): photographs of 1000 object classes, as distributed by its owners or Kaggle.

Source: Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015, https://image-net.org. The
validation images are the gallery, which queries itself. Labels are ranks of the sorted WordNet ids (wnids) of train/,
in every layout. Licence: for non-commercial research and education; the images belong to their photographers.

The validation images have no class folders. Their classes are listed in the development kit, by the numbers that its
meta.mat assigns to wnids, which are NOT the ranks of the wnids; Kaggle has a table of wnids instead.

Shapes: N validation images.
"""

import csv
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import Published, PublishedSettings, require_folders, wrong_layout
from ray_backfill.images.sources import ImageSource, Items
from ray_backfill.images.sources.classes import classes_below, items_below, rank_classes, require_known
from ray_backfill.images.sources.folders import Listing, list_folders
from ray_backfill.images.sources.source import FileSource

# Measured with photographs of 500 x 375 pixels (90 kB): 344.
PUBLISHED = Published(train=1_281_167, classes=1000, gallery=50_000, decoded_per_s=500)
HOME = (
    "https://image-net.org/download-images.php (ILSVRC2012; an account is needed, for non-commercial research), or "
    "kaggle.com/c/imagenet-object-localization-challenge (an account is needed)"
)
LAYOUT = (
    "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG; or val/ILSVRC2012_val_*.JPEG with "
    "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt and meta.mat, or with LOC_val_solution.csv; "
    "Kaggle's ILSVRC/Data/CLS-LOC/ above train and val may stay"
)

_KAGGLE = "ILSVRC/Data/CLS-LOC"
_SOLUTION = "LOC_val_solution.csv"
_GROUND_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
# Common locations of the development kit.
_DEVKITS = ("", "data", "ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "devkit/data", "devkit")
_WNID = r"n\d{8}"
_VAL_NAME = r"^ILSVRC2012_val_(?P<number>\d{8})\.(?:JPEG|jpeg|JPG|jpg)$"


@dataclass(frozen=True)
class Settings(PublishedSettings):
    """Location and image size."""


def open_images(settings: Settings) -> ImageSource:
    """List the images; nothing is decoded.

    Raises:
        InputError: image_size below 1, missing folders, an empty class, no or wrong ground truth for a val folder
            without class folders, or a class of val that train lacks.
    Cost: one listing of the tree.
    """
    root = settings.folder
    images = root / _KAGGLE if (root / _KAGGLE).is_dir() else root
    require_folders(settings, images, ("train", "val"), str(images))
    listing = list_folders(str(images), below=("train", "val"))
    label_of = rank_classes(listing)
    _require_wnids(listing)
    facts = {}
    if "val" in listing.folders and not classes_below(listing, "val"):
        gallery = _flat_items(settings, listing, label_of)
        # Here the file names do not determine the classes.
        facts["val_labels"] = hashlib.sha256(gallery.labels_N.astype("<i8").tobytes()).hexdigest()
    else:
        gallery = items_below("imagenet", listing, "val", label_of)
    splits = {"train": items_below("imagenet", listing, "train", label_of), "gallery": gallery}
    return FileSource("imagenet", settings, listing, splits, facts=facts)


def _require_wnids(listing: Listing) -> None:
    for split in ("train", "val"):
        for number, name in classes_below(listing, split).items():
            if not re.fullmatch(_WNID, name):
                raise InputError(
                    f"imagenet: {listing.root}/{listing.folders[number]} is not named by a WordNet id such as "
                    "n01440764: use the original folders, or the data set image_folder for your own images"
                )


def _flat_items(settings: Settings, listing: Listing, label_of: dict[str, int]) -> Items:
    """The images directly in val/; their numbers run from 1 without gaps, like the ground truth."""
    ids_N = np.flatnonzero(listing.folder_N == listing.folders.index("val"))
    names = listing.names.take(pa.array(ids_N))
    numbers = pc.struct_field(pc.extract_regex(names, _VAL_NAME), "number")
    if numbers.null_count:
        first = int(ids_N[pc.index(numbers.is_null(), True).as_py()])
        raise InputError(f"imagenet: {listing.where(first)} is not named like ILSVRC2012_val_00000001.JPEG: remove it")
    numbers_N = numbers.cast(pa.int64()).to_numpy()
    file, wnids_N = _ground_truth(settings)
    if len(wnids_N) != len(ids_N):
        raise InputError(
            f"imagenet: {file} lists the classes of {len(wnids_N)} images, but {listing.root}/val has "
            f"{len(ids_N)}: unpack ILSVRC2012_img_val.tar again, and use the ground truth of ILSVRC2012"
        )
    missing_N = np.setdiff1d(np.arange(1, len(ids_N) + 1), numbers_N)
    if len(missing_N):
        raise InputError(f"imagenet: validation image {missing_N[0]} is missing: unpack ILSVRC2012_img_val.tar again")
    require_known("imagenet", str(file), set(wnids_N), label_of)
    labels_N = np.array([label_of[wnid] for wnid in wnids_N], np.int64)
    return Items(ids_N, labels_N[numbers_N - 1])


def _ground_truth(settings: Settings) -> tuple[Path, list[str]]:
    """The ground truth file of the validation images, and their wnids, from image 1 on."""
    root = settings.folder
    if (root / _SOLUTION).is_file():  # does not need meta.mat
        return root / _SOLUTION, _read_solution(root / _SOLUTION)
    for folder in _DEVKITS:
        file = root / folder / _GROUND_TRUTH
        if file.is_file():
            return file, _read_ground_truth(file)
    problem = f"val has no class folders, and there is neither {_GROUND_TRUTH} nor {_SOLUTION} with its classes"
    raise wrong_layout(settings, problem, str(root))


def _read_solution(file: Path) -> list[str]:
    """Kaggle's table: ImageId, and the boxes of the image as a sequence of "wnid left top right bottom"."""
    wnids: dict[int, str] = {}
    try:
        rows = list(csv.DictReader(_text(file).splitlines()))
    except csv.Error as error:
        raise InputError(f"imagenet: {file} is not a CSV table ({error}): download it again") from error
    for row in rows:
        image, boxes = row.get("ImageId") or "", row.get("PredictionString") or ""
        name = re.fullmatch(r"ILSVRC2012_val_(\d{8})", image.strip())
        wnid = re.match(_WNID, boxes)
        if name is None or wnid is None or int(name[1]) in wnids:
            raise InputError(
                f"imagenet: {file}, image {image!r}: expected each image once, with ImageId such as "
                "ILSVRC2012_val_00000001 and PredictionString such as 'n01751748 111 108 330 389'"
            )
        wnids[int(name[1])] = wnid[0]
    if sorted(wnids) != list(range(1, len(wnids) + 1)):
        raise InputError(f"imagenet: {file} does not list all images from number 1 on: download it again")
    return [wnids[number] for number in range(1, len(wnids) + 1)]


def _read_ground_truth(file: Path) -> list[str]:
    """The development kit's list: one ILSVRC2012_ID per line, which meta.mat beside it maps to a wnid."""
    wnid_of = _read_meta(file.with_name(_META))
    wnids = []
    for number, line in enumerate(_text(file).split(), 1):
        if not line.isascii() or not line.isdigit() or int(line) not in wnid_of:
            raise InputError(
                f"imagenet: {file} gives image {number} the class {line!r}, but {_META} has {min(wnid_of)} to "
                f"{max(wnid_of)}: unpack the development kit again"
            )
        wnids.append(wnid_of[int(line)])
    return wnids


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")  # skips the byte order mark that Windows adds
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"imagenet: {file} cannot be read ({error}): download or unpack it again") from error


def _read_meta(file: Path) -> dict[int, str]:
    """ILSVRC2012_ID -> wnid, for the classes with images, that is, without children."""
    from scipy.io import loadmat  # a slow import (0.3 s) that is rarely needed

    if not file.is_file():
        raise InputError(f"imagenet: {file} is missing; copy it from the development kit's folder with {_GROUND_TRUTH}")
    try:
        synsets = np.atleast_1d(loadmat(file, squeeze_me=True)["synsets"])
        leaves = synsets[synsets["num_children"].astype(np.int64) == 0]
        found = dict(zip(leaves["ILSVRC2012_ID"].astype(int).tolist(), leaves["WNID"].tolist(), strict=True))
    # scipy raises a dozen unrelated errors for a damaged file, and numpy others for an unexpected structure.
    except Exception as error:
        raise InputError(
            f"imagenet: {file} cannot be read ({type(error).__name__}: {error}): unpack the development kit again"
        ) from error
    if not found or not all(re.fullmatch(_WNID, wnid) for wnid in found.values()):
        raise InputError(f"imagenet: {file} has no WordNet ids: unpack the development kit again")
    return found
