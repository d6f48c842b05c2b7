"""What a result depends on. Two runs are the same if their keys are equal; nothing else decides that."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ray_backfill.core.secrets import cleaned

_PIECE_BYTES = 64 << 20


@dataclass(frozen=True)
class RunKey:
    """Everything that a result depends on, as plain data for its manifest.

    product: what is made, for example "simulation" or "map". settings: what was asked for. made_from: name of an input,
    as a message says it with "_" for spaces, and its fingerprint; "" for an input that is not there. format: version of
    what is stored; increase it when the shape of a table or the meaning of the key changes.
    """

    product: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    made_from: Mapping[str, str] = field(default_factory=dict)
    format: int = 1

    def recorded(self) -> dict[str, Any]:
        """The key as a manifest holds it: without inputs that are not there, the first format, and secrets.

        So a new password of the same database is no other run.
        """
        stored = {"format": self.format} if self.format > 1 else {}
        there = {name: mark for name, mark in self.made_from.items() if mark}
        assert not there.keys() & self.settings.keys(), "a setting has the name of an input"
        settings: dict[str, Any] = cleaned(json.loads(json.dumps({**stored, **self.settings, **there})))
        return {"stage": self.product, "settings": settings}

    def fingerprint(self) -> str:
        """A hash of the key, for files that have no room for all of it."""
        return fingerprint(json.dumps(self.recorded(), sort_keys=True))

    def difference(self, manifest: Mapping[str, Any]) -> str:
        """In what the run that wrote this manifest differs from this one, for a message; "" if they are the same."""
        wanted = self.recorded()
        if manifest.get("stage") != self.product:
            return first_difference({"stage": manifest.get("stage")}, {"stage": self.product})
        recorded = manifest.get("settings")
        if not isinstance(recorded, dict):
            return "its settings are not recorded"
        if other := other_format(recorded, self.format):
            return other
        there, here = (
            {name: value for name, value in settings.items() if name not in self.made_from}
            for settings in (recorded, wanted["settings"])
        )
        if difference := first_difference(there, here):
            return difference
        changed = [name for name, mark in self.made_from.items() if recorded.get(name, "") != mark]
        words = ", ".join(name.replace("_", " ") for name in changed)
        return f"different from the earlier run: {words}" if changed else ""


def other_format(settings: Any, format: int) -> str:
    """Says which format a manifest's settings have, for a message; "" if it is ``format``."""
    found = settings.get("format", 1) if isinstance(settings, dict) else "unknown"
    other = "an earlier" if isinstance(found, int) and found < format else "another"
    words = f"made by {other} version of ray-backfill: format {found} there, {format} now"
    return words if found != format else ""


def fingerprint(*parts: object) -> str:
    """A hash of arrays (type, shape and values) and of plain values; None counts as a value."""
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray) and part.dtype != object:
            digest.update(f"{part.dtype}{part.shape}".encode())
            values = np.ascontiguousarray(part).reshape(-1).view(np.uint8)
            for first in range(0, len(values), _PIECE_BYTES):
                digest.update(values[first : first + _PIECE_BYTES].data)
        else:
            digest.update(repr(part.tolist() if isinstance(part, np.ndarray) else part).encode())
    return digest.hexdigest()


def first_difference(there: Any, wanted: Any) -> str:
    """Describe the first difference of two values, of which one was read from JSON; "" if they are equal."""
    return _first_difference(there, json.loads(json.dumps(wanted)))


def _first_difference(found: Any, wanted: Any, name: str = "") -> str:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in found if key not in wanted)]:
            inner = f"{name}.{key}" if name else key
            difference = _first_difference(found.get(key), wanted.get(key), inner)
            if difference:
                return difference
        return ""
    if found == wanted:
        return ""
    # The settings of a whole model would fill the screen.
    there, requested = ("something else" if isinstance(value, dict) else repr(value) for value in (found, wanted))
    return f"{name}: {there} there, {requested} requested"
