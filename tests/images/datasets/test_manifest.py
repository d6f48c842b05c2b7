import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.core.stores import Bucket
from ray_backfill.images.datasets import manifest
from ray_backfill.images.datasets.manifest import Settings, open_images
from ray_backfill.images.source import ImageSource
from tests.images.datasets._pictures import names, noisy_jpeg, plain, write_tree

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def write_csv(path: Path, *lines: str, end: str = "\n", mark: bytes = b"") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mark + "".join(line + end for line in lines).encode())
    return path


def opened(path: Path, **settings: Any) -> ImageSource:
    return open_images(Settings(str(path), **settings))


def rows(source: ImageSource, split: str) -> list[tuple[str, int, int]]:
    """Name, id and label of each row of a split."""
    items = source.items(split)
    return list(zip(names(source, split), items.ids_N.tolist(), items.labels_N.tolist(), strict=True))


SPLIT_LINES = ("path,label,split", "t/1.png,dog,train", "2.png,cat,train", "3.png,dog,gallery", "4.png,cat,queries")
SPLIT_ROWS = {"train": [("t/1.png", 0, 1), ("2.png", 1, 0)], "gallery": [("3.png", 2, 1)], "queries": [("4.png", 3, 0)]}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_marks_of_windows(tmp_path: Path, end: str, mark: bytes) -> None:
    source = opened(write_csv(tmp_path / "m.csv", *SPLIT_LINES, end=end, mark=mark))
    assert {split: rows(source, split) for split in source.splits} == SPLIT_ROWS


def test_parquet_says_the_same_as_csv(tmp_path: Path) -> None:
    lines = [line.split(",") for line in SPLIT_LINES[1:]]
    table = pa.table(dict(zip(("path", "label", "split"), map(list, zip(*lines, strict=True)), strict=True)))
    pq.write_table(table, tmp_path / "m.parquet")
    (tmp_path / "parts").mkdir()
    pq.write_table(table.slice(2), tmp_path / "parts/part-1.parquet")
    pq.write_table(table.slice(0, 2), tmp_path / "parts/part-0.parquet")
    sources = [opened(tmp_path / name) for name in ("m.parquet", "parts")]
    sources.append(opened(write_csv(tmp_path / "m.csv", *SPLIT_LINES)))
    for source in sources:
        assert {split: rows(source, split) for split in source.splits} == SPLIT_ROWS
    assert len({str(source.fingerprint()) for source in sources}) == 1


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.int32(), pa.float64(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())]
)
def test_columns_of_many_types(tmp_path: Path, kind: pa.DataType) -> None:
    """pandas makes floats of integers when any is missing, and dictionaries of categories."""
    label = pa.array([10, 9, None, 9], pa.int64()).cast(pa.string() if pa.types.is_dictionary(kind) else kind)
    table = pa.table(
        {
            "label": label.dictionary_encode() if pa.types.is_dictionary(kind) else label,
            "path": pa.array(list("abcd"), pa.large_string()),
            "split": pa.array(["train", "train", "test", "index"]).dictionary_encode(),
            "id": pa.array([5, 6, 7, -8], pa.int32()),
            "more": pa.array([None] * 4, pa.null()),
        }
    )
    pq.write_table(table, tmp_path / "m.parquet")
    source = opened(tmp_path / "m.parquet")
    assert rows(source, "train") == [("a", 5, 1), ("b", 6, 0)]
    assert rows(source, "gallery") == [("c", 7, -1), ("d", -8, 0)]


@pytest.mark.parametrize(
    ("last", "numbers"), [("-1", [1, 0, -1]), ("007", [2, 1, 0]), ("x", [0, 1, 2])]
)  # with 10 and 9, as integers; as text only where one of them is no integer
def test_labels_that_are_integers_sort_as_integers(tmp_path: Path, last: str, numbers: list[int]) -> None:
    lines = [f"{i}.png,{label},gallery" for i, label in enumerate(["10", "9", last])]
    lines += [f"{i}.png,{label},train" for i, label in enumerate(["10", "9"])]
    source = opened(write_csv(tmp_path / "m.csv", "path,label,split", *lines))
    assert [label for *_, label in rows(source, "gallery")] == numbers


def test_groups_and_cameras(tmp_path: Path) -> None:
    header = "path,label,split,group,camera"
    lines = ["1,a,train,,", "2,a,gallery,man,6", "3,a,gallery,woman,2", "4,a,query,woman,6"]
    source = opened(write_csv(tmp_path / "m.csv", header, *lines))
    found = [source.items(split) for split in ("train", "gallery", "queries")]
    assert [array.tolist() for array in (items.groups_N for items in found) if array is not None] == [[-1], [0, 1], [1]]
    assert [array.tolist() for array in (items.cameras_N for items in found) if array is not None] == [
        [-1],
        [6, 2],
        [6],
    ]
    with pytest.raises(InputError, match=r"row 2 of .* \('2'\) is in the gallery or queries, but has no camera"):
        opened(write_csv(tmp_path / "m.csv", header, "1,a,train,,", "2,a,gallery,man,", "4,a,query,woman,6"))


def test_ids_of_the_user_go_with_their_images(tmp_path: Path) -> None:
    """Ids in no order, larger than the number of rows: each id keeps its own pixels."""
    write_tree(tmp_path, {f"{i}.png": plain((10 * i, 0, 0)) for i in range(6)})
    lines = [f"{10**12 - i},{i}.png,c,{'train' if i % 2 else 'val'}" for i in range(6)]
    source = opened(write_csv(tmp_path / "m.csv", "id,path,label,split", *lines), image_size=3)
    for split in source.splits:
        ids_N = source.items(split).ids_N
        pixels = source.read(split, np.arange(len(ids_N)))
        assert not pixels.broken
        assert pixels.pixels_BSSC[:, 0, 0, 0].tolist() == (10 * (10**12 - ids_N)).tolist()
    assert source.names("gallery", np.array([2, 0])) == ["4.png", "0.png"]


def test_without_splits_each_class_is_divided_as_in_a_folder_tree(tmp_path: Path) -> None:
    lines = [f"{name}/{i},{name}" for i in range(10) for name in ("dog", "cat")] + ["owl/0,owl"]
    path = write_csv(tmp_path / "m.csv", "path,label", *lines)
    source = opened(path, train_fraction=0.7)
    assert np.bincount(source.items("train").labels_N).tolist() == [7, 7, 1]
    assert np.bincount(source.items("gallery").labels_N, minlength=3).tolist() == [3, 3, 0]
    assert sorted(id for split in source.splits for _, id, _ in rows(source, split)) == list(range(21))
    assert rows(opened(path, train_fraction=0.7), "train") == rows(source, "train")
    assert rows(opened(path, train_fraction=0.7, seed=1), "train") != rows(source, "train")
    # The same images as a tree, which lists them by name: the same images train.
    write_tree(tmp_path / "tree", {f"{line.split(',')[0]}.png": RED for line in lines})
    tree = manifest_of_tree(tmp_path / "tree")
    assert {name for name, *_ in rows(source, "train")} == tree


def manifest_of_tree(root: Path) -> set[str]:
    from ray_backfill.images.datasets import image_folder

    source = image_folder.open_images(image_folder.Settings(str(root), train_fraction=0.7))
    return {name.removesuffix(".png") for name in names(source, "train")}


def test_paths_with_spaces_commas_quotes_and_uris(tmp_path: Path) -> None:
    wanted = ["a b.png", "c,d.png", 'e "f".png', "é/漢.png"]
    write_tree(tmp_path / "pictures", dict.fromkeys(wanted, RED))
    absolute = str(write_tree(tmp_path / "else where", {"1.png": BLUE}) / "1.png")
    wanted += [absolute, Path(absolute).as_uri()]
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["label", "path", "split"])
    writer.writerows(["x", name, split] for name in wanted for split in ("train", "gallery"))
    path = write_csv(tmp_path / "m.csv", text.getvalue())
    source = opened(path, images=str(tmp_path / "pictures"))
    assert names(source, "train") == wanted
    pixels = source.read("gallery", np.arange(6))
    assert pixels.broken == {}
    assert pixels.pixels_BSSC[:, 0, 0, 0].tolist() == [255] * 4 + [0] * 2


def test_relative_paths_start_at_the_manifest_or_at_images(tmp_path: Path) -> None:
    write_tree(tmp_path, {"here/1.png": RED, "there/1.png": BLUE})
    path = write_csv(tmp_path / "here/m.csv", "path,label", "1.png,a", "2.png,a")
    (tmp_path / "here/2.png").write_bytes(RED)
    (tmp_path / "there/2.png").write_bytes(BLUE)
    for images, colour in (("", [255, 0, 0]), (str(tmp_path / "there"), [0, 0, 255])):
        source = opened(path, images=images)
        assert source.read("train", np.array([0])).pixels_BSSC[0, 0, 0].tolist() == colour
        assert source.read("train", np.array([0])).broken == {}
    with pytest.raises(InputError, match="no folder of images at 'nowhere'"):
        opened(path, images="nowhere")


def test_the_same_images_in_another_place_are_the_same_images(tmp_path: Path) -> None:
    write_tree(tmp_path / "images", {"1.png": RED, "2.png": BLUE})
    path = write_csv(tmp_path / "m.csv", "path,label", "1.png,a", "2.png,a")
    seen = opened(path, images=str(tmp_path / "images")).fingerprint()
    (tmp_path / "images").rename(tmp_path / "moved")
    assert opened(path, images=str(tmp_path / "moved")).fingerprint() == seen


def test_images_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tree(tmp_path / "bucket", {"deep/1.png": RED, "deep/2.png": BLUE})
    monkeypatch.setattr(Bucket, "read", lambda of, key: ((tmp_path / of.name / key).read_bytes(), None))
    path = write_csv(
        tmp_path / "m.csv", "path,label,split", "1.png,a,train", "s3://bucket/deep/2.png,a,val", "9.png,a,val"
    )
    source = opened(path, images="s3://bucket/deep")
    assert source.read("train", np.array([0])).pixels_BSSC[0, 0, 0].tolist() == [255, 0, 0]
    pixels = source.read("gallery", np.array([0, 1]))
    assert pixels.pixels_BSSC[:, 0, 0].tolist() == [[0, 0, 255], [0, 0, 0]]
    assert pixels.broken[1].startswith("s3://bucket/deep/9.png: ")


def test_missing_and_damaged_files_are_reported_when_read(tmp_path: Path) -> None:
    write_tree(tmp_path, {"1.png": RED, "cut.jpg": noisy_jpeg()[:900]})
    path = write_csv(tmp_path / "m.csv", "path,label,split", "1.png,a,train", "gone.png,a,val", "cut.jpg,a,val")
    pixels = opened(path).read("gallery", np.array([0, 1]))
    assert pixels.broken[0].startswith(f"{tmp_path}/gone.png: ")
    assert "No such file" in pixels.broken[0]
    assert "truncated" in pixels.broken[1]


def test_the_fingerprint_follows_rows_and_images(tmp_path: Path) -> None:
    write_tree(tmp_path, {"1.png": RED, "2.png": RED})
    lines = ["path,label,split,group,camera,id", "1.png,a,train,1,1,1", "2.png,a,val,1,1,2"]
    seen = [str(opened(write_csv(tmp_path / "m.csv", *lines)).fingerprint())]
    assert str(opened(write_csv(tmp_path / "other.csv", *lines)).fingerprint()) == seen[0]
    for wrong in (
        "2.png,b,val,1,1,2",
        "2.png,a,query,1,1,2",
        "2.png,a,val,2,1,2",
        "2.png,a,val,1,2,2",
        "2.png,a,val,1,1,3",
    ):
        changed = [*lines[:2], wrong] if "query" not in wrong else [*lines, wrong.replace(",2", ",3")]
        seen.append(str(opened(write_csv(tmp_path / "m.csv", *changed)).fingerprint()))
    write_tree(tmp_path, {"2.png": RED + b"longer"})
    seen.append(str(opened(write_csv(tmp_path / "m.csv", *lines)).fingerprint()))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["path,class", "1,a"], r"no column 'label'; it has: 'path', 'class' \(a manifest needs path and label"),
        (["path;label", "1;a"], r"no column 'path'; it has: 'path;label'.*separated by commas"),
        (["path,label,path", "1,a,2"], "two columns 'path'"),
        (["path,label"], "has no rows: list at least one image"),
        ([], "no column 'path'; it has: none"),
        (["path,label", "1,a", "a,b.jpg,cat"], "a,b.jpg,cat; a path with a comma needs quotes around it"),
        (["path,label,id", "1,a,3", "2,a,1", "3,a,4", "4,a,3", "5,a,1"], r"id 3 occurs in rows 1 and 4 of "),
        (["path,label,id", "1,a,3", "2,a,"], "row 2 of .* has no id: give every row an id, or none"),
        (["path,label,id", "1,a,3", "2,a,x7"], "column id.*x7"),
        (["path,label,split", "1,a,train", "2,a,dev"], r"row 2 of .* \('2'\) is in an unknown split 'dev'; known:"),
        (["path,label,split", "1,a,train", "2,a,"], "unknown split ''"),
        (["path,label,split", "1,a,train", "2,a,query"], "has no row with 'gallery'"),
        (["path,label,split", "1,a,val", "2,a,query"], "has no row with 'train'"),
        (["path,label", "1,a", "2,"], r"row 2 of .* \('2'\) has no label"),
        (["path,label", "1,a", "2, "], "row 2 of .* has no label"),
        (["path,label,split", "1,a,val", "2,,train"], "row 2 of .* is in train or queries, but has no label"),
        (
            ["path,label,split", "1,a,val", "2,a,train", "3,-1,query"],
            "row 3 of .* is in train or queries, but has no label",
        ),
        (["path,label", "1,a", "2,b"], "no class of .* has two images"),
        (["path,label", "1,a", "3,a", ",b"], "row 3 of .* has no path"),
        (["path,label", "1,a", "2,a", "1,b"], r"row 3 of .* \('1'\) repeats row 1"),
        (["path,label,split", "1,a,train", "1,a,val", "1,b,train"], "row 3 of .* repeats row 1"),
        (["path,label", "1,a", "http://x/2,a"], "http://x is neither on a disk nor in object storage"),
    ],
)
def test_wrong_manifests(tmp_path: Path, lines: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        opened(write_csv(tmp_path / "m.csv", *lines), train_fraction=0.5)
    assert "\n" not in str(caught.value)


def test_the_same_path_in_two_splits_is_no_mistake(tmp_path: Path) -> None:
    source = opened(write_csv(tmp_path / "m.csv", "path,label,split", "1,a,train", "1,a,val", "1,a,query"))
    assert [len(source.items(split)) for split in source.splits] == [1, 1, 1]


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_bytes(b"path,label\n\xe9.png,a\n")
    with pytest.raises(InputError, match="save it as UTF-8"):
        opened(tmp_path / "m.csv")
    (tmp_path / "m.csv").write_bytes("path,label\n1,a\n".encode("utf-16"))
    with pytest.raises(InputError, match="save it as UTF-8"):
        opened(tmp_path / "m.csv")


@pytest.mark.parametrize("root", ["", "nowhere.csv", "m.txt", "."])
def test_no_manifest(tmp_path: Path, root: str) -> None:
    (tmp_path / "m.txt").write_text("path,label\n1,a\n")
    with pytest.raises(InputError, match=r"expected a \.csv or \.parquet file, or a folder"):
        open_images(Settings(root and str(tmp_path / root)))


def test_a_file_that_is_no_parquet(tmp_path: Path) -> None:
    (tmp_path / "m.parquet").write_bytes(b"path,label\n1,a\n")
    with pytest.raises(InputError, match=r"cannot read .*m\.parquet"):
        opened(tmp_path / "m.parquet")
    pq.write_table(pa.table({"path": pa.array([[1]]), "label": ["a"]}), tmp_path / "m.parquet")
    with pytest.raises(InputError, match=r"cannot read .*m\.parquet"):
        opened(tmp_path / "m.parquet")


def test_batches_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest read in pieces of three rows, each with other words, is the same as one read at once."""
    rng = np.random.default_rng(0)
    labels, splits = rng.integers(0, 9, 100), rng.choice(["train", "val", "query"], 100)
    table = pa.table({"path": [f"{i}.png" for i in range(100)], "label": labels, "split": splits})
    pq.write_table(table, tmp_path / "m.parquet")
    monkeypatch.setattr(manifest, "_BATCH", 3)
    source = opened(tmp_path / "m.parquet")
    for split, word in (("train", "train"), ("gallery", "val"), ("queries", "query")):
        expected = [(f"{i}.png", i, int(labels[i])) for i in range(100) if splits[i] == word]
        assert rows(source, split) == expected


def test_tables_as_pandas_writes_them(tmp_path: Path) -> None:
    """An index without a name, and a column of numbers with gaps, which becomes one of floating point."""
    frame = pd.DataFrame({"path": list("abcd"), "label": [2, 10, None, -1], "split": ["train", *["gallery"] * 3]})
    frame.to_csv(tmp_path / "m.csv")
    frame.to_csv(tmp_path / "words.csv", na_rep="nan")
    for name in ("m.csv", "words.csv"):
        source = opened(tmp_path / name)
        assert source.items("gallery").labels_N[1:].tolist() == [-1, -1]
        labels = {*source.items("train").labels_N.tolist(), *source.items("gallery").labels_N[:1].tolist()}
        assert labels == {0, 1}


def test_numbers_beyond_64_bits_are_names(tmp_path: Path) -> None:
    header, big = "path,label,split,camera", "9" * 5000
    source = opened(write_csv(tmp_path / "m.csv", header, f"1,a,train,{1 << 63}", f"2,a,gallery,{big}", "3,a,query,7"))
    cameras = [source.items(split).cameras_N for split in ("train", "gallery", "queries")]
    assert [numbers.tolist() for numbers in cameras if numbers is not None] == [[1], [2], [0]]


def test_a_header_without_end(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*m\.csv: field larger than"):
        opened(write_csv(tmp_path / "m.csv", "x" * 200_000))
