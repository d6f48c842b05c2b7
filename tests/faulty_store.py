"""A proxy before a server of S3 that fails as stores and networks do."""

import random
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

WRITES = ("PUT", "POST", "DELETE")
# Name of a fault -> status and code of the answer, which the server behind it never sees.
ANSWERS = {
    "internal": (500, "InternalError"),
    "slow down": (503, "SlowDown"),
    "denied": (403, "AccessDenied"),
    "expired": (403, "ExpiredToken"),
    "bad key": (403, "InvalidAccessKeyId"),
    "full": (507, "InsufficientStorage"),
    "minio full": (507, "XMinioStorageFull"),
    "quota": (403, "QuotaExceeded"),
    "elsewhere": (301, "PermanentRedirect"),
}
XML = {"Content-Type": "application/xml"}
# Faults that pass: clients try again.
PASSING = ("internal", "slow down", "reset", "reset after", "truncated", "slow")


@dataclass
class Faults:
    """What a proxy does. rule: the fault of a request (method, path), "" for none; seen: requests and their faults;
    users: the access keys that signed them.

    Besides ``ANSWERS``: "reset" ends the connection before the request reaches the server, "reset after" when it has
    been done, "truncated" within the body of the answer, "slow" answers after 0.3 s, "hang" never; "undeletable" is how
    S3 refuses a deletion; "unconditional" ignores the conditions of a PUT; "page" and "no page" are those of a server
    of something else.
    """

    rule: Callable[[str, str], str] = lambda method, path: ""
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    users: set[str] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)

    def always(self, fault: str, *methods: str) -> None:
        """From now on this fault, of requests of these methods, or of all."""
        self.rule = lambda method, path: fault if not methods or method in methods else ""

    def some(self, share: float, seed: int, *faults: str) -> None:
        """From now on one of these faults, of this share of the requests. Their order depends on threads."""
        draw = random.Random(seed)
        self.rule = lambda method, path: draw.choice(faults) if draw.random() < share else ""

    def every(self, number: int, *faults: str) -> None:
        """From now on each so-manieth request has one of these faults, in turn."""
        start = len(self.seen)

        def rule(method: str, path: str) -> str:
            turn, rest = divmod(len(self.seen) - start, number)
            return "" if rest else faults[turn % len(faults)]

        self.rule = rule


@contextmanager
def faulty(server: str) -> Iterator[tuple[str, Faults]]:
    """The address of a proxy before a server, and its faults."""
    faults = Faults()
    place = urlsplit(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def handle_one_request(self) -> None:
            with suppress(ConnectionError, TimeoutError):
                super().handle_one_request()
                return
            self.close_connection = True

        def do(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            fault = faults.rule(self.command, self.path)
            faults.users |= set(re.findall(r"Credential=(.*?)/", self.headers.get("authorization") or ""))
            faults.seen.append((self.command, self.path, fault))
            if fault == "reset":
                return self.reset()
            if fault == "hang":
                faults.ended.wait()
                return self.reset()
            if fault == "page":
                return self.answer(200, {"Content-Type": "text/html"}, b"<html><h1>It works!</h1></html>")
            if fault == "undeletable":
                no = b"<Error>%b<Code>AccessDenied</Code><Message>No</Message></Error>"
                refused = b"".join(no % key for key in re.findall(rb"<Key>.*?</Key>", body))
                return self.answer(200, XML, b"<DeleteResult>%b</DeleteResult>" % refused)
            if fault == "no page":
                return self.answer(404, {"Content-Type": "text/html"}, b"<html><h1>Not Found</h1></html>")
            if fault in ANSWERS:
                status, code = ANSWERS[fault]
                told = f"<Error><Code>{code}</Code><Message>said by the proxy</Message></Error>"
                return self.answer(status, XML, told.encode())
            upstream = HTTPConnection(str(place.hostname), place.port, timeout=60)
            asked = {name.lower(): value for name, value in self.headers.items()}
            if fault == "unconditional":
                asked = {name: value for name, value in asked.items() if name not in ("if-match", "if-none-match")}
            upstream.request(self.command, self.path, body, asked)
            got = upstream.getresponse()
            content, headers = got.read(), dict(got.getheaders())
            upstream.close()
            if fault == "reset after":
                return self.reset()
            if fault == "slow":
                time.sleep(0.3)
            self.answer(got.status, headers, content, truncated=fault == "truncated")

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

        def answer(self, status: int, headers: dict[str, str], content: bytes, truncated: bool = False) -> None:
            self.send_response_only(status)
            headers = {name.lower(): value for name, value in headers.items()}
            headers.pop("transfer-encoding", None)
            if self.command != "HEAD":
                headers["content-length"] = str(len(content))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if truncated else content)
            if truncated:
                self.reset()

        def reset(self) -> None:
            # With this, close() sends RST at once.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: Any) -> None:
            """A client that has gone is no error."""

    with Server(("127.0.0.1", 0), Handler) as proxy:
        threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}", faults
        finally:
            faults.ended.set()
            proxy.shutdown()
