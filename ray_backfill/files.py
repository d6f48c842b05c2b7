"""Atomic file writes, and stages: folders that record whether their work is finished.

A stage is computed once, kept in a folder, and reused or continued by the next run. Its ``manifest.json`` holds the
settings. The manifest is written before the work starts, so that an unfinished folder can be recognised, and marked as
finished once all files are in place.
"""

import errno
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray_backfill.errors import InputError

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: ``write`` fills a temporary file beside ``path``, which is then renamed.

    Readers never see a partial file. A crash of the process is harmless, a crash of the machine is not: no fsync.

    Raises:
        InputError: The disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")  # unique even if nodes share the disk
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise InputError(
            f"disk full: cannot write {path} ({error}); free some space and run the same command again to continue"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(folder: Path, option: str) -> None:
    """Raises InputError if the folder cannot be made or written. option: as what it was given."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise InputError(f"{option} {folder} cannot be made: {there} is a file; give a folder")
    if not os.access(there, os.W_OK):
        raise InputError(f"{option} {folder} cannot be made: {there} is not writable; give another folder")


def remove_halves(folder: Path) -> None:
    """Delete the temporary files that killed processes left in the part folders of ``folder``."""
    for half in folder.glob("*/.*.tmp"):
        half.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raise InputError if the file is missing or holds anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object")
    return value


def begin_stage(folder: Path, stage: str, settings: Mapping[str, Any]) -> bool:
    """Claim ``folder`` for a stage with these settings. Return True if that stage is already finished there.

    Raises:
        InputError: The folder belongs to a stage with other settings.
    """
    if look_at_stage(folder, stage, settings):
        return True
    write_json(folder / "manifest.json", {"stage": stage, "settings": dict(settings), "finished": False})
    return False


def look_at_stage(folder: Path, stage: str, settings: Mapping[str, Any]) -> bool:
    """Return or raise what ``begin_stage`` would, without claiming the folder."""
    wanted = json.loads(json.dumps({"stage": stage, "settings": settings}))
    path = folder / "manifest.json"
    if path.exists():
        found = read_json(path)
        difference = _first_difference({k: found.get(k) for k in wanted}, wanted)
        if difference:
            raise InputError(
                f"{folder} belongs to a run with other settings ({difference}); delete it or choose another --out"
            )
        return bool(found.get("finished"))
    if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise InputError(f"{folder} holds other files (it has no manifest.json); choose another --out")
    return False


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


def _first_difference(found: Any, wanted: Any, name: str = "") -> str:
    """Describe the first difference of two JSON values; an empty string if they are equal."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            inner = f"{name}.{key}" if name else key
            difference = _first_difference(found.get(key), wanted.get(key), inner)
            if difference:
                return difference
        return ""
    return "" if found == wanted else f"{name.removeprefix('settings.')}: {found!r} there, {wanted!r} requested"
