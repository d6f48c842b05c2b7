"""Locks the folder of a run for one process, so that two runs never write the same files.

The lock is one of the operating system (``flock``) on ``.lock`` in the folder. It ends with the process, also if the
process is killed.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from ray_backfill.core.errors import InputError
from ray_backfill.core.secrets import without_secrets
from ray_backfill.core.stages import is_finished, make_folder

LOCK = ".lock"
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
# Folders of a run that hold stages or are stages.
_STAGES = ("backbones", "embeddings", "before", "maps", "results", "live")


@contextmanager
def locked(folder: Path, option: str, command: str) -> Iterator[None]:
    """Within the block, the folder exists and belongs to this process; nothing remains of an empty folder.

    A folder that cannot be written is accepted without a lock if it holds finished stages, which can be shown again.

    option: as what the folder was given, for messages. command: for the message that another process gets.

    Raises:
        InputError: The folder cannot be made or written, or another process has locked it.
    """
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
    about = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "command": without_secrets(command),
        "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
    }
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(about, ensure_ascii=False).encode(), 0)
    return file


def _described(holder: bytes) -> str:
    """The process that holds a lock and what to do, from what it wrote into the file."""
    what_to_do = "wait until it ends, or give another folder"
    try:
        about = json.loads(holder)
        return f"process {about['pid']} on {about['host']} since {about['since']} ({about['command']}); {what_to_do}"
    except (ValueError, KeyError, TypeError):  # it has just begun
        return f"another process; {what_to_do}"
