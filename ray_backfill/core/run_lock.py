"""Locks the folder of a run for one process, so that two runs never write the same files.

On a disk the lock is one of the operating system (``flock``) on ``.lock`` in the folder. It ends with the process, also
if the process is killed. In a store the object ``.lock`` is put only if it is absent, and put again every few seconds
while its owner lives; who finds one that stays as it is for longer than that takes it over.
"""

import errno
import fcntl
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from ray_backfill.core.errors import InputError
from ray_backfill.core.progress import say, step
from ray_backfill.core.secrets import without_secrets
from ray_backfill.core.stages import is_finished, make_folder
from ray_backfill.core.store_path import StorePath, in_store
from ray_backfill.core.stores import Entry

LOCK = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
# Folders of a run that hold stages or are stages.
_STAGES = ("backbones", "embeddings", "before", "maps", "results", "live")
# A lock in a store is renewed so often, and its owner counts as gone if it was not for so long, in seconds.
_RENEWED_S, _GONE_S = 10.0, 45.0


@contextmanager
def locked(folder: Path, option: str, command: str) -> Iterator[None]:
    """Within the block, the folder exists and belongs to this process; nothing remains of an empty folder.

    A folder that cannot be written is accepted without a lock if it holds finished stages, which can be shown again.

    option: as what the folder was given, for messages. command: for the message that another process gets.

    Raises:
        InputError: The folder cannot be made or written, or another process has locked it.
    """
    if in_store(folder):
        with _locked_in_store(folder / LOCK, option, command):
            yield
        return
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]  # the innermost first
        make_folder(folder)
    except OSError as error:
        raise InputError(f"{option} {folder} cannot be made: {_why(folder, error)}") from error
    lock = None
    try:
        for stage in (folder / name for name in _STAGES) if os.access(folder, os.W_OK) else ():
            if stage.is_dir() and not os.access(stage, os.W_OK | os.X_OK) and not is_finished(stage):
                raise InputError(f"{stage} is not writable; make it writable, or give another {option}")
        lock = _lock(folder, option, command)
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # before the lock ends, so that nobody can lock a file that disappears
                (folder / LOCK).unlink()
            os.close(lock)
        for path in made:
            with suppress(OSError):  # it is not empty any more
                path.rmdir()


def _why(folder: Path, error: OSError) -> str:
    for path in (folder, *folder.parents):
        with suppress(OSError):
            if path.is_symlink() and not path.exists():
                return f"{path} is a link to {path.readlink()}, which does not exist; mend the link"
            if path.is_file():
                return f"{path} is a file; give a folder"
    return f"{(error.strerror or str(error)).lower()}; give another folder"


def _lock(folder: Path, option: str, command: str) -> int | None:
    """Lock the folder; returns the open file. None: it is finished and read-only, or its disk has no locks."""
    path = folder / LOCK
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if any(is_finished(stage) for stage in folder.iterdir() if stage.is_dir()):
                return None
            why = (error.strerror or str(error)).lower()
            raise InputError(f"{option} {folder} is not writable: {why}; give another folder") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(file, 1 << 16, 0)
            os.close(file)
            if error.errno not in _HELD:  # some network disks have no locks
                return None
            raise InputError(f"{option} {folder} is in use by {_described(holder)}") from error
        with suppress(FileNotFoundError):
            if os.fstat(file).st_ino == path.stat().st_ino:
                break
        os.close(file)  # its owner deleted it after it was opened here
    os.ftruncate(file, 0)
    os.pwrite(file, _about(command), 0)
    return file


def _about(command: str, **more: str | int) -> bytes:
    """What a lock says of its owner."""
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    about = {"pid": os.getpid(), "host": socket.gethostname(), "command": without_secrets(command), "since": since}
    return json.dumps(about | more, ensure_ascii=False).encode()


def _pids() -> str:
    """Where process numbers mean the same: containers of one host name may have numbers of their own."""
    with suppress(OSError):
        return f"{socket.gethostname()} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    return socket.gethostname()


@contextmanager
def _locked_in_store(lock: StorePath, option: str, command: str) -> Iterator[None]:
    """As ``locked``, by an object that is put only if it is absent, or still the one that was read."""
    owner, bucket, renewals = uuid4().hex, lock.bucket, 0

    def put(only_if: Entry | None) -> Entry | None:
        """The lock, if this process has it now. A reply may be lost, so what is there decides. None: none is there."""
        nonlocal renewals
        renewals += 1
        content = _about(command, owner=owner, renewals=renewals, pids=_pids())
        try:
            return bucket.put(lock.key, content, only_if, is_new=only_if is None)
        except (FileExistsError, InputError) as error:
            try:
                there, entry = bucket.read(lock.key)
            except FileNotFoundError:
                there = b""
            if there == content:
                return entry
            if isinstance(error, InputError) and not there:
                raise
            return None

    try:
        held = put(None)
    except InputError:
        if any(is_finished(stage) for stage in lock.parent.iterdir() if stage.is_dir()):  # it can be shown again
            yield
            return
        raise
    while held is None:
        try:
            there, entry = bucket.read(lock.key)
        except FileNotFoundError:  # its owner has just ended
            held = put(None)
            continue
        if not _is_gone(there):
            with step(f"{option} {lock.parent} is locked: wait to see whether its owner works"):
                started, before = time.monotonic(), entry.mark
                while time.monotonic() < started + _GONE_S:
                    time.sleep(_RENEWED_S / 5)
                    now = bucket.head(lock.key)
                    if now is None or now.mark != before:
                        break
            if now is not None and now.mark != before:
                raise InputError(f"{option} {lock.parent} is in use by {_described(there)}")
        if (held := put(entry if bucket.head(lock.key) else None)) is not None:
            say(f"{lock.parent}: the process that had locked it is gone; this one continues")
    ended = threading.Event()

    def renew() -> None:
        at: Entry | None = held
        while not ended.wait(_RENEWED_S):
            try:
                at = put(at)
            except InputError:  # no connection now; the next time decides
                continue
            if at is None and not ended.is_set():
                say(f"{lock} was taken over by another process, because this one was cut off; it ends here")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    renewer = threading.Thread(target=renew, daemon=True)
    renewer.start()
    try:
        yield
    finally:
        ended.set()
        renewer.join()
        with suppress(InputError, FileNotFoundError):
            if json.loads(bucket.read(lock.key)[0]).get("owner") == owner:
                lock.unlink(missing_ok=True)


def _is_gone(holder: bytes) -> bool:
    """Whether the process that wrote this into a lock ran on this host and has ended."""
    try:
        about = json.loads(holder)
        if about["pids"] != _pids():
            return False
        os.kill(about["pid"], 0)
    except ProcessLookupError:
        return True
    except (ValueError, LookupError, TypeError, OSError):
        return False
    return False


def _described(holder: bytes) -> str:
    """The process that holds a lock and what to do, from what it wrote into the file."""
    what_to_do = "wait until it ends, or give another folder"
    try:
        about = json.loads(holder)
        return f"process {about['pid']} on {about['host']} since {about['since']} ({about['command']}); {what_to_do}"
    except (ValueError, KeyError, TypeError):  # it has just begun
        return f"another process; {what_to_do}"
