"""Vectors from other stores, batch by batch, as Arrow columns. Knows nothing of the data contract.

One module for each kind of store, found by name; ``KINDS`` of a module are the kinds that it reads.
"""

import re
import sys
from pathlib import Path

from ray_backfill.errors import InputError
from ray_backfill.plugins import load_plugin, plugin_names, rows_from_outside
from ray_backfill.sources.source import BATCH_ROWS as BATCH_ROWS
from ray_backfill.sources.source import Source as Source
from ray_backfill.sources.source import SourceKind as SourceKind


def all_kinds() -> list[SourceKind]:
    """Every kind of source. Importing them loads no client."""
    package = sys.modules[__name__]
    modules = (load_plugin(package, name) for name in plugin_names(package) if name != "source")
    return [kind for module in modules for kind in module.KINDS] + rows_from_outside("SOURCES")


def open_source(text: str) -> Source:
    """Open the source that ``text`` names.

    Raises:
        InputError: No kind of source is written like this, or it cannot be opened.
    """
    if not text:
        raise InputError("the name of a source of vectors is empty")
    for kind in all_kinds():
        if kind.recognises(text):
            return kind.open(text)
    if re.fullmatch(r"[\w./~-]+", text) and not Path(text).exists():
        raise InputError(f"{text} does not exist")
    known = "; ".join(f"{kind.name}: {kind.example}" for kind in all_kinds())
    raise InputError(f"{text!r} is no source of vectors that is known here. {known}")
