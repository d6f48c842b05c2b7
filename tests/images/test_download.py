import errno
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.images.datasets import PublishedSettings, download
from ray_backfill.images.datasets.folders import ImageNetSettings, Places365Settings
from ray_backfill.images.download import RemoteArchive, fetch_folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tar(members: dict[str, bytes], link: str = "") -> bytes:
    """``link``: where a link among the members leads."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        if link:
            info = tarfile.TarInfo("thing/link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            archive.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


GOOD = tar({"thing/a.bin": b"a" * 5000, "thing/deep/b.txt": b"b"})


@dataclass
class Server:
    """Answers every request with ``content``, but with ``status``, and only its first ``sent`` bytes."""

    content: bytes = GOOD
    status: int = 200
    sent: int | None = None
    requests: list[tuple[str, str]] = field(default_factory=list)
    url: str = ""

    def archive(self) -> RemoteArchive:
        return RemoteArchive(f"{self.url}/thing.tar.gz", hashlib.md5(self.content).hexdigest(), "thing")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append((self.path, self.headers["User-Agent"]))
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(state.content)))
            self.end_headers()
            self.wfile.write(state.content[: state.sent])

        def log_message(self, format: str, *args: object) -> None:
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


def test_fetches_and_unpacks_and_leaves_nothing_else(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "new" / "root"
    assert fetch_folder(server.archive(), root) == root / "thing"
    assert (root / "thing/a.bin").read_bytes() == b"a" * 5000
    assert (root / "thing/deep/b.txt").read_bytes() == b"b"
    assert names_in(root) == ["thing"]
    assert server.requests == [("/thing.tar.gz", "ray-backfill")]
    assert capsys.readouterr().err.startswith(f"download thing.tar.gz: {len(GOOD):,} bytes in ")


def test_an_archive_in_the_root_is_used_and_kept(server: Server, tmp_path: Path) -> None:
    (tmp_path / "thing.tar.gz").write_bytes(GOOD)
    fetch_folder(server.archive(), tmp_path)
    assert names_in(tmp_path) == ["thing", "thing.tar.gz"]
    assert server.requests == []


@pytest.mark.parametrize("there", [False, True])
def test_a_wrong_checksum_names_both(server: Server, tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "thing.tar.gz").write_bytes(GOOD)
    with pytest.raises(InputError) as caught:
        fetch_folder(replace(server.archive(), md5="0" * 32), tmp_path)
    assert "0" * 32 in str(caught.value)
    assert server.archive().md5 in str(caught.value)
    assert names_in(tmp_path) == ["thing.tar.gz"] * there
    assert len(server.requests) == (not there)


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"status": 404}, "404"), ({"sent": 50}, "50 bytes read"), ({"url": "http://127.0.0.1:9"}, "refused")],
)
def test_a_failing_download_says_what_to_do_by_hand(
    server: Server, tmp_path: Path, change: dict[str, Any], problem: str
) -> None:
    vars(server).update(change)
    with pytest.raises(InputError, match=rf"cannot download {server.url}/thing\.tar\.gz.*{problem}.*put it into"):
        fetch_folder(server.archive(), tmp_path)
    assert names_in(tmp_path) == []


def test_a_full_disk_is_no_matter_of_the_network(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.move", full)
    with pytest.raises(InputError, match=rf"cannot write {tmp_path}/thing: No space left on device"):
        fetch_folder(server.archive(), tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (tar({"thing/a": b"", "../outside": b"x"}), "outside"),
        (tar({"thing/a": b"", "thing/link/outside": b"x"}, link="/tmp"), "link to an absolute path"),
        (tar({"other/a": b""}), "has no folder thing: remove it"),
        (b"no tar file at all", "cannot unpack"),
    ],
    ids=["outside", "link", "other", "none"],
)
def test_archives_of_another_kind_leave_nothing(server: Server, tmp_path: Path, content: bytes, problem: str) -> None:
    server.content = content
    root = tmp_path / "root"
    with pytest.raises(InputError, match=problem):
        fetch_folder(server.archive(), root)
    assert names_in(root) == []
    assert names_in(tmp_path) == ["root"]


def test_what_is_there_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing" / "mine").write_text("mine")
    with pytest.raises(InputError, match="thing exists, but is not the complete data set: move it away"):
        fetch_folder(server.archive(), tmp_path)
    assert (tmp_path / "thing" / "mine").read_text() == "mine"


def test_a_root_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        fetch_folder(server.archive(), tmp_path / "file" / "below")


def test_a_stop_in_the_middle_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: tarfile.TarFile, path: Path, filter: str) -> None:
        (Path(path) / "thing").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "extractall", stop)
    with pytest.raises(KeyboardInterrupt):
        fetch_folder(server.archive(), tmp_path)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("kind", [ImageNetSettings, Places365Settings])
def test_data_sets_behind_an_account_or_a_licence_say_where(kind: type[PublishedSettings]) -> None:
    with pytest.raises(InputError, match=r"cannot be downloaded by a program.*http.*train/"):
        download(kind(root="x"))


def test_a_python_that_cannot_unpack_safely_says_how_to_do_it_by_hand(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    with pytest.raises(InputError, match=rf"3\.11\.4 or later.*fetch {server.url}/thing.*tar -xzf thing\.tar\.gz"):
        fetch_folder(server.archive(), tmp_path)
    assert server.requests == []
    assert names_in(tmp_path) == []
