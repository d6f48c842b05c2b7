"""Atomic file writes, and stages: folders that record whether their work is finished.

A stage is computed once, kept in a folder, and reused or continued by the next run. Its ``manifest.json`` holds the
settings. The manifest is written before the work starts, so that an unfinished folder can be recognised, and marked as
finished once all files are in place.
"""

import errno
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray_backfill.core.errors import REMEDIES, InputError
from ray_backfill.core.runkey import RunKey
from ray_backfill.core.secrets import cleaned

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS)


class NotWritableError(InputError):
    """A file cannot be written."""


class OtherSettingsError(InputError):
    """A folder belongs to a stage with other settings."""


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: ``write`` fills a temporary file beside ``path``, which is then renamed.

    Readers never see a partial file. A crash of the process is harmless, a crash of the machine is not: no fsync.

    Raises:
        InputError: The disk is full, or the file cannot be written (NotWritableError).
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")  # unique even if nodes share the disk
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except Exception as error:
        refused = _refused(path, error)
        if refused is None:
            raise
        raise refused from error
    finally:
        with suppress(OSError):  # of a folder that cannot be read
            temporary.unlink()


def _refused(path: Path, error: Exception) -> InputError | None:
    """What the machine refuses in one line; None for other errors."""
    # The error of safetensors has the number in its text.
    named = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) else int(named[1]) if named else None
    if number in _FULL:
        return InputError(f"disk full: cannot write {path} ({error}); {REMEDIES[errno.ENOSPC]}")
    why = os.strerror(number or 0).lower()
    if number in _NOT_WRITABLE:
        return NotWritableError(f"cannot write {path}: {why}; make its folder writable")
    if number in REMEDIES:
        return InputError(f"cannot write {path}: {why}; {REMEDIES[number]}")
    return None


@contextmanager
def replaced_whole(folder: Path, ours: Collection[str]) -> Iterator[Path]:
    """Yield an empty folder, which takes the place of ``folder`` at the end of the block.

    A reader finds the old files or the new ones; so does the next run after a crash, which calls ``settle``. If the
    block fails or the process dies in it, the old folder stays as it is.

    ours: names of the files that we write. Other files in the old folder are moved to the new one.
    """
    settle(folder, ours)
    new, old = _beside(folder)
    try:
        new.mkdir(parents=True)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotWritableError(f"cannot write {folder}: {why}; make {folder.parent} writable") from error
    try:
        yield new
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    if folder.exists():
        folder.rename(old)
    new.rename(folder)
    settle(folder, ours)


def settle(folder: Path, ours: Collection[str]) -> None:
    """Complete or undo what a killed process left of ``replaced_whole``."""
    new, old = _beside(folder)
    if not folder.exists() and old.exists():  # killed between the two renames: the new folder is complete
        (new if new.exists() else old).rename(folder)
    if new.exists():
        shutil.rmtree(new)
    if old.exists():
        for path in old.iterdir():
            if path.name not in ours and not path.name.startswith(".") and not (folder / path.name).exists():
                path.rename(folder / path.name)
        shutil.rmtree(old)


def _beside(folder: Path) -> tuple[Path, Path]:
    return folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")


def remove_halves(folder: Path) -> None:
    """Delete the temporary files that killed processes left in ``folder`` and its part folders."""
    for half in (*folder.glob(".*.tmp"), *folder.glob("*/.*.tmp")):
        half.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, without secrets."""
    text = json.dumps(cleaned(dict(value)), indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object, without secrets: earlier versions wrote them.

    Raises:
        InputError: The file is missing or holds anything else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object")
    return dict(cleaned(value))


def begin_stage(folder: Path, key: RunKey, overwrite: bool = False) -> bool:
    """Begin ``folder`` for the run with this key. Return True if that run is already finished there.

    overwrite: delete the files of another run.

    Raises:
        InputError: The folder belongs to another run (OtherSettingsError), or holds other files.
    """
    try:
        if look_at_stage(folder, key):
            return True
    except OtherSettingsError:
        if not overwrite:
            raise
        _clear_stage(folder)
    write_json(folder / "manifest.json", key.recorded() | {"finished": False})
    return False


def look_at_stage(folder: Path, key: RunKey) -> bool:
    """Return or raise what ``begin_stage`` would, without a change to the folder."""
    path = folder / "manifest.json"
    if path.exists():
        found = read_json(path)
        if difference := key.difference(found):
            raise other_settings(folder, difference)
        return bool(found.get("finished"))
    refuse_other_files(folder)
    return False


def refuse_other_files(folder: Path) -> None:
    """Raises InputError if the folder holds files, but no manifest."""
    if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise InputError(f"{folder} holds other files (it has no manifest.json); choose another --out")


def other_settings(folder: Path, difference: str) -> OtherSettingsError:
    """The error for a folder of another run. difference: as ``RunKey.difference`` says it."""
    return OtherSettingsError(
        f"{folder} belongs to a run with other settings ({difference}); give --overwrite to replace it, or choose "
        "another --out"
    )


def _clear_stage(folder: Path) -> None:
    """Delete the files of a stage. The manifest stays, so that the folder is still known as ours after a crash."""
    note_facts(folder, {"finished": False})
    for path in folder.iterdir():
        if path.name == "manifest.json":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def note_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add measured facts to the manifest of a stage that has begun."""
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | dict(facts))


def finish_stage(folder: Path, facts: Mapping[str, Any] | None = None) -> None:
    """Mark a stage as finished and add ``facts`` to its manifest. Nothing else makes a stage count as complete."""
    note_facts(folder, dict(facts or {}) | {"finished": True})


def is_finished(folder: Path) -> bool:
    """Return whether ``folder`` holds a finished stage, with any settings."""
    path = folder / "manifest.json"
    return path.exists() and bool(read_json(path).get("finished"))


def timed(folder: Path, stage: Callable[[], Path]) -> Path:
    """Run a stage and record its duration, unless it was already finished."""
    path, started = folder / "manifest.json", time.perf_counter()
    before = read_json(path) if is_finished(folder) else None
    stage()
    if before is None or read_json(path) != before:  # finished earlier, but with other settings
        note_facts(folder, {"seconds": round(time.perf_counter() - started, 2)})
    return folder
