import shutil
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets.gldv2 import Settings, open_images
from tests.images.datasets._pictures import write_tree
from tests.images.datasets._published_more import (
    INDEX,
    QUERIES,
    ROWS,
    TRAIN,
    gldv2_tables,
    hexadecimal,
    place,
    small_gldv2,
)

LATER = 1_000_000


def rows_of(settings: Settings) -> list[object]:
    source = open_images(settings)
    positives = source.items("queries").positives_N
    assert positives is not None
    return [
        source.items("train").labels_N.tolist(),
        source.names("train", np.arange(len(source.items("train")))),
        source.items("gallery").labels_N.tolist(),
        source.names("gallery", np.arange(len(source.items("gallery")))),
        source.names("queries", np.arange(len(source.items("queries")))),
        positives.to_pylist(),
    ]


def test_tables_become_splits(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    source = open_images(settings)
    assert source.splits == ("train", "gallery", "queries")
    assert source.items("queries").labels_N.tolist() == [-1] * 4
    labels, train, landmarks, gallery, queries, positives = rows_of(settings)
    assert labels == [7, 7, 7, 12, 203_000, 203_000]  # a landmark of one image is a class, too
    assert train == [place("train", image) for images in TRAIN.values() for image in images]
    assert landmarks == [LATER + 9, LATER + 9, LATER + 4, LATER + 4, LATER + 4]  # another numbering than train
    assert gallery == [place("index", image) for image in INDEX]
    assert queries == [place("test", hexadecimal(i)) for i in (200, 202, 203, 204)]  # without the ignored one
    assert positives == [[0, 1], [4, 2], [3], [1, 0, 4]]


@pytest.mark.parametrize(("queries", "positives"), [("private", [[0, 1], [3]]), ("public", [[4, 2], [1, 0, 4]])])
def test_private_and_public_queries(tmp_path: Path, queries: str, positives: list[list[int]]) -> None:
    assert rows_of(replace(small_gldv2(tmp_path), queries=queries))[-1] == positives


def test_pixels_are_those_of_the_named_file(tmp_path: Path) -> None:
    source = open_images(small_gldv2(tmp_path))
    first = 0
    for split, count in (("train", 6), ("gallery", 5)):
        pixels = source.read(split, np.arange(count)).pixels_BSSC
        np.testing.assert_allclose(pixels[:, 4, 4, 0], 10.0 * np.arange(first, first + count), atol=3)
        first += count
    reds = source.read("queries", np.array([3, 1])).pixels_BSSC[:, 4, 4, 0]
    np.testing.assert_allclose(reds, [10.0 * (first + 4), 10.0 * (first + 2)], atol=3)


def test_windows_line_ends_and_other_places_change_nothing(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    before, fingerprint = rows_of(settings), open_images(settings).fingerprint()
    gldv2_tables(tmp_path, TRAIN, INDEX, QUERIES, end="\r\n")
    assert rows_of(settings) == before
    (tmp_path / "metadata").mkdir()
    (tmp_path / "train_clean.csv").rename(tmp_path / "metadata" / "train_clean.csv")
    (tmp_path / "index_image_to_landmark.csv").rename(tmp_path / "index" / "index_image_to_landmark.csv")
    assert rows_of(settings) == before
    assert open_images(settings).fingerprint() == fingerprint


def test_the_whole_train_set(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    before = rows_of(settings)
    lines = [f'{image},"http://x/y,z.jpg",{name}' for name, images in TRAIN.items() for image in images]
    (tmp_path / "train.csv").write_text("\n".join(["id,url,landmark_id", *lines]))
    assert rows_of(settings) == before
    (tmp_path / "train_clean.csv").unlink()
    assert rows_of(settings) == before


def test_an_index_without_landmarks_or_with_some(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    (tmp_path / "index.csv").write_text("\n".join(["id", *reversed(ROWS)]))
    assert open_images(settings).items("gallery").labels_N.tolist() == [LATER + i for i in (4, 4, 4, 9, 9)]
    assert rows_of(settings)[-1] == [[4, 3], [0, 2], [1], [3, 4, 0]]
    (tmp_path / "index_image_to_landmark.csv").write_text(f"id,landmark_id\n{ROWS[3]},4\n")
    assert open_images(settings).items("gallery").labels_N.tolist() == [-1, LATER + 4, -1, -1, -1]
    (tmp_path / "index_image_to_landmark.csv").write_text(f"id,landmark_id\n{ROWS[3]},4\n{ROWS[3]},5\n")
    with pytest.raises(InputError, match=f"{ROWS[3]} occurs twice"):
        open_images(settings)
    (tmp_path / "index_image_to_landmark.csv").unlink()
    assert open_images(settings).items("gallery").labels_N.tolist() == [-1] * 5


def test_the_fingerprint_follows_labels_and_answers(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    seen = {str(open_images(settings).fingerprint())}
    other = QUERIES | {hexadecimal(203): ([ROWS[4]], "Private")}
    for tables in ((TRAIN, INDEX, other), (TRAIN, INDEX | {ROWS[0]: 8}, QUERIES), ({**TRAIN, 8: []}, INDEX, QUERIES)):
        gldv2_tables(tmp_path, *tables)
        seen.add(str(open_images(settings).fingerprint()))
    assert len(seen) == 3  # a landmark without images changes nothing
    whose = {hexadecimal(200): ([ROWS[0]], "Private"), hexadecimal(203): ([ROWS[1], ROWS[3]], "Private")}
    gldv2_tables(tmp_path, TRAIN, INDEX, QUERIES | whose)
    assert str(open_images(settings).fingerprint()) not in seen  # the same answers, one of them to another query


def test_queries_without_answers_and_quoted_fields(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    lines = [f"{hexadecimal(1)},,Public", f'"{hexadecimal(2)}","{ROWS[2]}  {ROWS[0]} ","Private"']
    lines += [f"{hexadecimal(3)},None,Public"]
    (tmp_path / "retrieval_solution_v2.1.csv").write_text("\n".join(["\ufeffid,images,Usage", *lines]), "utf-8")
    assert rows_of(settings)[-1] == [[], [2, 0], []]


def test_rows_are_no_python_objects(tmp_path: Path) -> None:
    """5 million of them must not be: an id as a string would take 65 bytes, and 8 in a list."""
    settings, count = small_gldv2(tmp_path), 40_000
    lines = [f"{name},{' '.join(hexadecimal(10 * name + i) for i in range(10))}" for name in range(count // 10)]
    (tmp_path / "train_clean.csv").write_text("\n".join(["landmark_id,images", *lines]))
    del lines
    tracemalloc.start()
    try:
        source = open_images(settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(source.items("train")) == count
    assert peak / count < 40


@pytest.mark.parametrize(
    ("table", "text", "complaint"),
    [
        ("train_clean.csv", f"landmark_id,images\n1,{hexadecimal(1)}\n2,{hexadecimal(3)} {hexadecimal(1)}",
         f"{hexadecimal(1)} occurs twice; keep one line and one landmark per image"),
        ("train_clean.csv", "landmark_id,images\n1,0123", "'0123' is not an id of 16 hexadecimal digits"),
        ("train_clean.csv", "landmark,images\n1,0123", "must be a table with the columns landmark_id, images"),
        ("train_clean.csv", "landmark_id,images\nx,0123", "must be a table with the columns landmark_id, images"),
        ("train_clean.csv", "landmark_id,images\n,0123", "column 'landmark_id': a value is missing"),
        ("index_image_to_landmark.csv", f"id,landmark_id\n{ROWS[0]},4\n{ROWS[0]},4", f"{ROWS[0]} occurs twice"),
        ("index_image_to_landmark.csv", f"id,landmark_id\n{ROWS[0]},4",
         f"the image {ROWS[1]}, an answer to {hexadecimal(200)}, is not in the index"),
        ("retrieval_solution_v2.1.csv", f"id,images,Usage\n{hexadecimal(9)},None,Secret", "not 'Secret'"),
        ("retrieval_solution_v2.1.csv", f"id,images,Usage\n{hexadecimal(9)},None,Ignored",
         "no query for queries = 'all'"),
        ("retrieval_solution_v2.1.csv", f"id,images,Usage\n{hexadecimal(9)},None,Public\n{hexadecimal(9)},None,Public",
         f"{hexadecimal(9)} occurs twice"),
    ],
)  # fmt: skip
def test_tables_that_do_not_fit(tmp_path: Path, table: str, text: str, complaint: str) -> None:
    settings = small_gldv2(tmp_path)
    (tmp_path / table).write_text(text)
    with pytest.raises(InputError, match=complaint):
        open_images(settings)


def test_a_folder_that_is_not_the_data_set(tmp_path: Path) -> None:
    settings = small_gldv2(tmp_path)
    with pytest.raises(InputError, match="unknown queries 'secret'; known: all, private, public"):
        open_images(replace(settings, queries="secret"))
    for name in ("retrieval_solution_v2.1.csv", "index_image_to_landmark.csv", "train_clean.csv"):
        (tmp_path / name).unlink()
        with pytest.raises(InputError, match=rf"there is no file {name}.* Where to get it: https://github\.com"):
            open_images(settings)
        small_gldv2(tmp_path)
    shutil.rmtree(tmp_path / "test")
    write_tree(tmp_path, {"other/1.jpg": b""})
    with pytest.raises(InputError, match="there is no folder test"):
        open_images(settings)
