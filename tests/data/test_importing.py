"""Imports: joins, broken rows, interruptions, refusals."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ray_backfill.core import stages as files
from ray_backfill.core.errors import InputError
from ray_backfill.data import importing
from ray_backfill.data.folder import read_table
from ray_backfill.data.importing import ColumnNames, import_split, imported
from ray_backfill.data.sources import open_source
from ray_backfill.data.write import vector_column

PLAIN = ColumnNames()


def write(path: Path, ids: list[int] | list[str], seed: int = 0, **more: object) -> dict[object, list[float]]:
    """A source with old vectors of 4 dimensions; returns id -> vector."""
    vectors = np.random.default_rng(seed).normal(size=(len(ids), 4)).astype(np.float32)
    columns = {"id": ids, "old": vector_column(vectors)} | {
        name: values(vectors) if callable(values) else values for name, values in more.items()
    }
    pq.write_table(pa.table(columns), path)
    return dict(zip(ids, vectors.tolist(), strict=True))


def test_two_sources_are_joined_by_id_and_the_rest_is_listed(tmp_path: Path) -> None:
    ids = list(range(40_000))
    shuffled = np.random.default_rng(3).permutation(50_000)[:35_000].tolist()
    old = write(tmp_path / "a.parquet", ids, 0, label=[i % 7 for i in ids])
    new = write(tmp_path / "b.parquet", shuffled, 1)
    names = ColumnNames(new="old")
    path = import_split(tmp_path / "out" / "gallery.parquet", [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"],
                        names, False, False)  # fmt: skip
    read = read_table(path)
    both = set(ids) & set(shuffled)
    assert read.id.tolist() == [i for i in ids if i in both]
    assert read.old.tolist() == [old[i] for i in read.id.tolist()]
    assert read.new.tolist() == [new[i] for i in read.id.tolist()]
    assert read.label is not None
    assert read.label.tolist() == [i % 7 for i in read.id.tolist()]
    left_out = pq.read_table(tmp_path / "out" / "gallery_left_out.parquet").to_pydict()
    assert sorted(map(int, left_out["id"])) == sorted(set(ids) ^ set(shuffled))
    assert sum(imported(path)["left_out"].values()) == len(left_out["id"])


def test_rows_in_the_same_order_need_no_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"item {i}" for i in range(20_000)]
    write(tmp_path / "a.parquet", ids, 0)
    new = write(tmp_path / "b.parquet", ids, 1)
    monkeypatch.setattr(importing, "_by_partner", None)
    path = import_split(tmp_path / "gallery.parquet", [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"],
                        ColumnNames(new="old"), False, False)  # fmt: skip
    read = read_table(path)
    assert read.id.tolist() == ids
    assert read.new.tolist() == [new[i] for i in ids]


BROKEN = {"no vector": 3, "another number of dimensions": 5, "NaN or infinite values": 8, "a zero vector": 11}


def write_broken(path: Path) -> None:
    lists: list[list[float] | None] = [[1.0, float(i)] for i in range(20)]
    lists[3], lists[5], lists[8], lists[11] = None, [1.0], [1.0, float("nan")], [0.0, 0.0]
    ids = [*range(18), None, 4]
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "old": lists, "new": [[1.0, 2.0]] * 20}), path)


def test_broken_rows_are_refused_and_nothing_is_left(tmp_path: Path) -> None:
    write_broken(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"row 18 has no id \(2 such rows\); give --drop-broken"):
        import_split(tmp_path / "out" / "gallery.parquet", [f"{tmp_path}/a.parquet"], PLAIN, False, False)
    fine = pq.read_table(tmp_path / "a.parquet").slice(0, 18)
    pq.write_table(fine, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"'old': no vector in row 3 \(id 3\); give --drop-broken"):
        import_split(tmp_path / "out" / "gallery.parquet", [f"{tmp_path}/b.parquet"], PLAIN, False, False)
    assert not list(tmp_path.glob("out/*"))


def test_a_row_is_left_out_for_one_reason(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 2, 3], 0)
    write(tmp_path / "b.parquet", [1, 3], 1)
    sources = [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"]
    path = import_split(tmp_path / "gallery.parquet", sources, ColumnNames(new="old"), True, False)
    assert read_table(path).id.tolist() == [1, 3]
    assert sorted(imported(path)["left_out"].values()) == [1, 1]


def test_broken_rows_can_be_left_out(tmp_path: Path) -> None:
    write_broken(tmp_path / "a.parquet")
    path = import_split(tmp_path / "gallery.parquet", [f"{tmp_path}/a.parquet"], PLAIN, True, False)
    assert read_table(path).id.tolist() == [i for i in range(18) if i not in BROKEN.values()]
    listed = pq.read_table(tmp_path / "gallery_left_out.parquet").to_pydict()
    found = dict(zip(listed["reason"], listed["id"], strict=True))
    assert found == {"no id": "", "duplicate id": "4"} | {f"old: {why}": str(row) for why, row in BROKEN.items()}


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.md5(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.parquet"))}


def broken_in_both_parts(vectors: np.ndarray) -> pa.Array:
    """No vector in row 3, a zero one in row 4, and NaN in the last row."""
    vectors[4], vectors[-1, 0] = 0, np.nan
    lists = vector_column(vectors)
    missing = np.arange(len(vectors)) == 3
    return pa.FixedSizeListArray.from_arrays(lists.flatten(), 4, mask=pa.array(missing))


def test_rows_without_any_vector_before_the_first_one(tmp_path: Path) -> None:
    ids = list(range(importing.PART_ROWS + 3))
    lists = pa.array([None] * importing.PART_ROWS + [[1.0, 2.0]] * 3, pa.list_(pa.float32()))
    pq.write_table(pa.table({"id": ids, "old": lists}), tmp_path / "a.parquet")
    path = import_split(tmp_path / "gallery.parquet", [f"{tmp_path}/a.parquet"], PLAIN, True, False)
    assert pd.read_parquet(path).id.tolist() == ids[-3:]
    assert imported(path)["rows"] == 3
    assert imported(path)["left_out"] == {"old: no vector": importing.PART_ROWS}
    nothing = pa.table({"id": ids, "old": pa.array(["no numbers"] * len(ids))})
    pq.write_table(nothing, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"nothing is left of other.parquet: every row is broken"):
        import_split(tmp_path / "other.parquet", [f"{tmp_path}/b.parquet"], PLAIN, True, False)
    assert not (tmp_path / ".other.parquet.unfinished").exists()


def test_reasons_are_those_of_the_row_in_any_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3], "old": [[1.0, 2.0]] * 3}), tmp_path / "a.parquet")
    new = {"id": [3, 2, 1], "new": [[1.0, 2.0], [1.0, float("nan")], [1.0]]}
    pq.write_table(pa.table(new), tmp_path / "b.parquet")
    sources = [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"]
    with pytest.raises(InputError, match=r"b.parquet, column 'new': another number of dimensions in the row of id 1;"):
        import_split(tmp_path / "gallery.parquet", sources, PLAIN, False, False)
    path = import_split(tmp_path / "gallery.parquet", sources, PLAIN, True, False)
    assert imported(path)["left_out"] == {"new: another number of dimensions": 1, "new: NaN or infinite values": 1}


def test_an_import_that_was_stopped_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(3 * importing.PART_ROWS // 2))
    for name, order in (("a", ids), ("b", ids[::-1])):
        write(tmp_path / f"{name}.parquet", order, len(name), old=broken_in_both_parts)
    sources, names = [f"{tmp_path}/a.parquet", f"{tmp_path}/b.parquet"], ColumnNames(new="old")
    undisturbed = import_split(tmp_path / "whole.parquet", sources, names, True, False)
    whole = hashes(undisturbed)

    parts: list[str] = []

    def killed(path: Path, write: object) -> None:
        if parts:
            raise KeyboardInterrupt
        parts.append(path.name)
        files.write_whole(path, write)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(importing, "write_whole", killed)
        with pytest.raises(KeyboardInterrupt):
            import_split(tmp_path / "gallery.parquet", sources, names, True, False)
    assert not (tmp_path / "gallery.parquet").exists()
    (tmp_path / ".gallery.parquet.unfinished" / ".part-00001.parquet.0.tmp").write_bytes(b"what a kill leaves")

    def counted(path: Path, write: object) -> None:
        parts.append(path.name)
        files.write_whole(path, write)  # type: ignore[arg-type]

    monkeypatch.setattr(importing, "write_whole", counted)
    path = import_split(tmp_path / "gallery.parquet", sources, names, True, False)
    assert parts == ["part-00000.parquet", "part-00001.parquet"]  # the first one only once
    assert hashes(path) == whole
    assert sorted(file.name for file in path.iterdir()) == ["_manifest.json", *whole]
    left_out = [pq.read_table(tmp_path / f"{name}_left_out.parquet").to_pylist() for name in ("whole", "gallery")]
    assert left_out[0] == left_out[1]
    assert {row["reason"] for row in left_out[0]} == {
        "old: no vector",
        "old: a zero vector",
        "old: NaN or infinite values",
    }
    facts = imported(path)
    assert facts["left_out"] == imported(undisturbed)["left_out"]
    sums = {name: hashlib.sha256((path / name).read_bytes()).hexdigest() for name in facts["parts"]}
    assert {name: part["sha256"] for name, part in facts["parts"].items()} == sums


def test_a_finished_import_is_kept_and_another_one_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 3])
    write(tmp_path / "b.parquet", [1, 2])
    path = tmp_path / "out" / "gallery.parquet"
    import_split(path, [f"{tmp_path}/a.parquet"], PLAIN, False, False)
    made = (path / "part-00000.parquet").stat().st_mtime_ns
    import_split(path, [f"{tmp_path}/a.parquet"], PLAIN, False, False)
    assert (path / "part-00000.parquet").stat().st_mtime_ns == made
    with pytest.raises(InputError, match=r"belongs to a run with other settings .* give --overwrite"):
        import_split(path, [f"{tmp_path}/b.parquet"], PLAIN, False, False)
    write(tmp_path / "a.parquet", [1, 2, 3, 4])
    with pytest.raises(InputError, match=r"a.parquet changed after the import; give --overwrite"):
        import_split(path, [f"{tmp_path}/a.parquet"], PLAIN, False, False)
    import_split(path, [f"{tmp_path}/b.parquet"], PLAIN, False, True)
    assert imported(path)["rows"] == 2
    own = tmp_path / "out" / "queries.parquet"
    own.write_bytes(b"somebody's own")
    with pytest.raises(InputError, match="was not made by an import"):
        import_split(own, [f"{tmp_path}/b.parquet"], PLAIN, False, False)
    assert own.read_bytes() == b"somebody's own"


def test_a_gallery_before_its_backfill_and_float16_stay_what_they_are(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float16)
    pq.write_table(pa.table({"id": range(10), "old": vector_column(vectors)}), tmp_path / "a.parquet")
    path = import_split(tmp_path / "gallery.parquet", [f"{tmp_path}/a.parquet"], PLAIN, False, False)
    read = read_table(path, needed=("old",))
    assert set(read.vectors) == {"old"}
    assert read.old.dtype == np.float16
    assert np.array_equal(read.old, vectors)


@pytest.mark.parametrize(
    ("sources", "names", "message"),
    [
        (["a.parquet"], ColumnNames(id="key"), "has no column 'key'; it has: id, old"),
        (["a.parquet"], ColumnNames(new="v2"), "has no column 'v2'"),
        (["a.parquet"], ColumnNames(label="category"), "has no column 'category'"),
        (["a.parquet"], ColumnNames(keep=("title",)), "has no column 'title'"),
        (["a.parquet"], ColumnNames(old="id"), "holds integers, not vectors"),
        (["nothing.parquet"], PLAIN, "does not exist"),
        (["a.parquet", "texts.parquet"], ColumnNames(new="old"), "use one type"),
        (["a.parquet", "others.parquet"], ColumnNames(new="old"), "no id of .* is in"),
        (["none.parquet"], PLAIN, "has no rows"),
        (["empty"], PLAIN, "has no file of"),
        (["torn.npy"], PLAIN, "cannot be read as numbers"),
        (["torn.faiss"], PLAIN, "cannot be read as a faiss index"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_imported(sources: list[str], names: ColumnNames, message: str, tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 3])
    write(tmp_path / "texts.parquet", ["1", "2", "3"])
    write(tmp_path / "others.parquet", [4, 5])
    pq.write_table(pq.read_table(tmp_path / "a.parquet").slice(0, 0), tmp_path / "none.parquet")
    (tmp_path / "empty").mkdir()
    for name in ("torn.npy", "torn.faiss"):
        (tmp_path / name).write_bytes(b"torn")
    with pytest.raises(InputError, match=message):
        import_split(tmp_path / "out" / "x.parquet", [f"{tmp_path}/{name}" for name in sources], names, False, False)
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_texts_are_taken_and_other_columns_on_request(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 3], text=["one", "two", "three"], price=[1, 2, 3], image=["1.png"] * 3)
    for keep, wanted in (((), {"text"}), (("price", "image"), {"text", "price", "image"})):
        names = ColumnNames(keep=keep)
        path = import_split(
            tmp_path / f"{len(keep)}" / "gallery.parquet", [f"{tmp_path}/a.parquet"], names, False, False
        )
        (part,) = path.glob("*.parquet")
        assert set(pq.read_schema(part).names) == {"id", "old"} | wanted


@pytest.mark.parametrize("number", [0, 7, 199_999])
def test_a_csv_that_is_not_utf8_is_refused_with_its_line(number: int, tmp_path: Path) -> None:
    """It silently became bytes, and a later block failed with another error."""
    lines = [f"{n},caf\u00e9 {n},a".encode("latin1" if n == number else "utf-8") for n in range(200_000)]
    file = tmp_path / "my items.csv"
    file.write_bytes(b"\n".join([b"id,label,old", *lines]))
    with pytest.raises(InputError) as refused:
        for _ in open_source(str(file)).read(["id", "label"], 0):
            pass
    assert str(refused.value) == (
        f"{file}, line {number + 2:,}: byte 0xe9 is not UTF-8; convert the file, for example by: "
        "iconv -f latin1 -t utf-8 'my items.csv' > utf8-'my items.csv'"
    )


def test_a_heading_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("id,caf\u00e9\n1,2\n".encode("latin1"))
    with pytest.raises(InputError, match="line 1: byte 0xe9 is not UTF-8"):
        open_source(str(tmp_path / "a.csv"))


@pytest.mark.parametrize(
    ("texts", "names", "message"),
    [
        (["a.parquet"], ColumnNames(old="new", new="new"), "'new' would be both .*; give --old and --new"),
        (["a.parquet", "./a.parquet"], ColumnNames(new="old"), "'old' would be both .*; name two sources"),
        (["id=i.npy,old=v.npy,new=v.npy"], PLAIN, "names v.npy twice"),
    ],
)
def test_one_column_is_not_both_models(
    texts: list[str], names: ColumnNames, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet", [1, 2, 3], new=vector_column)
    np.save("i.npy", np.arange(3))
    np.save("v.npy", np.ones((3, 2)))
    with pytest.raises(InputError, match=message):
        import_split(tmp_path / "gallery.parquet", texts, names, False, False)
    assert not (tmp_path / "gallery.parquet").exists()


def test_one_source_twice_may_have_both_models(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1, 2, 3], new=vector_column)
    import_split(tmp_path / "gallery.parquet", [str(tmp_path / "a.parquet")] * 2, PLAIN, False, False)
    assert len(read_table(tmp_path / "gallery.parquet").new) == 3


def test_a_folder_without_any_table_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray_backfill.data.sources.files._MOST_WITHOUT", 50)
    for number in range(60):
        (tmp_path / f"{number}.txt").touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    with pytest.raises(InputError, match=r"holds more than \d+ files and folders that are no .parquet, .* or one file"):
        open_source(str(tmp_path))
    write(tmp_path / "here.parquet", [1, 2])
    assert open_source(str(tmp_path)).rows == 2  # the link is followed once


def test_the_whole_disk_is_given_up_at_once() -> None:
    with pytest.raises(InputError, match=r"files of several types|files and folders that are no"):
        open_source("/")


def test_ids_of_a_csv_keep_their_leading_zeros(tmp_path: Path) -> None:
    lines = [f'{n:03d},{n % 4},"[1.0, {n}]"' for n in range(12)]
    (tmp_path / "a.csv").write_text("\n".join(["id,label,old", *lines]))
    path = import_split(tmp_path / "gallery.parquet", [f"{tmp_path}/a.csv"], PLAIN, False, False)
    table = pd.read_parquet(path)
    assert table.id.tolist() == [f"{n:03d}" for n in range(12)]
    assert table.label.tolist() == [n % 4 for n in range(12)]


def test_missing_sources_are_named(tmp_path: Path) -> None:
    for text, message in (("", "is empty"), ("a b:c", "is not a recognised vector source")):
        with pytest.raises(InputError, match=message):
            import_split(tmp_path / "gallery.parquet", [text], PLAIN, False, False)
    for text in (f"qdrant:{tmp_path}/none#items", f"milvus:{tmp_path}/none.db#items"):
        with pytest.raises(InputError, match="does not exist"):
            import_split(tmp_path / "gallery.parquet", [text], PLAIN, False, False)
    assert not list(tmp_path.iterdir())
