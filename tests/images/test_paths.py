import http.server
import io
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from ray_backfill.core.errors import InputError
from ray_backfill.core.stores import open_system
from ray_backfill.data.sources import open_source
from ray_backfill.images import paths as module
from ray_backfill.images.datasets import landmarks
from ray_backfill.images.paths import Paths
from ray_backfill.images.source import FileSource, Items
from tests.images.datasets._pictures import plain, write_tree

RED, BLUE = plain((255, 0, 0)), plain((0, 0, 255))


def paths(root: str | Path, *names: str) -> Paths:
    return Paths(str(root), pa.array(names))


@pytest.fixture
def stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Object stores without a network: bucket B is the folder tmp_path/B. Returns what has been opened."""
    opened: list[str] = []

    def opener(store: str) -> tuple[fs.FileSystem, str]:
        opened.append(store)
        bucket = store.partition("://")[2].partition("?")[0].rpartition("@")[2]
        if not (tmp_path / bucket).is_dir():
            raise OSError("no such bucket")
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), bucket

    class Folder:
        def __init__(self, scheme: str, name: str) -> None:
            self.name = name
            opened.extend({f"{scheme}://{name}"} - {*opened})

        def read(self, key: str) -> tuple[bytes, None]:
            return (tmp_path / self.name / key).read_bytes(), None

    monkeypatch.setattr(module, "open_system", opener)
    monkeypatch.setattr(module, "Bucket", Folder)
    return opened


@pytest.mark.parametrize("name", ["a b.png", "x/1,2.png", 'quo"te.png', "100%.png", "what?.png", "é漢.png", "a#b.png"])
def test_a_local_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    write_tree(tmp_path, {name: RED})
    uri = (tmp_path / name).as_uri()  # percent signs where a URI needs them
    root_uri = tmp_path.as_uri()
    for files in (paths(tmp_path, name), paths("", str(tmp_path / name)), paths("", uri), paths(root_uri, name)):
        assert files.read(0) == RED
        assert files.where(0) == str(tmp_path / name)
        assert not files.remote
    assert paths(tmp_path, name).name(0) == name


def test_absolute_paths_and_uris_stand_for_themselves(tmp_path: Path) -> None:
    write_tree(tmp_path, {"here/1.png": RED, "there/2.png": BLUE})
    there = tmp_path / "there/2.png"
    files = paths(tmp_path / "here", "1.png", str(there), there.as_uri(), "../there/2.png")
    assert [files.read(i) for i in range(4)] == [RED, BLUE, BLUE, BLUE]


@pytest.mark.parametrize(
    ("root", "name"),
    [
        ("s3://bucket/deep", "a b%20.png"),
        ("s3://bucket/deep/", "./a b%20.png"),
        ("s3://bucket", "deep/a b%20.png"),
        ("s3://bucket/deep?region=eu-west-1", "a b%20.png"),
        ("", "s3://bucket/deep/a b%20.png"),
        ("", "s3://bucket/deep/a b%20.png?region=eu-west-1"),
        ("/somewhere/else", "gs://bucket/deep/a b%20.png"),
        ("s3://other/prefix", "S3://KEY:SECRET@bucket/deep/a b%20.png"),
    ],
)
def test_keys_of_object_stores_are_taken_as_they_are(tmp_path: Path, stores: list[str], root: str, name: str) -> None:
    write_tree(tmp_path, {"bucket/deep/a b%20.png": RED})
    files = paths(root, name)
    assert files.remote
    assert files.read(0) == RED
    assert files.where(0) in {f"{scheme}://bucket/deep/a b%20.png" for scheme in ("s3", "gs")}
    assert "SECRET" not in files.name(0) + files.where(0)
    assert len(stores) == 1
    assert ("region=eu-west-1" in stores[0]) == ("region" in root + name)


def test_a_question_mark_below_a_remote_root_is_part_of_the_key(tmp_path: Path, stores: list[str]) -> None:
    write_tree(tmp_path, {"bucket/what?.png": RED})
    assert paths("s3://bucket?region=x", "what?.png").read(0) == RED
    assert stores == ["s3://bucket?region=x"]


def test_a_bucket_is_opened_once_and_not_pickled(tmp_path: Path, stores: list[str]) -> None:
    write_tree(tmp_path, {"one/1.png": RED, "two/2.png": BLUE})
    files = paths("", "s3://one/1.png", "s3://two/2.png", "s3://one/missing.png")
    assert [files.read(i) for i in (0, 1, 0)] == [RED, BLUE, RED]
    assert stores == ["s3://one", "s3://two"]
    copy = pickle.loads(pickle.dumps(files))
    assert not copy._systems
    assert copy.read(1) == BLUE
    with pytest.raises(FileNotFoundError):
        files.read(2)


def test_a_store_that_cannot_be_opened_ends_the_run(stores: list[str]) -> None:
    """A missing file is one broken image; a missing bucket, or no credentials, would make all of them broken."""
    source = source_of(paths("s3://KEY:SECRET@nowhere?region=x", "1.png"))
    with pytest.raises(InputError, match=r"cannot open s3://nowhere \(no such bucket\)"):
        source.read("train", np.array([0]))


def test_other_kinds_of_uri_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"https://: copy them to a local folder, or to one of file://, s3://"):
        paths(tmp_path, "a.png", "https://example.org/a.png")
    with pytest.raises(InputError, match=r"ftp://"):
        paths("ftp://host", "a.png")


def test_public_buckets_of_google_are_asked_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Systems:
        @staticmethod
        def from_uri(uri: str) -> tuple[None, str]:
            asked.append(uri)
            return None, "bucket"

    monkeypatch.setattr(fs, "FileSystem", Systems)
    open_system("gs://bucket?anonymous=true")
    open_system("gs://bucket")
    assert asked == ["gs://anonymous@bucket", "gs://bucket"]


def test_what_pyarrow_opens() -> None:
    """Without a network: a region that is given need not be asked for."""
    system, bucket = open_system("s3://bucket?region=eu-west-1")
    assert (system.region, bucket) == ("eu-west-1", "bucket")
    system, bucket = open_system("s3://bucket?region=eu-west-1&anonymous=true&endpoint_override=localhost:9")
    assert isinstance(system, fs.S3FileSystem)
    assert (system.region, bucket) == ("eu-west-1", "bucket")
    system, bucket = open_system("gs://bucket?anonymous=true")
    assert isinstance(system, fs.GcsFileSystem)
    assert bucket == "bucket"
    for more in ("", "&anonymous=true"):
        assert open_system(f"s3://bucket/a%20b c/?region=eu-west-1{more}")[1] == "bucket/a%20b c", "as in all addresses"
        with pytest.raises(InputError, match="nonsense"):
            paths(f"s3://bucket?region=eu-west-1&nonsense=1{more}", "1.png").read(0)


def test_digest(tmp_path: Path) -> None:
    write_tree(tmp_path, {"1.png": RED, "2.png": RED})
    before = paths(tmp_path, "1.png", "2.png").digest()
    assert paths(tmp_path, "1.png", "2.png").digest() == before
    assert paths(tmp_path, "2.png", "1.png").digest() != before
    write_tree(tmp_path, {"2.png": RED + b"x"})
    longer = paths(tmp_path, "1.png", "2.png").digest()
    (tmp_path / "2.png").unlink()
    assert len({before, longer, paths(tmp_path, "1.png", "2.png").digest()}) == 3


def test_digest_of_remote_files_asks_nothing(stores: list[str]) -> None:
    before = paths("s3://bucket", "1.png", "2.png").digest()
    assert not stores
    assert paths("s3://elsewhere/deep", "1.png", "2.png").digest() == before  # the same images in another place
    assert paths("s3://bucket", "1.png", "3.png").digest() != before
    secret = paths("", "s3://KEY:SECRET@bucket/1.png?region=here").digest()
    assert secret == paths("", "s3://bucket/1.png").digest()  # who reads them does not change images


def source_of(files: Any) -> FileSource:
    rows = np.arange(len(files))
    return FileSource("test", landmarks.Settings(image_size=4), files, {"train": Items(rows, rows)})


class Slow:
    """A remote place where each file takes a while; counts how many are asked for at once."""

    remote, most, now = True, 0, 0

    def __init__(self, count: int) -> None:
        self.count, self.lock = count, threading.Lock()

    def __len__(self) -> int:
        return self.count

    def read(self, position: int) -> bytes:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.02)
        with self.lock:
            self.now -= 1
        if position == 3:
            raise OSError("gone")
        return plain((0, position, 0))

    def name(self, position: int) -> str:
        return str(position)

    where = name

    def digest(self) -> str:
        return ""


def test_remote_files_are_fetched_together_and_stay_in_order() -> None:
    files = Slow(40)
    pixels = source_of(files).read("train", np.arange(40)[::-1])
    assert pixels.pixels_BSSC[:, 0, 0, 1].tolist() == [0 if i == 3 else i for i in range(40)][::-1]
    assert pixels.broken == {36: "3: gone"}
    assert files.most == 16


class Bucket(http.server.BaseHTTPRequestHandler):
    """As much of S3 as reading objects takes; nothing is signed."""

    objects: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        data = self.objects.get(unquote(urlsplit(self.path).path))
        if data is None or "Authorization" in self.headers:
            self.send_response(404 if data is None else 403)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first, last = 0, len(data) - 1
        if wanted := self.headers.get("Range"):
            start, _, stop = wanted.removeprefix("bytes=").partition("-")
            first, last = int(start), min(last, int(stop))
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first : last + 1])

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def bucket_address() -> Iterator[str]:
    Bucket.objects = {f"/bucket/deep/{name}": data for name, data in {"a b%20,é.png": RED, "2.png": BLUE}.items()}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_pyarrow_reads_from_a_server_that_speaks_s3(bucket_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    options = f"anonymous=true&region=eu-west-1&scheme=http&endpoint_override={bucket_address}"
    source = source_of(paths(f"s3://bucket/deep?{options}", "a b%20,é.png", "2.png", "3.png"))
    pixels = source.read("train", np.array([1, 0, 2]))
    assert pixels.pixels_BSSC[:2, 0, 0].tolist() == [[0, 0, 255], [255, 0, 0]]
    assert list(pixels.broken) == [2]
    assert pixels.broken[2].startswith("s3://bucket/deep/3.png: ")
    assert bucket_address not in source.listing.name(0) + source.listing.where(0)
    # Tables of vectors are opened in the same way.
    written = io.BytesIO()
    pq.write_table(pa.table({"id": [7, 8]}), written)
    Bucket.objects["/bucket/deep/my items.parquet"] = written.getvalue()
    table = open_source(f"s3://bucket/deep/my items.parquet?{options}")
    assert [batch["id"].to_pylist() for batch in table.read(["id"], 0)] == [[7, 8]]
