"""Vectors from other stores, batch by batch, as Arrow columns. Knows nothing of the data contract.

One module for each kind of store, found by name; ``KINDS`` of a module are the kinds that it reads.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from ray_backfill.core.errors import InputError
from ray_backfill.core.plugins import load_plugin, plugin_names, rows_from_outside
from ray_backfill.core.secrets import cleaned, hide_in_chain, learn, needs_encoding
from ray_backfill.data.sources.source import BATCH_ROWS as BATCH_ROWS
from ray_backfill.data.sources.source import Source as Source
from ray_backfill.data.sources.source import SourceKind as SourceKind


def all_kinds() -> list[SourceKind]:
    """Every kind of source. Importing them loads no client."""
    package = sys.modules[__name__]
    modules = (load_plugin(package, name) for name in plugin_names(package) if name != "source")
    return [kind for module in modules for kind in module.KINDS] + rows_from_outside("SOURCES")


def open_source(text: str) -> Source:
    """Open the source that ``text`` names. Its name, its notes and all errors are without the secrets in ``text``.

    Raises:
        InputError: No kind of source is written like this, or it cannot be opened.
    """
    if not text:
        raise InputError("the name of a source of vectors is empty")
    learn(text)
    if needs_encoding(text):
        raise InputError(
            f"{text}: its password holds characters that must be percent-encoded (%2F for /, %40 for @, %23 for #); "
            "better, leave it out and give it in the environment, as docs/embeddings.md says"
        )
    for kind in all_kinds():
        if kind.recognises(text):
            with _without_secrets():
                return _hidden(kind.open(text))
    if re.fullmatch(r"[\w./~-]+", text) and not Path(text).exists():
        raise InputError(f"{text} does not exist")
    known = "; ".join(f"{kind.name}: {kind.example}" for kind in all_kinds())
    raise InputError(f"{text!r} is no source of vectors that is known here. {known}")


def _hidden(source: Source) -> Source:
    def read(names: Sequence[str], skip: int) -> Iterator[pa.RecordBatch]:
        with _without_secrets():
            yield from source.read(names, skip)

    return replace(source, name=cleaned(source.name), notes=tuple(cleaned(source.notes)), read=read)


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Hide secrets in errors of clients, which a caller in Python may print with all their causes."""
    try:
        yield
    except Exception as error:
        hide_in_chain(error)
        raise
