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
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from ray_backfill.core.errors import InputError, TakenOverError
from ray_backfill.core.progress import say, step
from ray_backfill.core.secrets import without_secrets
from ray_backfill.core.stages import is_finished, make_folder
from ray_backfill.core.store_path import StorePath, in_store
from ray_backfill.core.stores import ABSENT, Entry, NotWritableError

LOCK = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
# Folders of a run that hold stages or are stages.
_STAGES = ("backbones", "embeddings", "before", "maps", "results", "live")
# A lock in a store is renewed so often, by requests that take no longer than this, also if they hang; its owner counts
# as gone if it was not renewed for so long, in seconds.
_RENEWED_S, _PATIENCE_S, _GONE_S = 10.0, 8.0, 45.0


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
    """Where process numbers mean the same: hosts may have one name, and their containers numbers of their own."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116
    return socket.gethostname()


@contextmanager
def _locked_in_store(path: StorePath, option: str, command: str) -> Iterator[None]:
    """As ``locked``, by an object that is put only if none is there, or still the one that was read.

    Raises:
        TakenOverError: This process could not renew the lock for so long that another one has it now. It is
            interrupted as by Ctrl-C if the block is in the main thread; otherwise this comes at the end of the block.
    """
    lock, folder = _StoreLock(path, option, command), path.parent
    try:
        lock.take()
    except NotWritableError:
        is_shown = False
        with suppress(InputError):  # what was refused first counts
            is_shown = any(is_finished(stage) for stage in folder.iterdir() if stage.is_dir())
        if not is_shown:
            raise
        yield
        return
    renewer = threading.Thread(target=lock.renew, daemon=True)
    renewer.start()
    try:
        yield
    finally:
        lock.ended.set()
        renewer.join(_RENEWED_S)
        lock.release()
        if lock.taken_by:
            raise TakenOverError(f"{option} {folder} was out of reach too long, and is now in use by {lock.taken_by}")


class _StoreLock:
    """A lock that is an object. held: as this process put it last. taken_by: who has it instead, in words."""

    def __init__(self, path: StorePath, option: str, command: str) -> None:
        self.folder, self.key, self.option, self.command = path.parent, path.key, option, command
        self.bucket = replace(path.bucket, patience_s=_PATIENCE_S)
        self.owner, self.renewals, self.taken_by = uuid4().hex, 0, ""
        self.is_main = threading.current_thread() is threading.main_thread()
        self.ended = threading.Event()
        self.held: Entry | None = None

    def put(self, there: Entry) -> Entry | None:
        """Put the lock where this one, or ABSENT, still is. None: another process has it."""
        self.renewals += 1
        content = _about(self.command, owner=self.owner, renewals=self.renewals, pids=_pids())
        try:
            return self.bucket.put(self.key, content, only_if=there)
        except (FileExistsError, FileNotFoundError):  # if the answer to an earlier try was lost, it may be this one's
            with suppress(FileNotFoundError):
                text, entry = self.bucket.read(self.key)
                return entry if self.owner.encode() in text else None
            return None if there == ABSENT or self.ended.is_set() else self.put(ABSENT)  # somebody has deleted it

    def take(self) -> None:
        """Raises InputError if another process works here; NotWritableError if nothing can be put."""
        with step(f"lock {self.folder}"):
            for path in (self.folder, *self.folder.parents):
                with suppress(NotWritableError):  # rights may begin below
                    if in_store(path) and path.key and path.is_file():
                        raise InputError(f"{self.option} {path} is a file; give a folder")
            if (first := self.put(ABSENT)) is not None:
                self.held = self.put(ABSENT)  # must be refused
                if self.held is not None and self.held.mark != first.mark:
                    why = "ignores the conditions of PUT, so two commands could write here"
                    say(f"{self.folder}: this store {why}; run one at a time", "warning")
        while self.held is None:
            try:
                holder, entry = self.bucket.read(self.key)
            except FileNotFoundError:  # its owner has just ended
                self.held = self.put(ABSENT)
                continue
            if not _is_gone(holder) and self._is_renewed(entry):
                raise InputError(f"{self.option} {self.folder} is in use by {_described(holder)}")
            if (held := self.put(entry)) is not None:
                say(f"{self.folder}: the process that had locked it is gone; this one continues")
                self.held = held

    def _is_renewed(self, entry: Entry) -> bool:
        """Whether the owner of this lock renews it. Cost: some seconds if so, _GONE_S if not."""
        now, started = self.bucket.head(self.key), time.monotonic()
        with step(f"{self.option} {self.folder} is locked: wait to see whether its owner works"):
            while now is not None and now.mark == entry.mark and time.monotonic() < started + _GONE_S:
                time.sleep(_RENEWED_S / 5)
                now = self.bucket.head(self.key)
        return now is not None and now.mark != entry.mark

    def renew(self) -> None:
        """Put the lock again every few seconds until ``ended``, or another process has it."""
        while self.held is not None and not self.ended.wait(_RENEWED_S):
            with suppress(InputError):  # no connection now, or no right; the next time decides
                self.held = self.put(self.held)
        if self.held is None and not self.ended.is_set():
            self.taken_by = "another process"
            with suppress(InputError, FileNotFoundError):
                self.taken_by = _described(self.bucket.read(self.key)[0])
            if self.is_main:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def release(self) -> None:
        """Delete the lock if it is this process's. Where that is refused, it stays."""
        with suppress(InputError, FileNotFoundError):
            if self.owner.encode() in self.bucket.read(self.key)[0]:
                self.bucket.delete(self.key)


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
        pass
    return False


def _described(holder: bytes) -> str:
    """The process that holds a lock and what to do, from what it wrote into the file."""
    what_to_do = "wait until it ends, or give another folder"
    try:
        about = json.loads(holder)
        return f"process {about['pid']} on {about['host']} since {about['since']} ({about['command']}); {what_to_do}"
    except (ValueError, KeyError, TypeError):  # it has just begun
        return f"another process; {what_to_do}"
