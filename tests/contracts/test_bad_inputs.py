"""Files that other programs, half a copy or a slip have made: each is one line and exit code 2, or is handled.

None of them is among ``tests.bad_input``, which is about the command line and the data contract. Each case has a folder
of embeddings in order, ``{t}/data``, a finished run, ``{t}/run``, and the file that it names, which ``FILES`` makes.
"""

import io
import json
import os
import shlex
import shutil
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ray_backfill as rb
from tests.bad_folder import SPLITS, write_split
from tests.command import Command
from tests.test_bad_input import CODES

RNG = np.random.default_rng(0)
ROWS = 24


def vectors(rows: int = ROWS, dims: int = 4) -> Any:
    return RNG.normal(size=(rows, dims)).astype(np.float32)


def texts(*lines: str, encoding: str = "utf-8") -> Callable[[Path], object]:
    return lambda path: path.write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))


def items(**changed: Any) -> list[str]:
    """JSON lines of items with vectors; a value that is a function is called with the row."""
    rows = []
    for row in range(ROWS):
        item = {"id": row, "text": f"text {row}", "old": [1.0, row + 1], "new": [row + 1, 2.0]}
        rows.append(json.dumps(item | {n: v(row) if callable(v) else v for n, v in changed.items()}))
    return rows


def in_latin1(replaced: str) -> Callable[[Path], object]:
    """JSON lines of items with an accent in place of a word."""
    return texts(
        *(line.replace(replaced, f"{replaced[:1]}\u00e9{replaced[-1:]}") for line in items()), encoding="latin1"
    )


def array(make: Callable[[], Any], **how: Any) -> Callable[[Path], object]:
    return lambda path: np.save(path.open("wb"), make(), **how)


def arrays(**of: Any) -> Callable[[Path], object]:
    return lambda path: np.savez(path, **of)


def table(**columns: Any) -> Callable[[Path], object]:
    whole = {"id": np.arange(ROWS), "old": list(vectors()), "new": list(vectors())} | columns
    return lambda path: pq.write_table(pa.table({n: v for n, v in whole.items() if v is not None}), path)


def not_utf8() -> pa.Array:
    return pa.array([b"caf\xe9"] * ROWS).view(pa.string())


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def beir(judged: bytes) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        (path / "qrels").mkdir(parents=True)
        for name in ("corpus", "queries"):
            rows = (json.dumps({"_id": f"{name[0]}{row}", "text": f"text {row}"}) for row in range(ROWS))
            (path / f"{name}.jsonl").write_text("\n".join(rows))
        (path / "qrels" / "test.tsv").write_bytes(judged)

    return make


def run_with(name: str, content: bytes) -> Callable[[Path], object]:
    """A finished run of which a file was damaged."""

    def make(path: Path) -> None:
        shutil.copytree(path.parent / "run", path)
        (path / "results" / name).write_bytes(content)

    return make


def data_with(name: str, make: Callable[[Path], object]) -> Callable[[Path], object]:
    """A folder of embeddings with another file."""

    def changed(path: Path) -> None:
        shutil.copytree(path.parent / "data", path)
        (path / name).unlink(missing_ok=True)
        make(path / name)

    return changed


def tar_of(name: str, is_packed: bool = False) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        with tarfile.open(path, "w:gz") if is_packed else tarfile.open(path, "w") as tar:
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())

    return make


def twice_named(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for of in (np.arange(ROWS), vectors(), vectors(), vectors()):
            written = io.BytesIO()
            np.save(written, of)
            with warnings.catch_warnings(action="ignore"):
                archive.writestr("id.npy" if of.ndim == 1 else "old.npy", written.getvalue())


DEEP = '{"id":1,"old":' + "[" * 100_000 + "]" * 100_000 + "}"
JUDGED = [f"{100 + row} 0 {row} 1" for row in range(8)]
CLICKS = ["query,item,clicks", *(f"{100 + row},{row},{row + 1}" for row in range(8))]
IMPORT = "import --out {t}/out --gallery {t}/"
EMBED = "embed --out {t}/out --old python:tests.encode._models:old --new python:tests.encode._models:New --texts {t}/"
SIMULATE = "simulate --data {t}/data --out {t}/out --methods rm_naive --points 2 "
ARRAYS = "simulate --out {t}/out --methods rm_naive --points 2 --new-gallery {t}/new.npy --old-gallery {t}/"
FORECAST = "forecast {t}/before --out {t}/out --new {t}/"

# (file, how it is made, the command, and what its line says; "" if it is handled)
CASES: list[tuple[str, Callable[[Path], object], str, str]] = [
    # JSON lines
    ("empty.jsonl", texts(), IMPORT, "Empty JSON"),
    ("latin.jsonl", in_latin1("text 7"), IMPORT, "line 8: byte 0xe9 is not UTF-8; convert the file"),
    ("text.jsonl", in_latin1("text 7"), EMBED, "line 8: byte 0xe9 is not UTF-8; convert the file"),
    ("key.jsonl", in_latin1('"text"'), IMPORT, "line 1: byte 0xe9 is not UTF-8"),
    ("utf16.jsonl", texts(*items(), encoding="utf-16"), IMPORT, "iconv -f utf-16 -t utf-8"),
    ("bom.jsonl", texts(*items(), encoding="utf-8-sig"), IMPORT, ""),
    ("deep.jsonl", texts(DEEP), IMPORT, "line 1: arrays or objects nested more than 1,000 deep"),
    ("deep_text.jsonl", texts(DEEP.replace("old", "text")), EMBED, "nested more than 1,000 deep"),
    ("brackets.jsonl", texts(*items(text='"' + "[{" * 2000 + "\\")), IMPORT, ""),
    ("sparse.jsonl", sparse, IMPORT, "line 1: longer than 2 MB"),
    ("list.jsonl", texts("[1, 2]"), IMPORT, "cannot be read: JSON parse error"),
    ("numbers.jsonl", texts("1", "2"), IMPORT, "cannot be read: JSON parse error"),
    ("half.jsonl", texts(*items(), '{"id": 99, "old": [1'), IMPORT, "cannot be read: JSON parse error"),
    ("mixed.jsonl", texts(*items(id=lambda row: row if row < 9 else f"a{row}")), IMPORT, "cannot be read: JSON"),
    ("huge_id.jsonl", texts(*items(id=lambda row: 10**30 + row)), IMPORT, "must hold integers or text as ids"),
    ("ragged.jsonl", texts(*items(old=lambda row: [1.0] * (1 + row % 2))), IMPORT, "another number of dimensions in"),
    ("nan.jsonl", texts(*items(old=lambda row: [float("nan"), 1.0])), IMPORT, "NaN or infinite values in row 0"),
    ("null.jsonl", texts(*items(id=lambda row: row or None)), IMPORT, "row 0 has no id"),
    ("fifo.jsonl", os.mkfifo, IMPORT, "is a pipe or a device"),
    # other tables
    ("utf16.csv", texts("id,old,new", "1,[1],[2]", encoding="utf-16"), IMPORT, "cannot be read"),
    ("open_quote.csv", texts("id,old,new", '"1,[1],[2]'), IMPORT, "cannot be read"),
    ("words.csv", texts("id,old,new", *(f'{row},"[1, {"x" if row == 3 else 2}]",[1]' for row in range(9))),
     IMPORT, "no vector in row 3"),
    ("wide.csv", texts("id,old,new", "1,[1],[2]", "2,[1],[2],[3]"), IMPORT, "cannot be read: CSV parse error"),
    ("tabs.tsv", texts("id,old,new", "1,[1],[2]"), IMPORT, "has no column"),
    ("bytes.parquet", table(label=not_utf8()), IMPORT, "write its texts again as UTF-8"),
    ("bytes_text.parquet", table(text=not_utf8()), EMBED, "write its texts again as UTF-8"),
    ("bytes_id.parquet", table(id=not_utf8()), IMPORT, "write its texts again as UTF-8"),
    ("empty.parquet", texts(), IMPORT, "cannot be read"),
    ("noise.arrow", texts("noise"), IMPORT, "cannot be read"),
    ("fifo.parquet", os.mkfifo, IMPORT, "is a pipe or a device"),
    # arrays
    ("big.npy", array(lambda: vectors().astype(">f4")), ARRAYS, ""),
    ("big.npz", arrays(id=np.arange(ROWS).astype(">i8"), old=vectors().astype(">f8"), new=vectors()), IMPORT, ""),
    ("long.npz", arrays(id=np.arange(ROWS), old=vectors().astype(np.longdouble), new=vectors()), IMPORT, ""),
    ("objects.npz", arrays(id=np.arange(ROWS), old=np.array([[1, "a"]] * ROWS, object), new=vectors()), IMPORT,
     "cannot be read as numbers or text"),
    ("twice.npz", twice_named, IMPORT, "holds two arrays 'old'"),
    ("complex.npy", array(lambda: vectors() + 1j), ARRAYS, "complex.npy cannot be written"),
    ("cube.npy", array(lambda: vectors().reshape(ROWS, 2, 2)), ARRAYS, "cube.npy must have two dimensions"),
    ("words.npy", array(lambda: np.array([["a", "b"]] * ROWS)), ARRAYS, "words.npy cannot be written"),
    ("times.npy", array(lambda: np.zeros((ROWS, 4), "datetime64[s]")), ARRAYS, "times.npy cannot be written"),
    ("huge.npy", array(lambda: np.full((ROWS, 4), 1e300)), ARRAYS, "NaN or infinite values in row 0"),
    ("objects.npy", array(lambda: np.array([[1, "a"]], object), allow_pickle=True), ARRAYS, "holds no array"),
    ("fifo.npy", os.mkfifo, ARRAYS, "is a pipe or a device"),
    ("noise.faiss", texts("noise"), IMPORT, "noise.faiss"),
    ("fifo.faiss", os.mkfifo, IMPORT, "is a pipe or a device"),
    # right answers
    ("fifo.qrels", os.mkfifo, SIMULATE + "--truth qrels {t}/", "is a pipe or a device"),
    ("sparse.qrels", sparse, SIMULATE + "--truth qrels {t}/", "line 1: longer than 2 MB"),
    ("sign.qrels", texts(*JUDGED, "103 0 3 -1"), SIMULATE + "--truth qrels {t}/", "line 9: another grade of item 3"),
    ("same.qrels", texts(*JUDGED, "103 0 3 1.0"), SIMULATE + "--truth qrels {t}/", ""),
    ("bom.qrels", texts(*JUDGED, encoding="utf-8-sig"), SIMULATE + "--truth qrels {t}/", ""),
    ("latin.qrels", texts(*JUDGED, "caf\u00e9 0 3 1", encoding="latin1"), SIMULATE + "--truth qrels {t}/",
     "line 9: byte 0xe9 is not UTF-8"),
    ("gap.csv", texts(*CLICKS, "101,,3"), SIMULATE + "--truth clicks {t}/", ""),
    ("gaps.csv", texts(CLICKS[0], ",3,1", "101,,3"), SIMULATE + "--truth clicks {t}/", "no row with both a query and"),
    ("count.csv", texts(*CLICKS, "101,3,"), SIMULATE + "--truth clicks {t}/", "'clicks': missing value in row 8"),
    ("half_id.csv", texts(*CLICKS, "101.5,3,1"), SIMULATE + "--truth clicks {t}/", "not fractions"),
    # texts and images
    ("latin_beir", beir("q1\tcaf\u00e9\t1\n".encode("latin1")), EMBED, "line 1: byte 0xe9 is not UTF-8"),
    ("no_beir", beir(b"q1\tnowhere\t1\n"), EMBED, "judges no item of the corpus"),
    ("twice.jsonl", texts(*items(id=lambda row: row // 2)), EMBED, "has the id 0 twice"),
    ("packed.tar", tar_of("a.jpg", is_packed=True), EMBED.replace("texts", "images"), "without compression"),
    ("nothing.tar", tar_of("a.txt"), EMBED.replace("texts", "images"), "has no images"),
    # folders of embeddings
    ("pipe", data_with("gallery.parquet", os.mkfifo), "doctor {t}/", "gallery.parquet is a pipe or a device"),
    ("loop", data_with("gallery.parquet", lambda path: path.symlink_to(path)), "doctor {t}/", "gallery.parquet"),
    ("label", data_with("gallery.parquet", table(label=not_utf8())), "simulate --out {t}/out --data {t}/",
     "gallery.parquet cannot be read"),
    ("views", data_with("train_views.parquet", os.mkfifo), "fit --methods rm --out {t}/out --data {t}/",
     "train_views.parquet is a pipe or a device"),
    # samples and forecasts
    ("s.parquet", table(), "sample {t}/before --budget 0 --out {t}/", "give --budget N"),
    ("noise.sample", texts("noise"), "forecast {t}/before --out {t}/out --sample {t}/", "cannot be read as Parquet"),
    ("fifo.sample", os.mkfifo, "forecast {t}/before --out {t}/out --sample {t}/", "is a pipe or a device"),
    ("latin_new.jsonl", in_latin1("text 7"), FORECAST, "line 8: byte 0xe9 is not UTF-8"),
    ("ids.parquet", table(id=np.arange(ROWS) + 0.5), FORECAST, "must hold integers or text as ids"),
    # finished runs
    ("latin_run", run_with("manifest.json", b'"caf\xe9"'), "report {t}/", "manifest.json cannot be read as JSON"),
    ("deep_run", run_with("manifest.json", b"[" * 100_000), "report {t}/", "manifest.json cannot be read as JSON"),
    ("no_curves", run_with("curves.parquet", b""), "report {t}/", "curves.parquet cannot be read as Parquet"),
    # drills, refused before Ray starts
    ("drill.parquet", table(), "drill --out {t}/out --data {t}/", "is not a folder"),
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of embeddings, the same before the backfill with a sample, and a finished run."""
    top = tmp_path_factory.mktemp("made")
    for split, columns in SPLITS.items():
        write_split(top / "data", split, columns)
    label = np.arange(600) % 60
    queries = {"old": vectors(60), "new": vectors(60), "label": label[:60]}
    rb.write_folder(top / "before", {"old": vectors(600), "label": label}, queries)
    rb.sample(top / "before", 200)
    rb.simulate(top / "data", out=top / "run", methods="rm_naive", points=2)
    np.save(top / "new.npy", vectors())
    return top


@pytest.mark.parametrize(("name", "make", "words", "says"), CASES, ids=[case[0] for case in CASES])
def test_a_bad_file_is_one_line_or_handled(
    name: str, make: Callable[[Path], object], words: str, says: str, made: Path, tmp_path: Path, command: Command
) -> None:
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    make(tmp_path / name)
    before = sorted(tmp_path.rglob("*"))
    ended = command(*shlex.split((words + name).format(t=tmp_path)))
    if not says:
        assert ended.code == 0, ended
        assert (tmp_path / "out").is_dir()
        return
    assert says in ended.error
    assert not CODES.search(ended.error.replace(str(tmp_path), "")), ended.error
    assert sorted(tmp_path.rglob("*")) == before, "nothing is half written"


def test_there_are_sixty() -> None:
    assert len(CASES) >= 60
    assert len({name for name, *_ in CASES}) == len(CASES)


V, LABEL = vectors(), np.arange(ROWS) % 4
# What a caller in Python may give -> what the error says; "" if it is handled.
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "complex": ({"old": V + 1j}, "complex numbers"),
    "complex labels": ({"label": LABEL + 1j}, "column 'label' cannot be written"),
    "masked vectors": ({"old": np.ma.masked_array(V, mask=V > 1)}, "masked values"),
    "times": ({"old": np.ones((ROWS, 4), "m8[s]")}, "dates and times are no embeddings"),
    "the other order of bytes": ({"old": V.astype(">f4"), "label": LABEL.astype(">i4")}, ""),
    "numbers of 128 bits": ({"old": V.astype(np.longdouble)}, ""),
    "labels of 128 bits": ({"label": LABEL.astype(np.longdouble)}, ""),
    "no dimensions": ({"old": V[:, :0]}, "column 'old' cannot be written"),
    "a generator": ({"old": (row for row in V)}, "must have two dimensions"),
    "the name of a file": ({"old": "old.npy"}, "must have two dimensions"),
    "a structure": ({"old": np.zeros(ROWS, [("x", "f4")])}, "must have two dimensions"),
    "bytes": ({"label": np.array([b"a"] * ROWS)}, "must hold integers or text, not bytes"),
}


@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_a_caller_are_one_line_or_handled(name: str, tmp_path: Path) -> None:
    given, says = CALLS[name]
    columns = {"old": V, "new": V, "label": LABEL} | given
    if not says:
        read = rb.read_folder(rb.write_folder(tmp_path / "data", columns)).gallery
        assert np.array_equal(read.old, V)
        assert read.label is not None
        assert read.label.tolist() == LABEL.tolist()
        return
    with pytest.raises(rb.InputError, match=says) as refused:
        rb.write_folder(tmp_path / "data", columns)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "data").exists()
