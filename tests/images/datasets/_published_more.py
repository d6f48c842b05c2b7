"""Market-1501, VGGFace2 and Google Landmarks v2 in small, as they lie on a disk.

Pictures are of one colour: red is what the old model of a test sees, green what the new one sees.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image

from ray_backfill.images.datasets import gldv2
from ray_backfill.images.datasets.folders import Market1501Settings, VGGFace2Settings
from tests.images.datasets._pictures import encode, write_tree

Levels = tuple[int, int]


def flat(old: int, new: int | None = None) -> bytes:
    """A JPEG of one colour; blue, so that no picture is black."""
    return encode(Image.new("RGB", (8, 8), (old, old if new is None else new, 128)), "JPEG", quality=95)


def market(root: Path, images: Mapping[str, Levels | int]) -> Market1501Settings:
    """images: "query/0007_c1s1_000001_00.jpg" -> levels. All three folders are made, with a Thumbs.db each."""
    write_tree(root, {f"{folder}/Thumbs.db": b"x" for folder in ("bounding_box_train", "bounding_box_test", "query")})
    write_tree(root, {name: flat(*(level if isinstance(level, tuple) else (level,))) for name, level in images.items()})
    return Market1501Settings(str(root), image_size=8)


def small_market(root: Path) -> Market1501Settings:
    names = [f"bounding_box_train/{who:04d}_c{camera}s1_000451_03.jpg" for who in (2, 7) for camera in (1, 2, 3)]
    names += [f"bounding_box_test/{who}_c{camera}s1_000001_01.jpg" for who in ("0001", "0004") for camera in (1, 5)]
    names += ["bounding_box_test/-1_c1s1_000401_03.jpg", "bounding_box_test/0000_c6s1_000151_01.jpg"]
    names += [f"query/{who}_c{camera}s1_000001_00.jpg" for who in ("0001", "0004") for camera in (1, 2)]
    return market(root, {name: 10 * i for i, name in enumerate(names)})


META_HEADER = "Class_ID, Name, Sample_Num, Flag, Gender"


def meta_lines(people: Mapping[str, str], end: str = "\n") -> bytes:
    """``identity_meta.csv`` in the owners' own form: blanks after commas, quoted names, a comma at the end."""
    lines = [
        f'{person}, "Somebody_{person}",{300 + i},1, {gender},' for i, (person, gender) in enumerate(people.items())
    ]
    return end.join([META_HEADER, *lines, ""]).encode()


def vggface(root: Path, images: Mapping[str, Levels | int], people: Mapping[str, str]) -> VGGFace2Settings:
    """images: "test/n000001/0001_01.jpg" -> levels. people: "n000001" -> "f" or "m"."""
    write_tree(root, {name: flat(*(level if isinstance(level, tuple) else (level,))) for name, level in images.items()})
    write_tree(root, {"identity_meta.csv": meta_lines(people)})
    return VGGFace2Settings(str(root), image_size=8)


def small_vggface(root: Path) -> VGGFace2Settings:
    train, test = {"n000002": "f", "n000003": "m", "n000005": "m"}, {"n000001": "m", "n000009": "f"}
    images = {f"train/{person}/{i:04d}_01.jpg": 20 * i for person in train for i in range(1, 4)}
    images |= {f"test/{person}/{i:04d}_0{i % 3}.jpg": 20 * i for person in test for i in range(1, 7)}
    return vggface(root, images, train | test)


def place(folder: str, image: str) -> str:
    return f"{folder}/{image[0]}/{image[1]}/{image[2]}/{image}.jpg"


def gldv2_tables(
    root: Path,
    train: Mapping[int, Sequence[str]],
    index: Mapping[str, int],
    queries: Mapping[str, tuple[Sequence[str], str]],
    end: str = "\n",
) -> None:
    """The three tables. train: landmark -> ids. index: id -> landmark. queries: id -> (right ids, usage)."""
    tables = {
        "train_clean.csv": ["landmark_id,images", *(f"{name},{' '.join(ids)}" for name, ids in train.items())],
        "index_image_to_landmark.csv": ["id,landmark_id", *(f"{image},{name}" for image, name in index.items())],
        "retrieval_solution_v2.1.csv": [
            "id,images,Usage",
            *(f"{image},{' '.join(right) or 'None'},{usage}" for image, (right, usage) in queries.items()),
        ],
    }
    write_tree(root, {name: end.join([*lines, ""]).encode() for name, lines in tables.items()})


def hexadecimal(number: int) -> str:
    """An id of 16 digits whose first three differ between neighbours."""
    return f"{number % 4096:03x}{number:013x}"


TRAIN = {7: [hexadecimal(i) for i in (1, 2, 3)], 12: [hexadecimal(4)], 203_000: [hexadecimal(i) for i in (5, 6)]}
INDEX = {hexadecimal(100 + i): landmark for i, landmark in enumerate((9, 9, 4, 4, 4))}
ROWS = list(INDEX)
QUERIES = {
    hexadecimal(200): ([ROWS[0], ROWS[1]], "Private"),
    hexadecimal(201): ([], "Ignored"),
    hexadecimal(202): ([ROWS[4], ROWS[2]], "Public"),
    hexadecimal(203): ([ROWS[3]], "Private"),
    hexadecimal(204): ([ROWS[1], ROWS[0], ROWS[4]], "Public"),
}


def landmarks_v2(root: Path, levels: Mapping[str, Levels | int]) -> gldv2.Settings:
    """levels: "index/<id>" -> levels. The tables are written apart (``gldv2_tables``)."""
    write_tree(
        root,
        {
            place(*name.split("/")): flat(*(level if isinstance(level, tuple) else (level,)))
            for name, level in levels.items()
        },
    )
    return gldv2.Settings(str(root), image_size=8)


def small_gldv2(root: Path) -> gldv2.Settings:
    gldv2_tables(root, TRAIN, INDEX, QUERIES)
    ids = {"train": [image for images in TRAIN.values() for image in images], "index": ROWS, "test": list(QUERIES)}
    names = [f"{folder}/{image}" for folder, images in ids.items() for image in images]
    return landmarks_v2(root, {name: 10 * i for i, name in enumerate(names)})
