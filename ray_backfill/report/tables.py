"""Reads one table or manifest and says what is wrong with it, and what to do: the same for every kind of folder."""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from ray_backfill.errors import InputError


def read_table(path: Path, columns: tuple[str, ...], again: str, may_be_empty: bool = False) -> pd.DataFrame:
    """A Parquet file with at least these columns. again: what to do where it is not so, as "run simulate again".

    Raises:
        InputError: the file is missing or no Parquet, lacks a column, or has no rows.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: {again}, or give the folder that it wrote")
    try:
        frame = pd.read_parquet(path)
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise InputError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}): {again}") from error
    missing = [c for c in columns if c not in frame.columns]
    if missing:
        raise InputError(f"{path} lacks the column {', '.join(missing)}: {again} with this version")
    if frame.empty and not may_be_empty:
        raise InputError(f"{path} has no rows: {again}")
    return frame


def read_manifest(path: Path, again: str) -> dict[str, Any]:
    """A manifest that names the primary metric.

    Raises:
        InputError: the file is missing, no JSON object, or lacks the key.
    """
    if not path.is_file():
        raise InputError(f"{path} is missing: {again}, or give the folder that it wrote")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is not valid JSON ({error}): {again}") from error
    if not isinstance(manifest, dict) or "primary_metric" not in manifest:
        raise InputError(f"{path} lacks the key primary_metric: {again} with this version")
    return manifest
