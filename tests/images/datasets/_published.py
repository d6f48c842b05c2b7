"""Small instances of the published data sets, in the exact form in which their owners distribute them."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from tests.images.datasets._pictures import encode, write_tree

# Of CIFAR-100: (coarse label, fine label) of the images of both files.
CIFAR_TRAIN = [(11, 19), (15, 29), (4, 0), (14, 99), (4, 0)]
CIFAR_TEST = [(10, 49), (4, 0), (14, 99), (4, 0)]


def cifar_planes(number: int) -> bytes:
    """Image ``number`` as on the disk: the red of each pixel is its row, green its column times 2, blue the number."""
    red = bytes(row for row in range(32) for _ in range(32))
    green = bytes(2 * column for _ in range(32) for column in range(32))
    return red + green + bytes([number]) * 1024


def cifar_binary(root: Path) -> Path:
    """``root/cifar-100-binary`` as the archive holds it. Images are numbered from 1, those of the test from 101."""
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    for name, labels, first in (("train.bin", CIFAR_TRAIN, 1), ("test.bin", CIFAR_TEST, 101)):
        records = [bytes([coarse, fine]) + cifar_planes(first + i) for i, (coarse, fine) in enumerate(labels)]
        (folder / name).write_bytes(b"".join(records))
    (folder / "fine_label_names.txt").write_text("apple\naquarium_fish\n")
    return folder


# Three classes of ImageNet, sorted, and the numbers that the development kit gives them: no order at all.
TENCH, GOLDFISH, TISSUE = "n01440764", "n01443537", "n15075141"
IMAGENET_IDS = {TENCH: 2, GOLDFISH: 3, TISSUE: 1}
# The classes of validation images 1 to 4, and their numbers.
IMAGENET_VAL = [TISSUE, GOLDFISH, GOLDFISH, TENCH]


def jpeg(colour: tuple[int, ...], mode: str = "RGB", **options: Any) -> bytes:
    return encode(Image.new(mode, (40, 30), colour), "JPEG", quality=95, **options)


def val_image(number: int) -> bytes:
    """The red of validation image ``number`` is 50 times its number."""
    return jpeg((50 * number, 20, 90))


def imagenet_train() -> dict[str, bytes]:
    """With what the true one holds, too: grey and CMYK images, and a PNG that is called JPEG."""
    return {
        f"{TENCH}/{TENCH}_10026.JPEG": jpeg((200, 60, 20)),
        f"{TENCH}/{TENCH}_10027.JPEG": jpeg((130,), "L"),
        f"{GOLDFISH}/{GOLDFISH}_9.JPEG": jpeg((0, 255, 255, 0), "CMYK"),
        f"{GOLDFISH}/{GOLDFISH}_10.JPEG": encode(Image.new("RGB", (40, 30), (10, 220, 30))),
        f"{TISSUE}/{TISSUE}_5.JPEG": jpeg((30, 30, 240)),
        f"{TISSUE}.tar": b"not unpacked",
        f"{TENCH}/.{TENCH}_1.JPEG": b"hidden",
    }


def imagenet_folders(root: Path) -> Path:
    """train/<wnid>/ and val/<wnid>/."""
    write_tree(root / "train", imagenet_train())
    val = {f"{wnid}/{_val_name(i)}.JPEG": val_image(i) for i, wnid in enumerate(IMAGENET_VAL, 1)}
    write_tree(root / "val", val)
    return root


def imagenet_flat(root: Path) -> Path:
    """train/<wnid>/, val/ without folders, and the development kit."""
    write_tree(root / "train", imagenet_train())
    write_tree(root / "val", {f"{_val_name(i)}.JPEG": val_image(i) for i in range(1, len(IMAGENET_VAL) + 1)})
    write_devkit(root / "ILSVRC2012_devkit_t12" / "data")
    return root


def imagenet_kaggle(root: Path) -> Path:
    """ILSVRC/Data/CLS-LOC/train/<wnid>/, val/ without folders, and a table of boxes, in no order."""
    images = root / "ILSVRC" / "Data" / "CLS-LOC"
    write_tree(images / "train", imagenet_train())
    write_tree(images / "val", {f"{_val_name(i)}.JPEG": val_image(i) for i in range(1, len(IMAGENET_VAL) + 1)})
    rows = [f"{_val_name(i)},{wnid} 111 108 330 389 {wnid} 1 2 3 4 " for i, wnid in enumerate(IMAGENET_VAL, 1)]
    (root / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows[::-1]]) + "\n")
    return root


def write_devkit(folder: Path, end: str = "\n") -> None:
    """meta.mat and the list of numbers; the former also has a class above the three, which has no images."""
    folder.mkdir(parents=True)
    lines = [f"{IMAGENET_IDS[wnid]}{end}" for wnid in IMAGENET_VAL]
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_bytes("".join(lines).encode())
    fields = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height"]
    above = (1001, "n00001740", "entity", "that which is perceived", 3, np.array([1.0, 2.0, 3.0]), 2)
    rows = [(number, wnid, "word, other word", "a gloss", 0, np.zeros(0), 0) for wnid, number in IMAGENET_IDS.items()]
    synsets = np.empty((len(rows) + 1, 1), [(field, object) for field in [*fields, "num_train_images"]])
    for i, row in enumerate([above, *rows]):
        synsets[i, 0] = (*row, 1300)
    savemat(folder / "meta.mat", {"synsets": synsets})


def _val_name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}"


def places_easy(root: Path) -> Path:
    """places365_standard as its archive holds it; the red of an image tells it."""
    classes = {"train": ["airfield", "apartment_building-outdoor", "zen_garden"], "val": ["airfield", "zen_garden"]}
    files = {
        f"{split}/{name}/{'Places365_val_' if split == 'val' else ''}{i:08d}.jpg": jpeg((40 * label + 20 * i, 20, 90))
        for split, names in classes.items()
        for label, name in enumerate(names)
        for i in (1, 2)
    }
    lists = {f"{split}.txt": "".join(f"{name}\n" for name in files).encode() for split in classes}
    write_tree(root / "places365_standard", {**files, **lists})
    return root
