"""Servers of S3 in processes of their own, and what clients need to find them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from uuid import uuid4

# Name -> command that serves S3 at a port, and the variable that names the port.
SERVERS = {
    "moto": "import os; from moto.server import main; main(['-p', os.environ['PORT']])",
    "ministack": "import runpy; runpy.run_module('ministack', run_name='__main__')",
}


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(name: str, folder: Path) -> Iterator[str]:
    """The address of a new server of S3, which has no buckets. folder: for its log."""
    port = free_port()
    environment = {**os.environ, "PORT": str(port), "GATEWAY_PORT": str(port), "SERVICES": "s3"}
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
