"""Stages of a run: what is computed once, kept in a folder, and reused or continued by the next run.

A stage's folder holds a ``manifest.json`` with the settings it was made by. It is written before the work starts, so
that a half-done folder is known for what it is, and marked as finished after the last byte of the work is in place.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_backfill.errors import InputError


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


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
    wanted = json.loads(json.dumps({"stage": stage, "settings": settings}))
    path = folder / "manifest.json"
    if path.exists():
        found = read_json(path)
        difference = _first_difference({k: found.get(k) for k in wanted}, wanted)
        if difference:
            raise InputError(
                f"{folder} was made by another run ({difference}); choose another --out, or delete that folder"
            )
        return bool(found.get("finished"))
    if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
        raise InputError(f"{folder} holds files of something else (no manifest.json); choose another --out")
    write_json(path, wanted | {"finished": False})
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
