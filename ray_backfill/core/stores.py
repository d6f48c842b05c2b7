"""Object storage: what a URI names, requests to buckets, and local copies of objects.

Requests are those of obstore, with its retries. Credentials are those that boto3 finds (environment, files, instance
roles), or Google's defaults; nothing here takes, logs or writes any. ``StorePath`` in ``store_path`` is a folder or
file in a bucket for everything that takes a Path.

What a store guarantees is what this package relies on: an object appears whole or not at all (a PUT is atomic), a
reader sees the newest one (strong consistency), and a conditional PUT (If-None-Match, If-Match) succeeds for one of
several writers. Amazon and Google document all three.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from ray_backfill.core.copies import CACHE, cache_folder
from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, task

if TYPE_CHECKING:  # slow to import: help and errors do without
    from obstore.store import ObjectStore

SCHEMES = ("s3", "gs")
# Bytes of one request of a download, and requests at a time.
_PIECE, _AT_ONCE = 16 << 20, 8
# Downloads of more bytes show their progress.
_MANY = 64 << 20
# A request, all its retries, and the connection, in seconds.
_TIMEOUT_S, _RETRY_S, _CONNECT_S = 30.0, 60.0, 5.0
# Botocore gives credentials that are valid for ten minutes at least, and is asked again before.
_CREDENTIALS_MIN = 9
# The bound of the folder of local copies in GB, and the seconds after its last use in which a copy stays.
CACHE_GB, _IN_USE_S = "RAY_BACKFILL_CACHE_GB", 60
# The names of buckets that are read without credentials, with commas in between.
PUBLIC = "RAY_BACKFILL_PUBLIC_BUCKETS"
# What is wrong, and the remedy, by what occurs in obstore's page of text about it. The first one counts.
_AGAIN = "then run the same command again"
_FULL = f"the store is full ({{code}}); free some space, {_AGAIN}"
_NO_RIGHT = "the store refuses this ({code}); give these credentials the right to {verb} it"
_REACH = f"no answer to use ({{code}}); check {{endpoint}}, the region and the network, {_AGAIN}"
_NO_BUCKET = "NoSuchBucket|bucket does not exist"
_WRONG = {
    _NO_BUCKET: "there is no such bucket; make it, or correct its name",
    "token request|service account|OAuth": "Google gives no credentials; name a file of some in "
    "GOOGLE_APPLICATION_CREDENTIALS, or type gcloud auth application-default login",
    "credential provider|botocore": f"its credentials cannot be renewed; mend what gives them, {_AGAIN}",
    "InvalidContentType|certificate": "no https there ({code}); correct {endpoint}, or the server's certificate",
    "BareRedirect|AuthorizationHeaderMalformed|IllegalLocation": "the bucket is in another region; set AWS_REGION",
    "Expired|TokenRefreshRequired": f"the credentials have expired ({{code}}); renew them, {_AGAIN}",
    "InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|TimeTooSkewed": "the store does not accept these "
    "credentials ({code}); correct them, or the clock of this machine",
    "QuotaExceeded|XMinioStorageFull|InsufficientStorage|status: 507": _FULL,
    "AccessDenied|status: 40[13]|PermissionDenied": _NO_RIGHT,
    "Header missing|unknown variant|Got invalid": "no object storage is there; correct {endpoint}",
    "dns error": "its host has no address; correct {endpoint}, or the network",
}
_CODES = (
    r"<Code>(\w+)</Code>",
    r"status code: (\d+[\w ]*)",
    r"\(code: (\w+)\)",
    "(TimedOut|ConnectionRefused|IncompleteMessage|InvalidContentType|body error)",
)
_VERBS = {"list": "list request", "delete": "[?]delete|DeleteFailed", "write": "method: (PUT|POST)"}
T = TypeVar("T")


class NotWritableError(InputError):
    """A file or an object cannot be written, or the store refuses this process more than that."""


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


# The object that is not there, as a condition.
ABSENT = Entry("", 0, "", 0.0)


@dataclass(frozen=True)
class Bucket:
    """A bucket of a store; equal in every process, so it can be sent to workers, which open it with their own rights.

    Every method raises InputError, in one line, where the store cannot be reached or refuses.
    """

    scheme: str
    name: str
    # A request, and all its retries, may take so long; None: as long as any.
    patience_s: float | None = None

    def head(self, key: str) -> Entry | None:
        """The object of this key; None if there is none."""
        import obstore
        from obstore.exceptions import BaseError

        def ask(store: "ObjectStore") -> Entry:
            try:
                return _entry(obstore.head(store, key))
            except BaseError as error:
                if re.search(r"method: HEAD[\s\S]*status: 4", str(error)):
                    obstore.get(store, key)  # an answer to HEAD has no text that says why
                raise

        try:
            return self._ask(key, ask) if key else None
        except FileNotFoundError:
            return None

    def below(self, key: str) -> list[Entry]:
        """All objects below a folder, sorted by key; empty ones without a dot are folders to other clients."""
        import obstore

        def ask(store: "ObjectStore") -> list[Entry]:
            pages = obstore.list(store, f"{key}/" if key else None, chunk_size=1000)
            return [_entry(meta) for page in pages for meta in page]

        entries = (entry for entry in self._ask(key, ask) if entry.key != key)
        files = (entry for entry in entries if entry.size or "." in entry.key.rpartition("/")[2])
        return sorted(files, key=lambda entry: entry.key)

    def children(self, key: str) -> tuple[list[str], list[Entry]]:
        """Keys of the folders, and the objects, directly in a folder."""
        import obstore

        listed = self._ask(key, obstore.list_with_delimiter, f"{key}/" if key else None)
        if not listed["common_prefixes"] and not listed["objects"]:
            self.head(key)  # servers of something else list nothing, too, and an answer to this would be refused
        return list(listed["common_prefixes"]), [_entry(meta) for meta in listed["objects"] if meta["path"] != key]

    def read(self, key: str) -> tuple[bytes, Entry]:
        """A small object. Raises FileNotFoundError if there is none."""
        import obstore

        def ask(store: "ObjectStore") -> tuple[bytes, Entry]:
            got = obstore.get(store, key)
            return bytes(got.bytes()), _entry(got.meta)

        return self._ask(key, ask)

    def tail(self, key: str, n_bytes: int) -> bytes:
        """The last bytes of an object, all if it has fewer. Raises FileNotFoundError if there is none."""
        import obstore

        last: Any = {"range": {"suffix": n_bytes}}
        return self._ask(key, lambda store: bytes(obstore.get(store, key, options=last).bytes()))

    def put(self, key: str, content: bytes | Path, only_if: Entry | None = None) -> Entry:
        """Write an object. only_if: only if this one is still there, which no listing gave; ABSENT: only if none is.

        Raises:
            FileExistsError: The condition does not hold. After a reply that was lost it may be this very content.
            FileNotFoundError: So may a store say that it is not this one, because there is none.
        """
        import obstore

        mode: Any = "overwrite"
        if only_if == ABSENT:
            mode = "create"
        elif only_if is not None:
            mode = {"e_tag": only_if.mark} | ({"version": only_if.version} if only_if.version else {})
        n_bytes = len(content) if isinstance(content, bytes) else content.stat().st_size
        try:
            done = self._ask(key, obstore.put, key, content, mode=mode, chunk_size=_PIECE)
        except FileNotFoundError as error:
            if only_if not in (None, ABSENT):  # it is gone
                raise
            raise self._refusal(key, str(error.__cause__)) from error
        return Entry(key, n_bytes, str(done["e_tag"]), time(), done["version"] or "")

    def delete(self, *keys: str) -> None:
        """Delete objects; those that are not there are passed over."""
        import obstore

        for key in keys:  # not in bulk: servers answer that one differently, and only leftovers are deleted
            with suppress(FileNotFoundError):
                self._ask(key, obstore.delete, key)

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the bucket, by the store itself."""
        import obstore

        self._ask(key, obstore.copy, key, to)

    def fetch(self, entries: list[Entry]) -> list[Path]:
        """Local copies of these objects, as new as they are."""
        copies = [self.copy_of(entry.key) for entry in entries]
        missing = [(entry, to) for entry, to in zip(entries, copies, strict=True) if not is_copy(entry, to)]
        n_bytes = sum(entry.size for entry, _ in missing)
        if missing:
            with _local():
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
        with _local():
            _make_room(entry.size)
        os.utime(content, (time(), entry.stamp))
        content.replace(self.copy_of(entry.key))

    def temporary(self, key: str) -> Path:
        """A new local file name, beside the copy of an object."""
        to = self.copy_of(key)
        with _local():
            cache_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
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
        from obstore.exceptions import PreconditionError

        def ask(store: "ObjectStore", start: int, stop: int) -> Any:
            how: Any = {"range": (start, stop), "if_match": entry.mark}
            try:
                return obstore.get(store, entry.key, options=how).bytes()
            except PreconditionError as error:
                raise InputError(f"{self.uri(entry.key)} was replaced while it was read; run again") from error

        half = self.temporary(entry.key)
        try:
            with _local(), half.open("wb") as file:
                for start in range(0, entry.size, _PIECE):
                    stop = min(start + _PIECE, entry.size)
                    piece = self._ask(entry.key, ask, start, stop)
                    if len(piece) != stop - start:
                        raise InputError(f"{self.uri(entry.key)} ended after {start + len(piece):,} bytes; run again")
                    file.write(piece)
            os.utime(half, (time(), entry.stamp))
            half.replace(to)
        finally:
            half.unlink(missing_ok=True)

    def _ask(self, key: str, request: Callable[..., T], *more: Any, **named: Any) -> T:
        """What a request gives. Raises FileExistsError, FileNotFoundError, and InputError for all else, in one line."""
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        for is_last in (False, False, True):
            try:
                return request(open_bucket(self), *more, **named)
            except (AlreadyExistsError, PreconditionError) as error:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.uri(key)) from error
            except (BaseError, FileNotFoundError) as error:
                # obstore repeats no request whose answer ends early, and no upload of which it lost an answer
                text = str(error)
                if not is_last and re.search("body error|NoSuchUpload", text):
                    continue
                if isinstance(error, FileNotFoundError) and not re.search(f"list request|{_NO_BUCKET}", text):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.uri(key)) from error
                raise self._refusal(key, text) from error
        raise AssertionError("not reached")

    def _refusal(self, key: str, text: str) -> InputError:
        """The error for what obstore says."""
        verb = next((verb for verb, pattern in _VERBS.items() if re.search(pattern, text)), "read")
        text = re.sub(r"https?://\S+", "", text.replace(key, "") if key else text)  # names may be any
        codes = (code[1] for pattern in _CODES if (code := re.search(pattern, text)))
        how = next((remedy for pattern, remedy in _WRONG.items() if re.search(pattern, text)), _REACH)
        kind = NotWritableError if how in (_FULL, _NO_RIGHT) else InputError
        endpoint = "AWS_ENDPOINT_URL" if self.scheme == "s3" else "STORAGE_EMULATOR_HOST"
        how = how.format(code=next(codes, "no connection"), verb=verb, endpoint=endpoint)
        return kind(f"{self.uri(key)}: {how}")


@contextmanager
def _local() -> Iterator[None]:
    """Raises InputError for what the disk of the local copies refuses."""
    try:
        yield
    except OSError as error:
        if "://" in str(error.filename):  # an object
            raise
        remedy = f"free some space there, or name another folder in {CACHE}"
        raise InputError(f"{cache_folder()}: {(error.strerror or str(error)).lower()}; {remedy}") from error


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


@lru_cache(maxsize=64)
def open_bucket(bucket: Bucket) -> "ObjectStore":
    """The client of a bucket, one in each process. Raises InputError without credentials to use."""
    from obstore.store import GCSStore, S3Store

    how: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=bucket.patience_s or _TIMEOUT_S),
            "connect_timeout": timedelta(seconds=_CONNECT_S),
            "allow_http": True,
        },
        "retry_config": {
            "max_retries": 15,  # 40 s, with random pauses, of which each is up to four times as long as the one before
            "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10), "base": 4},
            "retry_timeout": timedelta(seconds=bucket.patience_s or _RETRY_S),
        },
    }
    is_public = bucket.name in os.environ.get(PUBLIC, "").split(",")
    if bucket.scheme == "gs":
        if emulator := os.environ.get("STORAGE_EMULATOR_HOST"):  # Google's own clients read it, too
            place = emulator if "://" in emulator else f"http://{emulator}"
            fake = f'{{"gcs_base_url": "{place}", "disable_oauth": true, "client_email": "", "private_key": ""'
            how["config"] = {"service_account_key": f'{fake}, "private_key_id": ""}}'}
        return GCSStore(bucket.name, skip_signature=is_public, **how)
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.session.Session()
        if not is_public and session.get_credentials() is None:
            raise InputError(
                f"{bucket.uri('')}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
                f"or run where an instance role gives some, or, if it is public, name it in {PUBLIC}"
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
        if is_public:
            how["skip_signature"] = True
        else:
            how["credential_provider"] = Boto3CredentialProvider(session, ttl=timedelta(minutes=_CREDENTIALS_MIN))
    except InputError:
        raise
    except (BotoCoreError, ValueError) as error:  # of a profile that is not there, a file, or an address that is none
        remedy = "correct the AWS_ variables or the file that gives this"
        raise InputError(f"{bucket.uri('')}: {str(error).splitlines()[0]}; {remedy}") from error
    return S3Store(bucket.name, region=region or "us-east-1", **how)


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


# Folder and bound of the copies -> bytes that may be copied before all of them are looked at again.
_until_a_look: dict[tuple[Path, str | None], float] = {}


def _make_room(n_bytes: int) -> None:
    """Delete the copies that were used longest ago until these bytes fit below the bound.

    An open or mapped file stays readable. Bound: RAY_BACKFILL_CACHE_GB, or half of what is free and used by copies.
    Cost: a look at every copy, after each sixteenth of what was left.
    """
    import shutil

    folder, given, copies = cache_folder(), os.environ.get(CACHE_GB), []
    if (left := _until_a_look.get((folder, given), 0.0) - n_bytes) > 0:
        _until_a_look[folder, given] = left
        return
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # others may not read what the bucket hides from them
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # another process makes room, too
            if path.is_file():
                copies.append((path.stat(), path))
    used = sum(facts.st_size for facts, _ in copies)
    try:
        bound = float(given) * 1e9 if given else (shutil.disk_usage(folder).free + used) / 2
    except ValueError as error:
        raise InputError(f"{CACHE_GB} must be a number of gigabytes, not {given!r}") from error
    before = used
    for facts, path in sorted(copies, key=lambda copy: copy[0].st_atime):
        if used + n_bytes <= bound or facts.st_atime > time() - _IN_USE_S:
            break
        path.unlink(missing_ok=True)
        used -= facts.st_size
    _until_a_look[folder, given] = max(0.0, bound - used - n_bytes) / 16
    if used < before:
        say(f"{folder}: {(before - used) / 1e9:.1f} GB of copies deleted, to stay below {bound / 1e9:.1f} GB")
