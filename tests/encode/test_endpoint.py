"""Endpoints that break the protocol: none gets the key, holds a run for ever, fills the memory or is paid twice.

The servers are real sockets, which send what no library would.
"""

import asyncio
import base64
import gzip
import json
import logging
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ray_backfill.core.errors import InputError
from ray_backfill.encode.encoder import TEXT, Device
from ray_backfill.encode.kinds import load_model, parse_spec
from ray_backfill.encode.models import openai

TEXTS = ["a cat", "the black cat sat on the mat"]
KEY = "sk-not-to-be-shown"
GOOD = [{"index": 0, "embedding": [1.0, 2.0]}, {"index": 1, "embedding": [3.0, 4.0]}]

Answer = Callable[[socket.socket], None]


def whole(status: str = "200 OK", body: Any = None, *headers: str) -> bytes:
    """An answer as it should be sent. body: bytes, or what JSON holds."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


class Server:
    """Gives these answers to one request after the other, the last one again and again."""

    def __init__(self) -> None:
        self.answers: list[bytes | Answer] = []
        self.requests: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection:
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(65536)
            head, _, body = request.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            while len(body) < length:
                body += connection.recv(65536)
            self.requests.append(head)
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            try:
                connection.sendall(answer) if isinstance(answer, bytes) else answer(connection)
            except OSError:  # the client has had enough
                return

    def close(self) -> None:
        self._listening.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.setenv("OPENAI_BASE_URL", made.url)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(openai, "_FIRST_WAIT_S", 0.001)
    yield made
    made.close()


def load(name: str = "openai:small") -> Any:
    return load_model(parse_spec(name), TEXT, Device())


def one(index: Any, embedding: Any) -> dict[str, Any]:
    return {"index": index, "embedding": embedding}


def refused(*answers: bytes | Answer, by: Server) -> str:
    """The line that these answers end with."""
    by.answers = list(answers)
    with pytest.raises(InputError) as error:
        load().embed(TEXTS, "query")
    line = str(error.value)
    assert "\n" not in line
    assert KEY not in line
    assert "; " in line, "there is a remedy"
    return line


NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([one(0, [1.0]), one(0, [2.0])], r"the indexes \[0, 0\] instead of each of 0 to 1 once"),
        ([one(0, [1.0]), one(2, [2.0])], r"the indexes \[0, 2\]"),
        ([one(0, [1.0]), one(-1, [2.0])], r"the indexes \[0, -1\]"),
        ([one(0, [1.0]), {"embedding": [2.0]}], r"the indexes \[0, None\]"),
        ([one("0", [1.0]), one("1", [2.0])], r"the indexes \['0', '1'\]"),
        ([one(False, [1.0]), one(True, [2.0])], r"the indexes \[False, True\]"),
        ([one([0], [1.0]), one({}, [2.0])], "the indexes"),
        ([*GOOD, one(2, [1.0, 2.0])], "3 vectors for 2 texts"),
        ({"0": [1.0]}, "no list of vectors"),
        ([[1.0], [2.0]], "no list of vectors"),
        ([one(0, [1.0, 2.0]), one(1, [1.0])], r"shapes \(1,\) and \(2,\) instead of one width"),
        ([one(0, [[1.0]]), one(1, [[2.0]])], r"shapes \(1, 1\) instead of one width"),
        ([one(0, [[1.0], 2.0]), one(1, [1.0])], "inhomogeneous"),
        ([one(0, None), one(1, [1.0])], "None instead of numbers"),
        ([one(0, [1.0, None]), one(1, [1.0, 2.0])], r"\[1.0, None\] instead of numbers"),
        ([one(0, ["1.0"]), one(1, ["2.0"])], r"\['1.0'\] instead of numbers"),
        ([one(0, [True]), one(1, [False])], r"\[True\] instead of numbers"),
        ([one(0, {"a": 1}), one(1, {"a": 1})], "instead of numbers"),
        ([one(0, [10**400]), one(1, [1])], "instead of numbers"),
        ([one(0, "!!!"), one(1, "!!!")], "base64|padding"),
        ([one(0, "AAAA"), one(1, "AAAA")], "multiple"),
        ([one(0, ""), one(1, "")], "returned vectors of 0 dimensions"),
        ([one(0, []), one(1, [])], "returned vectors of 0 dimensions"),
        ([one(0, [1.0, 2.0]), one(1, [NAN, 1.0])], "a vector that is not finite for text"),
        ([one(0, [1.0, 2.0]), one(1, [INFINITE, 1.0])], "a vector that is not finite for text"),
        ([one(0, [1.0, 2.0]), one(1, [1e300, 1.0])], "a vector that is not finite for text"),
    ],
)
def test_vectors_that_cannot_be_right_are_used_by_no_text(
    server: Server, rows: Any, says: str, recwarn: pytest.WarningsRecorder
) -> None:
    line = refused(whole(body={"data": rows}), by=server)
    assert re.search(says, line), line
    assert "openai:small" in line
    assert len(server.requests) == 1, "the answer is paid for"
    assert not [str(each.message) for each in recwarn if each.category is RuntimeWarning]


def test_vectors_in_another_order_without_indexes_or_in_base64(server: Server) -> None:
    server.answers = [whole(body={"data": GOOD[::-1]})]
    np.testing.assert_array_equal(load().embed(TEXTS, "query"), [[1, 2], [3, 4]])
    server.answers = [whole(body={"data": [{"embedding": row["embedding"]} for row in GOOD]})]
    np.testing.assert_array_equal(load().embed(TEXTS, "query"), [[1, 2], [3, 4]])
    packed = [one(i, base64.b64encode(struct.pack("<2f", 1 + 2 * i, 2 + 2 * i)).decode()) for i in range(2)]
    server.answers = [whole(body={"data": packed})]
    np.testing.assert_array_equal(load().embed(TEXTS, "query"), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    "bad",
    [
        whole(body=b"<html>We are back soon</html>"),
        whole(body=b""),
        whole(body=[]),
        whole(body=b'{"data": []}'),
        whole(body=b"[" * 100_000),
        whole(body=b"\xff\xfe{"),
        whole(body=b'{"data": %s}' % (b"9" * 10_000)),
        whole("204 No Content", b""),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"",
        whole("200 OK", gzip.compress(bytes(30_000_000)), "Content-Encoding: gzip"),
    ],
)
def test_half_an_answer_is_asked_for_again(server: Server, bad: bytes) -> None:
    server.answers = [bad, whole(body={"data": GOOD})]
    np.testing.assert_array_equal(load().embed(TEXTS, "query"), [[1, 2], [3, 4]])
    assert len(server.requests) == 2
    server.requests.clear()
    line = refused(bad, by=server)
    assert "did not answer in 8 tries" in line
    assert len(server.requests) == 8


@pytest.mark.parametrize("counted", ["many", -5, 0, NAN, INFINITE, [], {}, True, 10**30, None, 2.5])
def test_a_paid_answer_is_not_asked_for_again_because_of_its_counter(server: Server, counted: Any) -> None:
    server.answers = [whole(body={"data": GOOD, "usage": {"total_tokens": counted}})]
    model = load("openai:small#tpm=1000000")
    np.testing.assert_array_equal(model.embed(TEXTS, "query"), [[1, 2], [3, 4]])
    assert len(server.requests) == 1
    assert model.tokens == -(-sum(map(len, TEXTS)) // 4)


@pytest.mark.parametrize(
    ("header", "least", "most"),
    [
        ("3", 3, 3), ("0.25", 0.25, 0.25), ("-1", 0.001, 0.001), ("nan", 0.001, 0.001), ("inf", 60, 60),
        ("1e300", 60, 60), ("-inf", 0.001, 0.001), ("soon", 0.001, 0.001), ("", 0.001, 0.001),
        (30, 20, 30), (900, 60, 60), (-900, 0.001, 0.001), (1e9, 60, 60),  # a date in so many seconds
        ("Wed, 99 Foo 99999 99:99:99 GMT", 0.001, 0.001), ("Mon, 01 Jan 0001 00:00:00 +2359", 0.001, 0.001),
    ],
)  # fmt: skip
def test_any_pause_that_is_asked_for_is_one_that_can_be_made(
    server: Server, monkeypatch: pytest.MonkeyPatch, header: str | float, least: float, most: float
) -> None:
    pauses = list[float]()
    if not isinstance(header, str):
        header = format_datetime(datetime.now(UTC) + timedelta(seconds=header), usegmt=True)
    monkeypatch.setattr(openai, "time", SimpleNamespace(sleep=pauses.append, monotonic=lambda: 0.0))
    server.answers = [whole("429 Too Many", {}, f"Retry-After: {header}"), whole(body={"data": GOOD})]
    load().embed(TEXTS, "query")
    (pause,) = [pause for pause in pauses if pause]
    assert least <= pause <= most


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_takes_the_key_to_another_host(server: Server, status: int) -> None:
    other = Server()
    other.answers = [whole(body={"data": GOOD})]
    place = other.url.replace("http://", "http://user:hidden-word@")
    to = f"Location: {place}/embeddings?access_token=hidden-value#{KEY}"
    line = refused(whole(f"{status} Moved", {}, to), by=server)
    assert f"redirects to {other.url} ({status}), where the key was not sent; export OPENAI_BASE_URL" in line
    assert "hidden" not in line
    assert len(server.requests) == 1
    assert other.requests == []
    other.close()


def trickling_headers(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        connection.sendall(b"X: y\r\n")
        time.sleep(0.05)


def trickling_body(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.05)


def waiting(connection: socket.socket) -> None:
    connection.recv(1)


@pytest.mark.parametrize("slow", [trickling_headers, trickling_body, waiting])
def test_a_request_ends_in_time_however_slowly_it_is_answered(
    server: Server, monkeypatch: pytest.MonkeyPatch, slow: Answer
) -> None:
    monkeypatch.setattr(openai, "_TIMEOUT_S", 0.5)
    monkeypatch.setattr(openai, "_TRIES", 2)
    threads, began = threading.active_count(), time.monotonic()
    line = refused(slow, by=server)
    assert 1.0 <= time.monotonic() - began < 5
    assert "did not answer in 2 tries (TimeoutError within 0.5 s: )" in line
    assert threading.active_count() <= threads + 2, "those of the server"


def test_an_endless_answer_fills_no_memory(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [0]

    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(b" " * 65536)
            sent[0] += 65536

    assert "answers with more than 3 MiB for 2 texts; " in refused(endless, by=server)
    assert sent[0] < 20 << 20
    assert len(server.requests) == 1


def test_the_key_is_in_no_log_and_no_netrc_replaces_it(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("httpx").info("it logs")
        refused(whole("401 Unauthorized", {"error": {"message": f"wrong key:\n{KEY}"}}), by=server)
    assert f"Authorization: Bearer {KEY}".lower().encode() in server.requests[0].lower()
    assert "it logs" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("OPENAI_BASE_URL", "http://user:hidden-word@127.0.0.1/v1", "holds a user or a password; take them out"),
        ("OPENAI_BASE_URL", "http://127.0.0.1:port/v1", "cannot be used: Invalid port"),
        ("ALL_PROXY", "socks5://user:hidden-word@127.0.0.1:1", "a proxy .* cannot be used"),
        ("ALL_PROXY", "ftp://127.0.0.1:1", "a proxy .* cannot be used"),
        ("SSL_CERT_FILE", "/nowhere/ca.pem", "SSL_CERT_FILE .* cannot be used"),
    ],
)
def test_an_environment_that_cannot_be_used_is_one_line(
    server: Server, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=says) as error:
        load()
    assert "\n" not in str(error.value)
    assert "hidden" not in str(error.value)


def test_the_proxy_of_the_environment_is_used(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.answers = [whole(body={"data": GOOD})]
    monkeypatch.setenv("HTTP_PROXY", server.url.removesuffix("/v1"))
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://service.example/v1")
    load().embed(TEXTS, "query")
    assert server.requests[0].startswith(b"POST http://service.example/v1/embeddings ")


def test_a_notebook_has_a_loop_already(server: Server) -> None:
    server.answers = [whole(body={"data": GOOD})]

    async def cell() -> Any:
        return load().embed(TEXTS, "query")

    np.testing.assert_array_equal(asyncio.run(cell()), [[1, 2], [3, 4]])


def test_ctrl_c_ends_a_request_at_once(server: Server) -> None:
    asked: list[float] = []

    def interrupted(connection: socket.socket) -> None:
        time.sleep(0.5)  # until the main thread waits for the answer
        asked.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        waiting(connection)

    server.answers = [interrupted]
    with pytest.raises(KeyboardInterrupt):
        load().embed(TEXTS, "query")
    assert time.monotonic() - asked[0] < 5
