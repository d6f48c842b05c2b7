"""What is wrong with object storage: addresses, credentials, rights, servers, and the disk of local copies.

``{store}`` is a bucket that holds ``data``, a folder of embeddings that is in order, ``{data}`` the same on the disk,
and ``{tmp}`` the folder above it. Each word must occur in the one line of the error. Run by ``test_bad_store``.
"""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ray_backfill.core.runkey import RunKey
from ray_backfill.core.stages import begin_stage, finish_stage
from ray_backfill.core.store_path import path_of
from tests.faulty_store import WRITES, Faults
from tests.object_store import free_port


@dataclass
class Place:
    """Where a case is set up."""

    faults: Faults
    patch: pytest.MonkeyPatch
    tmp: Path
    store: str


Change = Callable[[Place], object]


@dataclass(frozen=True)
class Case:
    """Arguments after the command, what must occur in the error, and what is wrong."""

    arguments: str
    words: tuple[str, ...]
    change: Change = lambda place: None
    command: str = "simulate"

    @property
    def name(self) -> str:
        return f"{self.command} {self.arguments}: {self.words[0]}"


def out(*words: str, change: Change = lambda place: None) -> Case:
    return Case("--data {data} --out {store}/run", words, change)


def data(*words: str, change: Change = lambda place: None) -> Case:
    return Case("--data {store}/data --out {tmp}/out", words, change)


def answered(fault: str, *methods: str, to: str = "") -> Change:
    """Requests of these methods, or of all, whose address holds this, have this fault."""

    def change(place: Place) -> None:
        place.faults.rule = lambda method, path: (
            fault if (not methods or method in methods) and to in path and "/.lock" not in path else ""
        )

    return change


def variables(**values: str | None) -> Change:
    """Environment variables; None deletes one, {tmp} and {port} are filled in."""

    def change(place: Place) -> None:
        for name, value in values.items():
            if value is None:
                place.patch.delenv(name, raising=False)
            else:
                place.patch.setenv(name, value.format(tmp=place.tmp, port=free_port()))

    return change


def file(content: str, **names: str) -> Change:
    """A file, which environment variables name; there are no other credentials."""

    def change(place: Place) -> None:
        (place.tmp / "file").write_text(content)
        variables(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, **names)(place)

    return change


def objects(**contents: str) -> Change:
    """Objects in the bucket; __ stands for /."""

    def change(place: Place) -> None:
        for name, content in contents.items():
            (path_of(place.store) / name.replace("__", "/")).write_text(content)

    return change


def other_run(place: Place) -> None:
    stage = path_of(place.store) / "run" / "results"
    begin_stage(stage, RunKey("simulation", {"points": 7}))
    finish_stage(stage)


def https(place: Place) -> None:
    place.patch.setenv("AWS_ENDPOINT_URL", os.environ["AWS_ENDPOINT_URL"].replace("http:", "https:"))


def full_disk(place: Place) -> None:
    """The disk of the copies is full: what is written there goes to /dev/full."""
    really_open = Path.open

    def opened(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        is_copy = path.suffix == ".tmp" and "copies" in path.parts
        return really_open(Path("/dev/full"), mode, buffering=0) if is_copy else really_open(path, mode, *more, **named)

    place.patch.setattr(Path, "open", opened)


def without(library: str) -> Change:
    return lambda place: place.patch.setitem(sys.modules, library, None)


RIGHT = "give these credentials the right to"
ADDRESSES = [
    Case("--data {data} --out s3://", ("s3:// needs a bucket, such as s3://bucket/folder",)),
    Case("--data {data} --out s3://key:hidden-word@bucket/run", ("credentials come from the environment",)),
    Case("--data s3://key:hidden-word@bucket/run --out {tmp}/out", ("credentials come from the environment",)),
    Case("--data {data} --out {store}/../run", ("has no options and no ..",)),
    Case("--data {data} --out {store}/run?region=eu-west-1", ("has no options", "AWS_ENDPOINT_URL")),
    Case("--data {store}/data?region=eu-west-1 --out {tmp}/out", ("has no options",)),
    Case("--data {data} --out s3://no-such-bucket-here/run", ("there is no such bucket; make it",)),
    Case("--data s3://no-such-bucket-here/data --out {tmp}/out", ("there is no such bucket; make it",)),
    Case("--data {store} --out {tmp}/out", ("gallery.parquet is missing",)),
    Case("--data {store}/nothing --out {tmp}/out", ("/nothing is not a folder; give a folder",)),
    Case("--data {store}/data/gallery.parquet --out {tmp}/out", ("gallery.parquet is not a folder",)),
    Case("--data {data} --out {store}/data/gallery.parquet", ("data/gallery.parquet is a file; give a folder",)),
    Case("--data {data} --out {store}/data/gallery.parquet/run", ("data/gallery.parquet is a file; give a folder",)),
    Case("--data {data} --truth qrels {store}/data --out {tmp}/out", ("{store}/data",)),
    Case("{store}/data", ("holds no results",), command="report"),
    out("belongs to a run with other settings", "--overwrite", change=other_run),
    out("run/results holds other files", "choose another --out", change=objects(run__results__notes="mine")),
    out("s3:// needs obstore, which is not installed; type: python -m pip install", change=without("obstore")),
    data("s3:// needs boto3, which is not installed; type: python -m pip install", change=without("boto3")),
]
NONE = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
CREDENTIALS = [
    out("no credentials; set AWS_ACCESS_KEY_ID and", change=variables(**NONE)),
    out("The config profile (nobody) could not be found", change=variables(AWS_PROFILE="nobody")),
    out(
        "Unable to parse config file: {tmp}/file",
        change=file("[default\nhidden-word", AWS_SHARED_CREDENTIALS_FILE="{tmp}/file"),
    ),
    data(
        "Partial credentials found in shared-credentials-file",
        change=file("[default]\naws_access_key_id = hidden-word\n", AWS_SHARED_CREDENTIALS_FILE="{tmp}/file"),
    ),
    data("Partial credentials found in env", "AWS_SECRET", change=variables(AWS_SECRET_ACCESS_KEY=None)),
    out(
        "Error when retrieving credentials from container-role",
        change=variables(AWS_CONTAINER_CREDENTIALS_FULL_URI="http://127.0.0.1:{port}/x", **NONE),
    ),
    out(
        "credentials cannot be renewed",
        change=variables(AWS_WEB_IDENTITY_TOKEN_FILE="/nothing", AWS_ROLE_ARN="arn:aws:iam::1:role/nobody", **NONE),
    ),
    out("the credentials have expired (ExpiredToken); renew them", change=answered("expired")),
    data("the credentials have expired (ExpiredToken); renew them", change=answered("expired")),
    data("the store does not accept these credentials (InvalidAccessKeyId)", change=answered("bad key")),
    Case("--data {data} --out gs://bucket/run", ("Google gives no credentials; name a file",)),
    Case(
        "--data gs://bucket/data --out {tmp}/out", ("Google gives no credentials; name a file",),
        file("hidden-word", GOOGLE_APPLICATION_CREDENTIALS="{tmp}/file"),
    ),
]  # fmt: skip
RIGHTS = [
    data(f"the store refuses this (AccessDenied); {RIGHT} list it", change=answered("denied", to="list-type")),
    data(f"the store refuses this (AccessDenied); {RIGHT} read it", change=answered("denied", to="gallery")),
    out(f"the store refuses this (AccessDenied); {RIGHT} write it", change=lambda p: p.faults.always("denied", "PUT")),
    out("the store is full (QuotaExceeded); free some space", change=lambda p: p.faults.always("quota", *WRITES)),
    out("the store is full (XMinioStorageFull)", change=lambda p: p.faults.always("minio full", *WRITES)),
]
SERVERS = [
    out("the bucket is in another region; set AWS_REGION", change=answered("elsewhere")),
    out("no object storage is there; correct AWS_ENDPOINT_URL", change=lambda p: p.faults.always("page")),
    data("no object storage is there; correct AWS_ENDPOINT_URL", change=answered("page")),
    out("no answer to use (404 Not Found); check AWS_ENDPOINT_URL", change=lambda p: p.faults.always("no page")),
    data("no answer to use (404 Not Found); check AWS_ENDPOINT_URL", change=lambda p: p.faults.always("no page")),
    out("no answer to use (ConnectionRefused)", change=variables(AWS_ENDPOINT_URL="http://127.0.0.1:{port}")),
    out("its host has no address", change=variables(AWS_ENDPOINT_URL="http://nobody.invalid")),
    out("Invalid endpoint: here", "AWS_", change=variables(AWS_ENDPOINT_URL="here")),
    out("no https there (InvalidContentType); correct AWS_ENDPOINT_URL", change=https),
    out("no answer to use (TimedOut); check AWS_ENDPOINT_URL", change=answered("hang")),
    data("no answer to use (TimedOut); check AWS_ENDPOINT_URL", change=answered("hang")),
    data("no answer to use (IncompleteMessage)", change=answered("reset")),
    data("no answer to use (InternalError)", change=answered("internal")),
    out("no answer to use (503 Service Unavailable)", change=lambda p: p.faults.always("slow down")),
]
COPIES = [
    data(
        "{tmp}/file: file exists", "name another folder in RAY_BACKFILL_CACHE",
        change=lambda p: ((p.tmp / "file").write_text(""), variables(RAY_BACKFILL_CACHE="{tmp}/file")(p)),
    ),
    data("/proc/nothing: ", "name another folder in", change=variables(RAY_BACKFILL_CACHE="/proc/nothing")),
    data("RAY_BACKFILL_CACHE_GB must be a number", "'much'", change=variables(RAY_BACKFILL_CACHE_GB="much")),
    data("no space left on device; free some space there", "copies", change=full_disk),
]  # fmt: skip
CASES = [*ADDRESSES, *CREDENTIALS, *RIGHTS, *SERVERS, *COPIES]
