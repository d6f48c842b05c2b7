"""Files that are there whole or not at all, and stages: folders that are finished or not.

A stage is computed once, kept in a folder, and reused or continued by the next run. Its ``manifest.json`` holds the
settings it was made by. The manifest is written before the work starts, so that a half-done folder is known for what it
is, and the stage is marked as finished after the last byte of the work is in place.
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
    """Let ``write`` make a temporary file beside ``path``, then rename it: a reader never sees half a file.

    Protects from a dying process, not from a dying machine: there is no fsync.

    Raises:
        InputError: the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")  # unique over the nodes that share a disk
    try:
        write(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise InputError(f"no room for {path} ({error}); make room on that disk: the same command continues") from error
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
    """Delete what processes that were killed while they wrote have left in the folders of parts of ``folder``."""
    for half in folder.glob("*/.*.tmp"):
        half.unlink()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object, whole."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """Raises InputError if the file is missing or no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object")
    return value


def begin_stage(folder: Path, stage: str, settings: Mapping[str, Any]) -> bool:
    """Claim ``folder`` for a stage of these settings; True if that stage is finished there already.

    Raises:
        InputError: the folder belongs to a stage with other settings.
    """
    if look_at_stage(folder, stage, settings):
        return True
    write_json(folder / "manifest.json", {"stage": stage, "settings": dict(settings), "finished": False})
    return False


def look_at_stage(folder: Path, stage: str, settings: Mapping[str, Any]) -> bool:
    """What ``begin_stage`` would say, without claiming anything."""
    wanted = json.loads(json.dumps({"stage": stage, "settings": settings}))
    path = folder / "manifest.json"
    if path.exists():
        found = read_json(path)
        difference = _first_difference({k: found.get(k) for k in wanted}, wanted)
        if difference:
            raise InputError(
                f"{folder} was made by another run ({difference}); delete that folder, or choose another --out"
            )
        return bool(found.get("finished"))
    if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise InputError(f"{folder} holds files of something else (no manifest.json); choose another --out")
    return False


def note_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Add what was measured to the manifest of a begun stage."""
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | dict(facts))


def finish_stage(folder: Path, facts: Mapping[str, Any] | None = None) -> None:
    """Mark a begun stage as finished, with ``facts``. Only what this marks is ever taken for complete."""
    note_facts(folder, dict(facts or {}) | {"finished": True})


def is_finished(folder: Path) -> bool:
    """Whether a stage is complete in ``folder``, whatever its settings."""
    path = folder / "manifest.json"
    return path.exists() and bool(read_json(path).get("finished"))


def _first_difference(found: Any, wanted: Any, name: str = "") -> str:
    """Where two JSON values differ first, as 'name: there -> here', or an empty string."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            inner = f"{name}.{key}" if name else key
            difference = _first_difference(found.get(key), wanted.get(key), inner)
            if difference:
                return difference
        return ""
    return "" if found == wanted else f"{name.removeprefix('settings.')}: {found!r} there, {wanted!r} asked"
