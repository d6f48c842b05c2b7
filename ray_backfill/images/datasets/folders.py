"""Published data sets that are folders of image files, as their owners distribute them.

Each lists its folders without decoding anything; paths give splits and labels. Listing costs one pass over the tree.

Shapes: N images of a listing, or of a split; F folders of the listing.
"""

import csv
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.images import datasets
from ray_backfill.images.draws import shuffled
from ray_backfill.images.listing import Listing, class_folders, classes_below, list_folders, list_zips
from ray_backfill.images.source import FileSource, ImageSource, Items, digest_items


def _list(settings: datasets.PublishedSettings, folders: Sequence[str], top: str) -> Listing:
    """List these folders, below the root or below ``top`` in it, a folder that the archive may have around them."""
    inside = settings.folder / top
    root = inside if (inside / folders[0]).is_dir() else settings.folder
    datasets.require_folders(settings, root, folders)
    return list_folders(str(root), below=folders)


def _by_class(dataset: str, listing: Listing, top_of: dict[str, str]) -> tuple[list[str], dict[str, Items]]:
    """See ``class_folders``. Raises InputError also if train lacks a class, so labels are ranks of its classes."""
    names, splits = class_folders(listing, top_of, dataset)
    known = set(splits["train"].labels_N.tolist())
    for split, items in splits.items():
        unknown = sorted(set(items.labels_N.tolist()) - known)
        _refuse_unknown(dataset, top_of[split], [names[label] for label in unknown])
    return names, splits


def _refuse_unknown(dataset: str, what: str, unknown: list[str]) -> None:
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise InputError(
            f"{dataset}: {what} has the class {unknown[0]!r}{more}, which train lacks: unpack all of train, or remove "
            "the class from both"
        )


@dataclass(frozen=True)
class Places365Settings(datasets.PublishedSettings):
    """Location and image size."""


def open_places365(settings: Places365Settings) -> ImageSource:
    listing = _list(settings, ("train", "val"), "places365_standard")
    _, splits = _by_class("places365", listing, {"train": "train", "gallery": "val"})
    return FileSource("places365", settings, listing, splits)


@dataclass(frozen=True)
class TinyImageNetSettings(datasets.PublishedSettings):
    """Location and image size."""

    root: str
    """Folder with tiny_imagenet.zip, or with tiny_imagenet/ unpacked from it."""
    image_size: int = 64
    """Pixels per side; the files have 64."""
    queries: int = 0
    """Photographs of each class of the gallery that are queries instead; 0: gallery items query the others."""


def open_tiny_imagenet(settings: TinyImageNetSettings) -> ImageSource:
    names = "train", "gallery"
    archive, folder = settings.folder / "tiny_imagenet.zip", settings.folder / "tiny_imagenet"
    if settings.root and archive.is_file():
        listing = list_zips([archive])
    elif settings.root and folder.is_dir():
        listing = list_folders(str(folder), below=names)
    else:
        raise datasets.wrong_layout(settings, "there is no tiny_imagenet.zip")
    for split in names:
        if not any(classes_below(listing, split).values()):
            raise datasets.wrong_layout(settings, f"there is no folder {split} with class folders", listing.root)
    _, splits = _by_class("tiny_imagenet", listing, {split: split for split in names})
    if settings.queries:  # the first of each class; items of a class follow each other
        gallery = splits["gallery"]
        _, first, counts = np.unique(gallery.labels_N, return_index=True, return_counts=True)
        if not 0 < settings.queries < counts.min():
            raise InputError(
                f"--images.queries must be at least 0 and less than {counts.min()}, which a class has; got "
                f"{settings.queries}"
            )
        is_query_N = np.arange(len(gallery)) - np.repeat(first, counts) < settings.queries
        splits["gallery"] = gallery.take(np.flatnonzero(~is_query_N))
        splits["queries"] = gallery.take(np.flatnonzero(is_query_N))
    return FileSource("tiny_imagenet", settings, listing, splits)


@dataclass(frozen=True)
class Market1501Settings(datasets.PublishedSettings):
    """Location and image size."""


_MARKET_FOLDERS = {"train": "bounding_box_train", "gallery": "bounding_box_test", "queries": "query"}
# A name such as 0002_c1s1_000451_03.jpg: identity, camera, sequence and frame.
_MARKET_NAME = r"^(?P<identity>-1|[0-9]{4})_c(?P<camera>[1-6])s[0-9]+_[0-9]+_[0-9]+\."
# Identity of junk, which every query ignores, and of distractors, which are never right.
_JUNK, _DISTRACTOR = -1, 0


def open_market1501(settings: Market1501Settings) -> ImageSource:
    """Labels are identities. Junk is left out of the gallery, which gives the same ranking (rank merge, section 5.1).

    Gallery images with a query's identity and camera are ignored.
    """
    listing = _list(settings, tuple(_MARKET_FOLDERS.values()), "Market-1501-v15.09.15")
    named = pc.extract_regex(listing.names, pattern=_MARKET_NAME)
    if named.null_count:
        where = listing.where(int(np.argmax(named.is_null().to_numpy(zero_copy_only=False))))
        raise InputError(f"{where} is not named like an image of Market-1501 (0002_c1s1_000451_03.jpg): remove it")
    identity_N, camera_N = (pc.cast(named.field(name), pa.int64()).to_numpy() for name in ("identity", "camera"))
    positions = {}
    for split, folder in _MARKET_FOLDERS.items():
        if folder not in listing.folders:
            raise InputError(f"market1501: no images in {folder}: unpack the archive again")
        of_split_N = listing.folder_N == listing.folders.index(folder)
        if split == "gallery":
            of_split_N &= identity_N != _JUNK
        elif (nobody := np.flatnonzero(of_split_N & (identity_N <= _DISTRACTOR))).size:
            where = listing.where(int(nobody[0]))
            raise InputError(f"{where} is junk or a distractor: only the gallery may have those")
        positions[split] = np.flatnonzero(of_split_N)
    splits = {
        split: Items(np.arange(len(rows)), identity_N[rows], cameras_N=camera_N[rows])
        for split, rows in positions.items()
    }
    return FileSource("market1501", settings, listing, splits, positions)


@dataclass(frozen=True)
class VGGFace2Settings(datasets.PublishedSettings):
    """Location, image size and gallery sample."""

    per_class: int = 50
    """Gallery images per person of the test set."""
    seed: int = 0
    """Random seed for the sample of gallery images."""


_GENDERS = ("f", "m")  # subgroup 0, subgroup 1


def open_vggface2(settings: VGGFace2Settings) -> ImageSource:
    """The gallery is a fixed random sample of 50 images of each person of the test set, and queries itself.

    Source: FastFill, section 5.2 and appendix A.1.
    Deviates: gender is taken from identity_meta.csv, which has it for everyone. FastFill used attributes known for
    5,300 people, and in its gender experiment evaluated on 250 women and 250 men of the training set.
    """
    datasets.require_counts(settings, "per_class")
    listing = _list(settings, ("train", "test"), "data")
    tables = [path for folder in ("", "meta") if (path := settings.folder / folder / "identity_meta.csv").is_file()]
    if not tables:
        raise datasets.wrong_layout(settings, "there is no file identity_meta.csv")
    labels_F, groups_F = _people(listing, tables[0])
    # Files are sorted by folder, so each person has consecutive positions.
    starts = np.searchsorted(listing.folder_N, np.arange(len(listing.folders) + 1))
    rows_of: dict[str, list[NDArray[np.int64]]] = {"train": [], "gallery": []}
    for folder, first, last in zip(listing.folders, starts[:-1], starts[1:], strict=True):
        top, _, person = folder.partition("/")
        if top == "train":
            rows_of["train"].append(np.arange(first, last))
        else:
            drawn = shuffled(settings.seed, person, last - first)[: settings.per_class]
            rows_of["gallery"].append(first + np.sort(drawn))
    for top, parts in zip(("train", "test"), rows_of.values(), strict=True):
        if not parts:
            raise datasets.wrong_layout(settings, f"there are no images in {top}")
    positions = {split: np.concatenate(parts) for split, parts in rows_of.items()}
    folder_of = {split: listing.folder_N[rows] for split, rows in positions.items()}
    splits = {split: Items(np.arange(len(at)), labels_F[at], groups_F[at]) for split, at in folder_of.items()}
    return FileSource("vggface2", settings, listing, splits, positions, facts={"items": digest_items(splits)})


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


@dataclass(frozen=True)
class ImageNetSettings(datasets.PublishedSettings):
    """Location and image size."""


_SOLUTION = "LOC_val_solution.csv"
_GROUND_TRUTH, _META = "ILSVRC2012_validation_ground_truth.txt", "meta.mat"
# Common locations of the development kit.
_DEVKITS = ("", "data", "ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "devkit/data", "devkit")
_WNID = r"n\d{8}"
_VAL_NAME = r"^ILSVRC2012_val_(?P<number>\d{8})\.(?:JPEG|jpeg|JPG|jpg)$"


def open_imagenet(settings: ImageNetSettings) -> ImageSource:
    """Labels are ranks of the sorted WordNet ids (wnids) of train/, in every layout.

    As distributed, the validation images have no class folders. Their classes are listed in the development kit, by the
    numbers that its meta.mat assigns to wnids, which are NOT the ranks of the wnids; Kaggle has a table of wnids.
    """
    listing = _list(settings, ("train", "val"), "ILSVRC/Data/CLS-LOC")
    for split in ("train", "val"):
        for number, name in classes_below(listing, split).items():
            if name and not re.fullmatch(_WNID, name):
                raise InputError(
                    f"imagenet: {listing.root}/{listing.folders[number]} is not named by a WordNet id such as "
                    "n01440764: use the original folders, or the data set image_folder for your own images"
                )
    if set(classes_below(listing, "val").values()) != {""}:
        _, splits = _by_class("imagenet", listing, {"gallery": "val", "train": "train"})
        return FileSource("imagenet", settings, listing, splits)
    names, splits = _by_class("imagenet", listing, {"train": "train"})
    gallery = splits["gallery"] = _flat_items(settings, listing, names)
    # Here the file names do not determine the classes.
    facts = {"val_labels": hashlib.sha256(gallery.labels_N.astype("<i8").tobytes()).hexdigest()}
    return FileSource("imagenet", settings, listing, splits, facts=facts)


def _flat_items(settings: ImageNetSettings, listing: Listing, classes: list[str]) -> Items:
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
    label_of = {wnid: label for label, wnid in enumerate(classes)}
    _refuse_unknown("imagenet", str(file), sorted(set(wnids_N) - label_of.keys()))
    return Items(ids_N, np.array([label_of[wnid] for wnid in wnids_N], np.int64)[numbers_N - 1])


def _ground_truth(settings: ImageNetSettings) -> tuple[Path, list[str]]:
    """The ground truth file of the validation images, and their wnids, from image 1 on."""
    root = settings.folder
    if (root / _SOLUTION).is_file():  # does not need meta.mat
        return root / _SOLUTION, _read_solution(root / _SOLUTION)
    for folder in _DEVKITS:
        file = root / folder / _GROUND_TRUTH
        if file.is_file():
            return file, _read_ground_truth(file)
    problem = f"val has no class folders, and there is neither {_GROUND_TRUTH} nor {_SOLUTION} with its classes"
    raise datasets.wrong_layout(settings, problem, root)


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
        wnid_of = dict(zip(leaves["ILSVRC2012_ID"].astype(int).tolist(), leaves["WNID"].tolist(), strict=True))
    # scipy raises a dozen unrelated errors for a damaged file, and numpy others for an unexpected structure.
    except Exception as error:
        raise InputError(
            f"imagenet: {file} cannot be read ({type(error).__name__}: {error}): unpack the development kit again"
        ) from error
    if not wnid_of or not all(re.fullmatch(_WNID, wnid) for wnid in wnid_of.values()):
        raise InputError(f"imagenet: {file} has no WordNet ids: unpack the development kit again")
    return wnid_of


DATASETS = (
    # Zhou et al., Places: a 10 million image database for scene recognition, PAMI 2017: photographs of kinds of places
    # in the official "easy directory structure", 256 x 256 pixels. The gallery, the validation images, queries itself.
    # Labels are ranks of the sorted classes, as in the official list.
    datasets.DataSet(
        "places365",
        Places365Settings,
        open_places365,
        datasets.Published(train=1_803_460, classes=365, gallery=36_500),
        "http://places2.csail.mit.edu/download.html, places365standard_easyformat.tar (24 GB; no account, but you must "
        "agree to its terms: research and education only)",
        "places365_standard/train/<class>/*.jpg and places365_standard/val/<class>/*.jpg",
    ),
    # A part of Tiny ImageNet, which was made of ImageNet: 64 x 64 pixels, of each class 150 photographs to train on and
    # 50 others as the gallery, which queries itself unless some are set aside. Labels are ranks of the sorted
    # classes.
    datasets.DataSet(
        "tiny_imagenet",
        TinyImageNetSettings,
        open_tiny_imagenet,
        datasets.Published(train=30_000, classes=200, gallery=10_000),
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip (for research that is not commercial)",
        "tiny_imagenet.zip, or tiny_imagenet/ unpacked from it, with train/<class>/*.jpg and gallery/<class>/*.jpg: "
        "any of its labelled photographs in these folders",
    ),
    # 1,501 people seen by six cameras, 64 x 128 pixels.
    datasets.DataSet(
        "market1501",
        Market1501Settings,
        open_market1501,
        datasets.Published(train=12_936, classes=751, gallery=15_913, queries=3_368),
        "https://zheng-lab.cecs.anu.edu.au/Project/project_reid.html (for research; cite its paper)",
        "bounding_box_train/, bounding_box_test/ and query/, each with files such as 0002_c1s1_000451_03.jpg, "
        "perhaps below Market-1501-v15.09.15/",
    ),
    # Faces of 9,131 people, 137 x 180 pixels on average, in a folder per person; labels are their numbers.
    datasets.DataSet(
        "vggface2",
        VGGFace2Settings,
        open_vggface2,
        datasets.Published(train=3_141_890, classes=8_631, gallery=25_000),
        "https://www.robots.ox.ac.uk/~vgg/data/vgg_face2/ (for research; ask there whether and how it is handed out)",
        "train/n000002/0001_01.jpg ..., test/n000001/0001_01.jpg ... (or both below data/), and identity_meta.csv "
        "(or meta/identity_meta.csv)",
    ),
    # Russakovsky et al., ImageNet Large Scale Visual Recognition Challenge, IJCV 2015: photographs of objects, as
    # distributed by its owners or Kaggle. The gallery, the validation images, queries itself. The images belong to
    # their photographers. Decoding was measured with photographs of 500 x 375 pixels (90 kB): 344.
    datasets.DataSet(
        "imagenet",
        ImageNetSettings,
        open_imagenet,
        datasets.Published(train=1_281_167, classes=1000, gallery=50_000),
        "https://image-net.org/download-images.php (ILSVRC2012; an account is needed, for non-commercial research), or "
        "kaggle.com/c/imagenet-object-localization-challenge (an account is needed)",
        "train/<wnid>/*.JPEG and val/<wnid>/*.JPEG; or val/ILSVRC2012_val_*.JPEG with "
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt and meta.mat, or with LOC_val_solution.csv; "
        "Kaggle's ILSVRC/Data/CLS-LOC/ above train and val may stay",
    ),
)
