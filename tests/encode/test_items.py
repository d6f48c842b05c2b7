"""What is read of texts and images, how queries and a train split are drawn, and what each wrong source says."""

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ray_backfill.core.errors import InputError
from ray_backfill.core.stages import OtherSettingsError
from ray_backfill.encode.items import ItemSettings, ItemSources, write_items
from ray_backfill.encode.part import contents_of
from tests.images.datasets._pictures import encode


def read(folder: Path, split: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = pa.concat_tables(
        [pq.read_table(part) for part in sorted((folder / f"{split}.parquet").glob("*.parquet"))]
    ).to_pydict()
    return found


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    root = tmp_path / "beir"
    lines(
        root / "corpus.jsonl", [{"_id": f"d{i}", "title": "T", "text": f"text {i}", "metadata": {}} for i in range(5)]
    )
    lines(root / "queries.jsonl", [{"_id": f"q{i}", "text": f"query {i}"} for i in range(4)])
    (root / "qrels").mkdir()
    for name, rows in (
        ("test", ["q0\td1\t2", "q0\td2\t1", "q2\td4\t1", "q3\td0\t0", "q3\tgone\t1"]),
        ("train", ["q1\td1\t1"]),
    ):
        text = "\n".join(["query-id\tcorpus-id\tscore", *rows]) + "\n"
        (root / "qrels" / f"{name}.tsv").write_text(text, encoding="utf-8")
    return root


def test_a_folder_of_beir(beir: Path, tmp_path: Path) -> None:
    out = write_items(tmp_path / "items", ItemSources("text", str(beir)), ItemSettings(part_rows=2))
    gallery, queries = read(out, "gallery"), read(out, "queries")
    assert gallery == {"id": [f"d{i}" for i in range(5)], "text": [f"T text {i}" for i in range(5)]}
    assert len(list((out / "gallery.parquet").glob("*.parquet"))) == 3
    assert queries["id"] == ["q0", "q2", "q3"], "those with judgements in test.tsv"
    assert queries["positives"] == [["d1", "d2"], ["d4"], []]
    assert queries["grades"] == [[2, 1], [1], []]
    assert not (out / "train.parquet").exists()
    numbers = beir.parent / "numbers"
    lines(numbers / "corpus.jsonl", [{"_id": row, "text": f"text {row}"} for row in range(3)])
    lines(numbers / "queries.jsonl", [{"_id": 7, "text": "query"}])
    (numbers / "qrels").mkdir()
    (numbers / "qrels" / "test.tsv").write_text("query\titem\trelevance\n7\t2\t1\n", encoding="utf-8")
    of_numbers = write_items(tmp_path / "numbers_out", ItemSources("text", str(numbers)), ItemSettings())
    assert read(of_numbers, "queries")["positives"] == [["2"]]
    assert read(of_numbers, "gallery")["id"] == ["0", "1", "2"]
    with pytest.raises(InputError, match="has queries of its own"):
        write_items(tmp_path / "other", ItemSources("text", str(beir), str(beir)), ItemSettings())
    (beir / "qrels" / "test.tsv").unlink()
    (beir / "qrels" / "train.tsv").unlink()
    with pytest.raises(InputError, match="has no qrels"):
        write_items(tmp_path / "other", ItemSources("text", str(beir)), ItemSettings())


def table(path: Path, rows: int, **names: str) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([names.get(each, each) for each in ("id", "text", "label")])
        writer.writerows([[f"i{row}", f"text {row}", f"c{row % 3}"] for row in range(rows)])
    return str(path)


def test_queries_and_a_train_split_are_drawn_from_one_file(tmp_path: Path) -> None:
    given = table(tmp_path / "a.csv", 100)
    sources, settings = ItemSources("text", given), ItemSettings(draw_queries=50, draw_train=20)
    out = write_items(tmp_path / "items", sources, settings)
    splits = {split: read(out, split) for split in ("gallery", "queries", "train")}
    assert {split: len(rows["id"]) for split, rows in splits.items()} == {"gallery": 70, "queries": 10, "train": 20}
    every = [item for rows in splits.values() for item in rows["id"]]
    assert sorted(every) == sorted(f"i{row}" for row in range(100))
    assert splits["queries"]["label"] == [f"c{int(item[1:]) % 3}" for item in splits["queries"]["id"]]
    assert write_items(tmp_path / "items", sources, settings) == out
    with pytest.raises(OtherSettingsError, match="draw_seed"):
        write_items(tmp_path / "items", sources, ItemSettings(draw_queries=50, draw_train=20, draw_seed=1))
    table(tmp_path / "a.csv", 101)
    with pytest.raises(OtherSettingsError, match="different from the earlier run: gallery"):
        write_items(tmp_path / "items", sources, settings)


def test_columns_of_other_names_and_files_of_their_own(tmp_path: Path) -> None:
    given = table(tmp_path / "a.csv", 30, id="key", text="words", label="kind")
    queries = table(tmp_path / "q.csv", 5, id="key", text="words", label="kind")
    how = ItemSettings(id_column="key", text_column="words", label_column="kind")
    out = write_items(tmp_path / "items", ItemSources("text", given, queries, queries), how)
    assert [len(read(out, split)["id"]) for split in ("gallery", "queries", "train")] == [30, 5, 5]
    assert read(out, "queries")["label"] == ["c0", "c1", "c2", "c0", "c1"]
    with pytest.raises(InputError, match="has no column text or content or body; name it with"):
        write_items(tmp_path / "b", ItemSources("text", given), ItemSettings())
    with pytest.raises(InputError, match="has no column 'body'; it has: key, words, kind"):
        write_items(tmp_path / "b", ItemSources("text", given), ItemSettings(text_column="body"))


def test_images_with_subfolders_have_classes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("cat/a.png", "cat/b.jpg", "dog/a.png", "dog/notes.txt", "dog/._a.png", ".trash/c.png"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            path.write_text("no image", encoding="utf-8")
        else:
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    given = str(tmp_path / "images")
    out = write_items(tmp_path / "items", ItemSources("image", given, given), ItemSettings())
    found = read(out, "gallery")
    assert found["id"] == ["cat/a.png", "cat/b.jpg", "dog/a.png"]
    assert found["label"] == ["cat", "cat", "dog"]
    assert found["image"] == [str(tmp_path / "images" / each) for each in found["id"]]
    (tmp_path / "images" / "backup.tar").write_bytes(b"not an image")
    deep = tmp_path / "deep"
    deep.mkdir()
    (tmp_path / "images").rename(deep / "images")
    again = write_items(tmp_path / "again", ItemSources("image", str(deep), str(deep)), ItemSettings())
    assert "label" not in read(again, "gallery"), "images, cat and a.png: which folder is the class?"
    (deep / "images").rename(tmp_path / "images")
    with pytest.raises(InputError, match="3 items are too few to draw queries from; give --queries"):
        write_items(tmp_path / "b", ItemSources("image", given), ItemSettings())


def png(shade: int) -> bytes:
    return encode(Image.new("RGB", (6, 5), (shade, shade, 0)))


def shard(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_images_of_tar_shards_are_read_where_they_lie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "shards"
    shard(
        root / "a-0.tar",
        {"x/01.png": png(10), "x/01.cls": b"3\n", "x/01.json": b"{}", "02.PNG": png(20), "._02.PNG": b"of macOS"},
    )
    shard(root / "a-1.tar", {"./02.cls": b"4", "03.seg.png": b"a mask", "04.png": b"", "04.cls": b"5"})
    out = write_items(tmp_path / "items", ItemSources("image", str(root), str(root)), ItemSettings())
    found = read(out, "gallery")
    assert (found["id"], found["label"]) == (["x/01", "02", "04"], ["3", "4", "5"])
    contents, broken = contents_of(pq.read_table(out / "gallery.parquet"), 1)
    assert [image.getpixel((0, 0)) for image in contents[:2]] == [(10, 10, 0), (20, 20, 0)]
    assert list(broken) == [2], "an empty file"
    shard(root / "a-2.tar", {"02.png": png(1)})
    with pytest.raises(InputError, match=r"a-2\.tar has the key '02' a second time"):
        write_items(tmp_path / "b", ItemSources("image", str(root), str(root)), ItemSettings())
    (root / "a-2.tar").write_bytes(b"no tar file")
    with pytest.raises(InputError, match=r"a-2\.tar cannot be read as a tar file without compression"):
        write_items(tmp_path / "b", ItemSources("image", str(root), str(root)), ItemSettings())
    shard(root / "a-2.tar", {"05.png": png(1), "06.png": png(2)})
    (root / "a-2.tar").write_bytes((root / "a-2.tar").read_bytes()[:1124])
    with pytest.raises(InputError, match=r"a-2\.tar ends too early; fetch it again"):
        write_items(tmp_path / "b", ItemSources("image", str(root), str(root)), ItemSettings())
    shard(root / "a-2.tar", {"05.png": png(1), "06.png": png(2), "7.1.png": png(3)})
    whole = (root / "a-2.tar").read_bytes()
    damaged = whole[:1024] + b"?" * 512 + whole[1536:]
    for content in (damaged, whole + whole):
        (root / "a-2.tar").write_bytes(content)
        with pytest.raises(InputError, match=r"a-2\.tar is damaged at byte .*, or holds several archives"):
            write_items(tmp_path / "b", ItemSources("image", str(root), str(root)), ItemSettings())
    (root / "a-2.tar").write_bytes(whole)
    write_items(tmp_path / "c", ItemSources("image", str(root / "a-2.tar"), str(root / "a-2.tar")), ItemSettings())
    assert "passed over" in capsys.readouterr().err


def test_images_of_a_table_of_paths(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for row in range(3):
        (tmp_path / "deep" / f"{row}.png").write_bytes(png(row))
    given = tmp_path / "list.csv"
    given.write_text("file_name,label\ndeep/0.png,a\ndeep/1.png,b\ngone.png,b\n", encoding="utf-8")
    out = write_items(tmp_path / "items", ItemSources("image", str(given), str(given)), ItemSettings())
    found = read(out, "gallery")
    assert found["id"] == ["deep/0.png", "deep/1.png", "gone.png"]
    assert found["image"] == [str(tmp_path / each) for each in found["id"]]
    assert found["label"] == ["a", "b", "b"]
    _, broken = contents_of(pq.read_table(out / "gallery.parquet"), 1)
    assert "FileNotFoundError" in broken[2]
    how = ItemSettings(id_column="label", image_column="label")
    with pytest.raises(InputError, match=r"none of the files that .*list\.csv lists exist, such as .*/a"):
        write_items(tmp_path / "b", ItemSources("image", str(given), str(given)), how)


def test_labels_that_could_never_be_equal_are_refused_before_anything_is_embedded(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text,label\n1,a,1\n2,b,2\n", encoding="utf-8")
    (tmp_path / "q.csv").write_text("id,text,label\n1,a,one\n", encoding="utf-8")
    sources = ItemSources("text", str(tmp_path / "a.csv"), str(tmp_path / "q.csv"))
    with pytest.raises(InputError, match="labels of the gallery are int64, those of the queries are string"):
        write_items(tmp_path / "items", sources, ItemSettings())
    (tmp_path / "a.csv").write_text("id,text\n1,a\n2,b\n", encoding="utf-8")
    with pytest.raises(InputError, match="the queries have labels and the gallery has none"):
        write_items(tmp_path / "items", sources, ItemSettings())
    (tmp_path / "q.csv").write_text("id,text\n1,a\n", encoding="utf-8")
    day = tmp_path / "date=2026-11-26"
    day.mkdir()
    (tmp_path / "a.csv").rename(day / "a.csv")
    sources = ItemSources("text", str(day / "a.csv"), str(tmp_path / "q.csv"))
    assert read(write_items(tmp_path / "items", sources, ItemSettings()), "gallery")["text"] == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("text", "/nowhere/a.csv"), "/nowhere/a.csv"),
        (("image", "/nowhere"), "there is no /nowhere; give a folder of images, a table of their paths, or tar"),
        (("image", "."), "has no images"),
        (("image", "one.jpg"), "one.jpg is one image; give a folder of images"),
        (("text", "none.csv"), "has no rows"),
        (("text", "gap.csv"), "gap.csv: 1 of 2 rows have no id; fill them, or drop the rows"),
        (("text", "half.csv"), "half.csv: the column of the label holds double; it must hold integers or texts"),
    ],
)
def test_what_is_wrong_with_a_source_is_said(
    given: tuple[str, str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gap.csv").write_text("id,text\n1,a\n,b\n", encoding="utf-8")
    (tmp_path / "half.csv").write_text("id,text,label\n1,a,0.5\n2,b,1\n", encoding="utf-8")
    (tmp_path / "none.csv").write_text("id,text\n", encoding="utf-8")
    with pytest.raises(InputError, match=says) as error:
        write_items(tmp_path / "items", ItemSources(*given, queries=given[1]), ItemSettings())
    assert "\n" not in str(error.value)
    assert not (tmp_path / "items").exists(), "nothing is half-written"


def test_an_id_that_is_there_twice_is_found_before_queries_are_drawn(tmp_path: Path) -> None:
    """Drawn apart, both would be unique in their splits."""
    drawn = np.random.default_rng(0).permutation(40)  # queries first, the gallery last
    ids = [f"i{drawn[0] if row == drawn[-1] else row}" for row in range(40)]
    lines = "".join(f"{each},text {row}\n" for row, each in enumerate(ids))
    (tmp_path / "twice.csv").write_text(f"id,text\n{lines}", encoding="utf-8")
    with pytest.raises(InputError, match=rf"twice\.csv: the gallery has the id 'i{drawn[0]}' twice"):
        write_items(tmp_path / "items", ItemSources("text", str(tmp_path / "twice.csv")), ItemSettings())


def test_small_splits_have_several_parts(tmp_path: Path) -> None:
    lines = "".join(f"{row},text {row}\n" for row in range(4000))
    (tmp_path / "many.csv").write_text(f"id,text\n{lines}", encoding="utf-8")
    items = write_items(tmp_path / "items", ItemSources("text", str(tmp_path / "many.csv")), ItemSettings())
    assert len(list((items / "gallery.parquet").iterdir())) == 17  # 2,600 items in parts of a sixteenth
    assert len(list((items / "queries.parquet").iterdir())) == 4  # 400, of at least 100


def test_settings_below_their_limits_are_refused() -> None:
    with pytest.raises(InputError, match="part-rows must be at least 1, got 0"):
        ItemSettings(part_rows=0)
