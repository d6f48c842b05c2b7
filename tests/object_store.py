"""Servers of S3 in processes of their own, and what clients need to find them."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

# Name -> command that serves S3 at a port, and the variable that names the port.
SERVERS = {
    "moto": "import os; from moto.server import main; main(['-p', os.environ['PORT']])",
    "ministack": "import os, runpy, sys; sys.argv[1:] = ['ministack.app:app', '-b', '127.0.0.1:' + os.environ['PORT']];"
    " runpy.run_module('hypercorn', run_name='__main__')",
}


# Servers of S3 look at who signs, not at the signature.
_ANYBODY = "test/20260101/us-east-1/s3/aws4_request"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(name: str, folder: Path) -> Iterator[str]:
    """The address of a new server of S3, which has no buckets. folder: for its log."""
    port = free_port()
    environment = {
        **os.environ,
        "PORT": str(port),
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "IOT_MTLS_ENABLED": "0",
    }
    with (folder / f"{name}.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVERS[name]], env=environment, cwd=folder, stdout=log, stderr=log
        )
    try:
        for _ in range(600):
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None, (folder / f"{name}.log").read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def client_variables(endpoint: str, cache: Path) -> Mapping[str, str]:
    """Environment variables with which a process uses this server. cache: folder of its local copies."""
    return {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "secret-of-tests",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "RAY_BACKFILL_CACHE": str(cache),
    }


def new_bucket(endpoint: str) -> str:
    """The name of a bucket that this has made."""
    import boto3

    name = f"bucket-{uuid4().hex[:12]}"
    boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="x"
    ).create_bucket(Bucket=name)
    return name


@contextmanager
def google_like(s3: str) -> Iterator[str]:
    """The address of a server that speaks the XML interface of Google Cloud Storage, by translation to a server of S3.

    Both have the same requests; conditions, copies and versions have other headers. Google's versions are numbers.
    """
    marks: dict[str, str] = {}

    class Translator(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def translate(self) -> None:
            google = ("x-goog-", "authorization")
            headers = {name: value for name, value in self.headers.items() if not name.lower().startswith(google)}
            headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={_ANYBODY}, SignedHeaders=host, Signature=0"
            if (version := self.headers.get("x-goog-if-generation-match")) == "0":
                headers["If-None-Match"] = "*"
            elif version is not None:
                headers["If-Match"] = marks.get(version, '"none"')
            if source := self.headers.get("x-goog-copy-source"):
                headers["x-amz-copy-source"] = source
            connection = HTTPConnection(s3.removeprefix("http://"))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            place = self.path.replace("%2D", "-")  # of bucket's names
            connection.request(self.command, place, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "transfer-encoding", "content-length", "server", "date"):
                    self.send_header(name, value)
            if mark := answer.headers.get("ETag"):
                version = str(int(mark.strip('"').partition("-")[0][:15], 16))
                marks[version] = mark
                self.send_header("x-goog-generation", version)
            length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = translate

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Translator)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
