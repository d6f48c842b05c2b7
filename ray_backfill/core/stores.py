"""Object storage: what a URI names, requests to buckets, and local copies of objects.

Requests are those of obstore, with its retries. Credentials are those that boto3 finds (environment, files, instance
roles), or Google's defaults; nothing here takes, logs or writes any. ``StorePath`` in ``store_path`` is a folder or
file in a bucket for everything that takes a Path.

What a store guarantees is what this package relies on: an object appears whole or not at all (a PUT is atomic), a
reader sees the newest one (strong consistency), and a conditional PUT (If-None-Match, If-Match) succeeds for one of
several writers. S3, Google Cloud Storage, MinIO, Ceph and R2 have all three.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode
from uuid import uuid4

from ray_backfill.core.copies import cache_folder
from ray_backfill.core.errors import InputError, why_not_installed
from ray_backfill.core.progress import say, task

if TYPE_CHECKING:  # slow to import: help and errors do without
    from obstore.store import ObjectStore
    from pyarrow import fs

SCHEMES = ("s3", "gs")
# Bytes of one request of a download, and requests at a time.
_PIECE, _AT_ONCE = 16 << 20, 8
# Downloads of more bytes show their progress.
_MANY = 64 << 20
# A request, all its retries, and the connection, in seconds.
_TIMEOUT_S, _RETRY_S, _CONNECT_S = 30, 60, 5
# The bound of the folder of local copies in GB, and the seconds after its last use in which a copy stays.
CACHE_GB, _IN_USE_S = "RAY_BACKFILL_CACHE_GB", 60


@dataclass(frozen=True)
class Entry:
    """An object. size: in bytes. mark: its ETag, which changes with its content. modified: seconds since 1970.

    version: what Google's conditions compare in place of the ETag; listings do not tell it.
    """

    key: str
    size: int
    mark: str
    modified: float
    version: str = ""

    @property
    def stamp(self) -> int:
        """Whole seconds that stand for the content: the time of change of a local copy."""
        return int.from_bytes(blake2b(f"{self.mark} {self.size}".encode(), digest_size=4).digest()) >> 2


@dataclass(frozen=True)
class Bucket:
    """A bucket of a store; equal in every process, so it can be sent to workers, which open it with their own rights.

    Every method raises InputError, in one line, where the store cannot be reached or refuses.
    """

    scheme: str
    name: str

    def head(self, key: str) -> Entry | None:
        """The object of this key; None if there is none."""
        import obstore

        with self._asking(key):
            try:
                return _entry(obstore.head(open_bucket(self), key)) if key else None
            except FileNotFoundError as error:
                self._refuse_if_missing(error)
                return None

    def below(self, key: str) -> list[Entry]:
        """All objects below a folder, sorted by key; empty ones without a dot are folders to other clients."""
        import obstore

        with self._asking(key):
            try:
                pages = obstore.list(open_bucket(self), f"{key}/" if key else None, chunk_size=1000)
                entries = [_entry(meta) for page in pages for meta in page]
            except FileNotFoundError as error:
                self._refuse_if_missing(error)
                return []
        files = (entry for entry in entries if entry.key != key and (entry.size or "." in entry.key.rpartition("/")[2]))
        return sorted(files, key=lambda entry: entry.key)

    def children(self, key: str) -> tuple[list[str], list[Entry]]:
        """Keys of the folders, and the objects, directly in a folder."""
        import obstore

        with self._asking(key):
            try:
                listed = obstore.list_with_delimiter(open_bucket(self), f"{key}/" if key else None)
            except FileNotFoundError as error:
                self._refuse_if_missing(error)
                return [], []
        return list(listed["common_prefixes"]), [_entry(meta) for meta in listed["objects"] if meta["path"] != key]

    def read(self, key: str) -> tuple[bytes, Entry]:
        """A small object. Raises FileNotFoundError if there is none."""
        import obstore

        with self._asking(key):
            got = obstore.get(open_bucket(self), key)
            return bytes(got.bytes()), _entry(got.meta)

    def tail(self, key: str, n_bytes: int) -> bytes:
        """The last bytes of an object, all if it has fewer. Raises FileNotFoundError if there is none."""
        import obstore

        with self._asking(key):
            last: Any = {"range": {"suffix": n_bytes}}
            return bytes(obstore.get(open_bucket(self), key, options=last).bytes())

    def put(self, key: str, content: bytes | Path, only_if: Entry | None = None, is_new: bool = False) -> Entry:
        """Write an object. is_new: only if there is none. only_if: only if it is still this one, not of a listing.

        Raises:
            FileExistsError: The condition does not hold. After a reply that was lost it may be this very content.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with self._asking(key):
            mode: Any = "create" if is_new else "overwrite"
            if only_if is not None:
                mode = {"e_tag": only_if.mark} | ({"version": only_if.version} if only_if.version else {})
            n_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
            try:
                done = obstore.put(open_bucket(self), key, content, mode=mode, chunk_size=_PIECE)
                return Entry(key, n_bytes, str(done["e_tag"]), time(), done["version"] or "")
            except (AlreadyExistsError, PreconditionError) as error:
                raise FileExistsError(f"{self.uri(key)} is there") from error

    def delete(self, *keys: str) -> None:
        """Delete objects; those that are not there are passed over."""
        import obstore

        for key in keys:  # not in bulk: servers answer that one differently, and only leftovers are deleted
            with self._asking(key), suppress(FileNotFoundError):
                obstore.delete(open_bucket(self), key)

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket, by the store itself."""
        import obstore

        with self._asking(key):
            obstore.copy(open_bucket(self), key, to)

    def fetch(self, entries: list[Entry]) -> list[Path]:
        """Local copies of these objects, as new as they are."""
        copies = [self.copy_of(entry.key) for entry in entries]
        missing = [(entry, to) for entry, to in zip(entries, copies, strict=True) if not is_copy(entry, to)]
        n_bytes = sum(entry.size for entry, _ in missing)
        if missing:
            _make_room(n_bytes)
        with (
            task(f"fetch {self.uri('')}", n_bytes >> 20, "MB") if n_bytes > _MANY else _nothing() as shown,
            ThreadPoolExecutor(min(_AT_ONCE, max(1, len(missing)))) as pool,
        ):
            for entry, _ in zip(missing, pool.map(lambda pair: self._download(*pair), missing), strict=True):
                if shown is not None:
                    shown.advance(entry[0].size >> 20)
        for path in copies:
            with suppress(OSError):  # another process has just made room
                os.utime(path, (time(), path.stat().st_mtime))
        return copies

    def keep(self, entry: Entry, content: Path) -> None:
        """Move a local file to where the copy of an object is, whose content it has."""
        to = self.copy_of(entry.key)
        to.parent.mkdir(parents=True, exist_ok=True)
        os.utime(content, (time(), entry.stamp))
        content.replace(to)

    def temporary(self, key: str) -> Path:
        """A new local file name, beside the copy of an object."""
        to = self.copy_of(key)
        to.parent.mkdir(parents=True, exist_ok=True)
        return to.with_name(f".{to.name}.{uuid4().hex[:12]}.tmp")

    def copy_of(self, key: str) -> Path:
        """Where the local copy of an object or a folder is, if there is one."""
        return cache_folder() / self.scheme / self.name / key

    def uri(self, key: str) -> str:
        """The address of an object."""
        return f"{self.scheme}://{self.name}/{key}"

    def _download(self, entry: Entry, to: Path) -> None:
        """Fetch an object in pieces, all of one content."""
        import obstore

        to.parent.mkdir(parents=True, exist_ok=True)
        half = to.with_name(f".{to.name}.{uuid4().hex[:12]}.tmp")
        try:
            with half.open("wb") as file, self._asking(entry.key):
                for start in range(0, entry.size, _PIECE):
                    stop = min(start + _PIECE, entry.size)
                    same: Any = {"range": (start, stop), "if_match": entry.mark}
                    piece = obstore.get(open_bucket(self), entry.key, options=same).bytes()
                    if len(piece) != stop - start:
                        raise OSError(f"{self.uri(entry.key)} ended after {start + len(piece):,} bytes")
                    file.write(piece)
            os.utime(half, (time(), entry.stamp))
            half.replace(to)
        finally:
            half.unlink(missing_ok=True)

    def _refuse_if_missing(self, error: FileNotFoundError) -> None:
        if "NoSuchBucket" in str(error) or "bucket does not exist" in str(error).lower():
            raise InputError(f"{self.uri('')}: there is no such bucket; make it, or correct its name") from error

    @contextmanager
    def _asking(self, key: str) -> Iterator[None]:
        """Raises InputError for what the store refuses."""
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise InputError(
                f"{self.uri(key)}: the store refuses this ({_code(error)}); give these credentials the right to list, "
                "read, write and delete below it, or renew them if they have expired"
            ) from error
        except FileNotFoundError:
            raise
        except BaseError as error:
            text = str(error)
            if "NoSuchBucket" in text:
                raise InputError(f"{self.uri('')}: there is no such bucket; make it, or correct its name") from error
            if any(word in text for word in ("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "507 ")):
                raise InputError(f"{self.uri(key)}: the store is full; free some space, then run again") from error
            raise InputError(f"{self.uri(key)}: no answer to use from the store ({_code(error)}); {_REACH}") from error


_REACH = "check the address (AWS_ENDPOINT_URL), the region and the network, then run the same command again"


def _code(error: BaseException) -> str:
    """What a store said, in a few words: obstore's text is a page."""
    import re

    text = str(error)
    code = re.search(r"<Code>(.*?)</Code>", text) or re.search(r"status:? ?(?:code )?(\d{3}[^,:\n]*)", text)
    if code is None and "timed out" in text.lower():
        return "timed out"
    if code is None:
        code = re.search(r"(?:Caused by:\s*|error: )([^\n]{3,100})(?![\s\S]*Caused by)", text)
    return code[1].strip() if code else type(error).__name__


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


@lru_cache(maxsize=64)
def open_bucket(bucket: Bucket) -> "ObjectStore":
    """The client of a bucket, one in each process."""
    if lacking := why_not_installed("obstore", "boto3"):
        raise InputError(f"{bucket.scheme}:// {lacking}")
    from obstore.store import GCSStore, S3Store

    how: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=_TIMEOUT_S),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "allow_http": True,
        },
        "retry_config": {"max_retries": 8, "retry_timeout": timedelta(seconds=_RETRY_S)},
    }
    if bucket.scheme == "gs":
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):  # Google's own clients read it, too
            place = emulator if "://" in emulator else f"http://{emulator}"
            fake = f'{{"gcs_base_url": "{place}", "disable_oauth": true, "client_email": "", "private_key": ""'
            how["config"] = {"service_account_key": f'{fake}, "private_key_id": ""}}'}
        return GCSStore(bucket.name, **how)
    import boto3
    from botocore.exceptions import BotoCoreError

    if os.environ.get("AWS_SKIP_SIGNATURE", "").lower() == "true":
        return S3Store(bucket.name, **how)
    try:
        session = boto3.session.Session()
        if session.get_credentials() is None:
            raise InputError(
                f"{bucket.uri('')}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
                "or run where an instance role gives some"
            )
        from obstore.auth.boto3 import Boto3CredentialProvider

        endpoint = session.client("s3", region_name=session.region_name or "us-east-1").meta.endpoint_url
        region = session.region_name
        if "amazonaws.com" not in endpoint:
            how["endpoint"] = endpoint
        elif region is None:
            from pyarrow import fs

            with suppress(OSError):
                region = fs.resolve_s3_region(bucket.name)
        provider = Boto3CredentialProvider(session)
    except BotoCoreError as error:  # a profile that is not there, a file that cannot be read
        raise InputError(f"{bucket.uri('')}: {str(error).splitlines()[0]}; correct AWS_PROFILE or its file") from error
    return S3Store(bucket.name, region=region or "us-east-1", credential_provider=provider, **how)


def _entry(meta: Any) -> Entry:
    modified = meta["last_modified"].timestamp()
    return Entry(meta["path"], meta["size"], str(meta["e_tag"]), modified, meta["version"] or "")


def is_copy(entry: Entry, path: Path) -> bool:
    """Whether a local file is the content of the object. Its time of change stands for the content."""
    try:
        facts = path.stat()
    except OSError:
        return False
    return facts.st_size == entry.size and int(facts.st_mtime) == entry.stamp


def _make_room(n_bytes: int) -> None:
    """Delete the copies that were used longest ago until these bytes fit below the bound.

    An open or mapped file stays readable. Bound: RAY_BACKFILL_CACHE_GB, or half of what is free and used by copies.
    """
    import shutil

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    copies = [(path.stat(), path) for path in folder.rglob("*") if path.is_file()]
    used = sum(facts.st_size for facts, _ in copies)
    given = os.environ.get(CACHE_GB)
    bound = float(given) * 1e9 if given else (shutil.disk_usage(folder).free + used) / 2
    before = used
    for facts, path in sorted(copies, key=lambda copy: copy[0].st_atime):
        if used + n_bytes <= bound or facts.st_atime > time() - _IN_USE_S:
            break
        path.unlink(missing_ok=True)
        used -= facts.st_size
    if used < before:
        say(f"{folder}: {(before - used) / 1e9:.1f} GB of copies deleted, to stay below {bound / 1e9:.1f} GB")


def open_system(uri: str) -> "tuple[fs.FileSystem, str]":
    """The file system of ``scheme://bucket/path?options``, and the path in it, which starts with the bucket.

    Options are those of pyarrow, and ``anonymous=true`` for public buckets. Keys are literal: %20 is no space.

    Raises:
        OSError, pyarrow.ArrowException, NotImplementedError: as pyarrow does.
    """
    import pyarrow as pa
    from pyarrow import fs

    base, _, query = uri.partition("?")
    scheme, _, place = base.partition("://")
    if scheme == "file":
        return fs.FileSystem.from_uri(uri)
    bucket, slash, key = place.rstrip("/").partition("/")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if options.pop("anonymous", "false").lower() == "true":
        if scheme == "s3":  # pyarrow's URIs have no such option
            region = options.pop("region", None) or fs.resolve_s3_region(bucket)
            try:
                return fs.S3FileSystem(anonymous=True, region=region, **options), bucket + slash + key
            except TypeError as error:  # an option of another name
                raise pa.ArrowInvalid(str(error)) from error
        bucket = f"anonymous@{bucket}"
    system, top = fs.FileSystem.from_uri(f"{scheme}://{bucket}" + (f"?{urlencode(options)}" if options else ""))
    return system, top.rstrip("/") + slash + key
