"""Credentials are those that boto3 finds; they are renewed before they expire, and are in nothing that is written."""

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest

from ray_backfill.core.copies import cache_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.store_path import in_store, path_of
from ray_backfill.core.stores import Bucket, open_bucket
from tests.bad_folder import SPLITS, write_split
from tests.command import Command
from tests.faulty_store import Faults

SECRET, TOKEN = "wJalrXUtnFEMI-secret-of-a-test", "IQoJb3JpZ2lu-token-of-a-test"
pytestmark = pytest.mark.parametrize("s3_server", ["moto"], indirect=True)


class Giver:
    """A server of credentials as containers have it: each answer has another key. minutes: how long they are valid."""

    def __init__(self) -> None:
        self.minutes, self.given = 60.0, list[datetime]()

    def answer(self) -> bytes:
        self.given.append(datetime.now(UTC) + timedelta(minutes=self.minutes))
        expires = self.given[-1].strftime("%Y-%m-%dT%H:%M:%SZ")
        key = f"ASIAKEY{len(self.given)}"
        return json.dumps(
            {"AccessKeyId": key, "SecretAccessKey": SECRET, "Token": TOKEN, "Expiration": expires}
        ).encode()


@pytest.fixture
def giver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Giver]:
    of_container = Giver()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = of_container.answer()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{server.server_port}/")
        yield of_container
        server.shutdown()


@pytest.fixture
def no_keys(store: str, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> Faults:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    open_bucket.cache_clear()
    return faults


def of_environment(folder: Path, patch: pytest.MonkeyPatch) -> str:
    patch.setenv("AWS_ACCESS_KEY_ID", "AKIAENVIRONMENT")
    patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    patch.setenv("AWS_SESSION_TOKEN", TOKEN)
    return "AKIAENVIRONMENT"


def of_profile(folder: Path, patch: pytest.MonkeyPatch) -> str:
    text = f"[mine]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = {SECRET}\naws_session_token = {TOKEN}\n"
    (folder / "credentials").write_text(f"[default]\naws_access_key_id = A\naws_secret_access_key = B\n{text}")
    patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    patch.setenv("AWS_PROFILE", "mine")
    return "AKIAPROFILE"


def of_web_identity(folder: Path, patch: pytest.MonkeyPatch) -> str:
    (folder / "token").write_text("a token of a cluster")
    patch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(folder / "token"))
    patch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/of-a-test")
    return "ASIA"  # the server's STS gives a random one


@pytest.mark.parametrize("source", [of_environment, of_profile, of_web_identity])
def test_where_credentials_come_from(
    store: str, no_keys: Faults, tmp_path: Path, source: Callable[[Path, pytest.MonkeyPatch], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    key = source(tmp_path, monkeypatch)
    (path_of(store) / "file").write_text("content")
    assert (path_of(store) / "file").read_text() == "content"
    assert no_keys.users
    assert all(user.startswith(key) for user in no_keys.users)


def test_a_public_bucket_is_read_without_credentials(
    store: str, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(store) / "file"
    assert in_store(path)
    bucket = path.bucket.name
    boto3.client("s3").put_object(Bucket=bucket, Key=path.key, Body=b"content", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for public in (f"other,{bucket}", "other"):
        monkeypatch.setenv("RAY_BACKFILL_PUBLIC_BUCKETS", public)
        open_bucket.cache_clear()
        faults.users.clear()
        if bucket in public:
            assert path.read_text() == "content"
            assert not faults.users
        else:
            with pytest.raises(InputError, match="if it is public, name it in RAY_BACKFILL_PUBLIC_BUCKETS"):
                path.read_text()
        google: Any = open_bucket(Bucket("gs", bucket))  # its servers are not asked
        assert google.config["skip_signature"] == str(bucket in public).lower()


@pytest.mark.parametrize("minutes", [1, 11, 14.5, 16, 60])
@pytest.mark.usefixtures("no_keys")
def test_credentials_are_asked_for_again_before_they_expire(store: str, giver: Giver, minutes: float) -> None:
    giver.minutes = minutes
    for _ in range(2):
        client: Any = open_bucket(Bucket("s3", path_of(store).parts[1]))
        until = client.credential_provider()["expires_at"]
        assert until <= giver.given[-1] or minutes < 9  # shorter ones are asked for at each use
    assert (len(giver.given) > 1) == (minutes < 15)


def test_renewed_credentials_are_used(
    store: str, giver: Giver, no_keys: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver.minutes = 1
    monkeypatch.setattr("ray_backfill.core.stores._CREDENTIALS_MIN", 0)
    for number in range(3):
        (path_of(store) / f"{number}").write_text("content")
    assert len(no_keys.users) >= 3
    assert no_keys.users <= {f"ASIAKEY{number}" for number in range(20)}


def test_no_credentials_are_in_what_is_written(
    store: str, giver: Giver, no_keys: Faults, tmp_path: Path, command: Command
) -> None:
    for split, columns in SPLITS.items():
        write_split(tmp_path, split, columns)
    options = ("--methods", "old", "rm_naive", "--orders", "random", "--metrics", "CMC@1", "--points", "2")
    ended = command("simulate", "--data", tmp_path, "--out", f"{store}/run", *options)
    assert ended.code == 0
    no_keys.always("denied", "PUT")
    refused = command("simulate", "--data", tmp_path, "--out", f"{store}/other", *options)
    assert refused.code == 2
    files = [*path_of(f"{store}/run").rglob("*"), *(path for path in cache_folder().rglob("*") if path.is_file())]
    assert len(files) > 20
    for content in (*(path.read_bytes() for path in files), ended.shown.encode(), refused.shown.encode()):
        assert not any(word.encode() in content for word in (SECRET, TOKEN, *no_keys.users))
