"""Right answers from files: judgements in TREC's format, and clicks."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ray_backfill.core.errors import InputError, local_path
from ray_backfill.data.folder import EmbeddingFolder
from ray_backfill.data.sources import open_source
from ray_backfill.data.truth import Truth, TruthKind, TruthRequest, from_pairs

_QRELS = ["query", "iteration", "item", "grade"]


def _qrels(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Judgements: query, iteration, item and grade in each line. A grade above 0 is a right answer."""
    path = local_path(request.argument)
    lines = _read_qrels(path)
    grades = pd.to_numeric(lines["grade"], errors="coerce").to_numpy(np.float64)
    if not np.isfinite(grades).all():
        wrong = int((~np.isfinite(grades)).argmax())
        found = lines["grade"].iloc[wrong]
        raise InputError(f"{path}, line {lines.index[wrong] + 1}: the grade must be a finite number, not {found!r}")
    if not (grades > 0).any():
        raise InputError(f"{path} has no grade above 0, so nothing is a right answer")
    right = grades > 0
    ground, notes = from_pairs(
        folder, str(path), lines["query"].to_numpy()[right], lines["item"].to_numpy()[right], grades[right]
    )
    facts = {"path": str(path), "judgements": len(lines), "right_answers": int(right.sum())}
    return Truth(ground, facts, notes)


def _read_qrels(path: Path) -> pd.DataFrame:
    """The lines with their four words as text. The index counts lines of the file, blank ones included, from 0."""
    why = ""
    try:
        # An id may be "null" or "NA".
        plain: Any = {"header": None, "dtype": str, "quoting": 3, "keep_default_na": False}
        lines = pd.read_csv(path, sep=r"\s+", skip_blank_lines=False, **plain).fillna("")
        lines = lines[(lines != "").any(axis=1)]
    except pd.errors.EmptyDataError as error:
        raise InputError(f"{path} is empty") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        lines, why = pd.DataFrame(), f": {' '.join(str(error).split())}"
    if lines.shape[1] != len(_QRELS) or (lines == "").to_numpy().any():
        raise InputError(f"{path} must have four words in each line (query, iteration, item, grade){why}")
    return lines.set_axis(_QRELS, axis=1)


def _clicks(folder: EmbeddingFolder, request: TruthRequest) -> Truth:
    """Clicks: a table with the columns query, item and, if there are several, clicks.

    An item's clicks are its grade, and all clicks of a query are its weight: what is asked often counts more.
    """
    source = open_source(request.argument)
    source.need(("query", "item"))
    names = [name for name in ("query", "item", "clicks") if name in source.columns]
    frames = [batch.to_pandas() for batch in source.read(names, 0)]
    if not frames:
        raise InputError(f"{source.name} has no rows")
    lines = pd.concat(frames, ignore_index=True)
    for name in ("query", "item"):
        if pd.api.types.is_float_dtype(lines[name]) and (lines[name] % 1 == 0).all():
            lines[name] = lines[name].astype(np.int64)
    counts = lines.get("clicks", pd.Series(1.0, index=lines.index))
    if not pd.api.types.is_numeric_dtype(counts) or not (np.isfinite(counts) & (counts > 0)).all():
        raise InputError(f"{source.name}, column 'clicks' must hold finite numbers above 0")
    pairs = lines.assign(clicks=counts).groupby(["query", "item"], as_index=False)["clicks"].sum()
    clicks = pairs["clicks"].to_numpy(np.float64)
    ground, notes = from_pairs(folder, source.name, pairs["query"].to_numpy(), pairs["item"].to_numpy(), clicks)
    table = folder.queries or folder.gallery
    of_query = pairs.groupby(pairs["query"].astype(str))["clicks"].sum()
    # A query without clicks has no right answer, so its weight counts nowhere.
    weights = of_query.reindex(table.id.astype(str)).fillna(1.0).to_numpy()
    return Truth(
        ground.with_weights(weights),
        {"path": source.name, "clicks": float(clicks.sum()), "weighted_by": "clicks"},
        notes,
    )


TRUTHS = (
    TruthKind("qrels", "FILE", "Judgements in TREC's format, with grades.", _qrels),
    TruthKind(
        "clicks",
        "SOURCE",
        "A table with the columns query, item and clicks; frequent queries weigh more.",
        _clicks,
    ),
)
