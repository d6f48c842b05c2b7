"""Finds rows that do not belong together: the new model's vectors in another order of items than the old model's.

The files do not say, but similarities do: two models mostly agree on which items are similar, and no better than chance
if their vectors are of different items. So the cosines of pairs of items by old and by new correlate.

Source: Szekely and Rizzo, "Partial distance correlation with methods for dissimilarities", Annals of Statistics 42,
2014: centred so that the correlation of n unrelated items has the mean 0, and the variance 2 / (n (n - 3)).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.vectors import hash_rows
from ray_backfill.data.words import words_of
from ray_backfill.engine.systems import IntArray

# Items of a sample, in blocks of rows that follow each other, so that moved rows are seen; and the fewest items.
_SAMPLE, _BLOCK, _FEWEST = 2_000, 50, 50
# More than chance: so many standard deviations above 0. No more than chance: with as many on top still below this
# correlation, which models in use exceed (benchmarks/alignment.py).
_SURE, _LEAST = 4.0, 0.03
# A part of a split, or what it has in common with the gallery, is strange if its correlation is below this share of the
# usual one, where that is above the second number (docs/results/alignment.md).
_STRANGE, _CLEAR = 0.25, 0.1
# Items of a part, and by how many rows new may come later than old.
_PART, _MOVES = 200, (1, -1, 2, -2, 3, -3)

Cosines = NDArray[np.float32]


def check_alignment(folder: EmbeddingFolder) -> None:
    """Raise InputError for the first split whose rows do not belong together; see ``misaligned``."""
    for where, what in misaligned(folder):
        raise InputError(f"{where}: {what}; {words_of(folder.path)['join']}")


def misaligned(folder: EmbeddingFolder) -> Iterator[tuple[str, str]]:
    """Yield the splits whose old and new vectors seem to be of different items, and a sentence about each.

    Not seen: splits of fewer than some 250 different items, rows that are wrong here and there, and a gallery in which
    whole classes have changed places if no other split tells.

    Cost: four matrix products of at most 2,000 x 2,000 vectors for each split, whatever its size.
    """
    gallery = _sampled(folder.gallery)
    what, usual = _what_is_wrong(gallery) if gallery is not None else ("", 0.0)
    if what:
        yield folder.called("gallery"), what
        return  # it says nothing about the others
    others = {table.path: table for table in (folder.validation, folder.train, folder.queries) if table is not None}
    for path, table in reversed(others.items()):
        sample = _sampled(table) if path.parent == folder.path else None  # no sample of the gallery
        if sample is None:
            continue
        what, own = _what_is_wrong(sample)
        if not what and gallery is not None and (most := max(own, usual)) > _CLEAR:
            both = (sample.old @ gallery.old.T, sample.new @ gallery.new.T)
            if _correlation(*map(_centred, both)) < _STRANGE * most:
                what = "its items are similar to some gallery items by old, and to others by new"
        if what:
            yield folder.called(path.stem), what


class _SampledRows(NamedTuple):
    """Vectors of length 1, (n, d) by each model, and (n,) their rows in the file, ascending."""

    old: NDArray[np.float32]
    new: NDArray[np.float32]
    rows: IntArray


def _sampled(table: EmbeddingTable) -> _SampledRows | None:
    """Rows from all over a split whose vectors differ from those before; None if there are too few, or one model."""
    if "new" not in table.vectors:
        return None
    n = len(table)
    starts = np.linspace(0, max(0, n - _BLOCK), _SAMPLE // _BLOCK).astype(np.int64)
    places = np.arange(n) if table.rows is None else table.rows
    rows = np.argsort(places)[np.unique(starts[:, None] + np.arange(min(n, _BLOCK)))]
    both = [table.vectors[model][rows].astype(np.float32) for model in ("old", "new")]
    of_old, of_new = (np.unique(hash_rows(vectors), return_index=True)[1] for vectors in both)
    kept = np.intersect1d(of_old, of_new)
    if len(kept) < _FEWEST:
        return None
    old, new = (_unit(vectors[kept]) for vectors in both)
    return _SampledRows(old, new, places[rows[kept]])


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = vectors - vectors.mean(axis=0)
    return centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def _what_is_wrong(sample: _SampledRows) -> tuple[str, float]:
    """A sentence without its full stop, "" if nothing is wrong; and the correlation of the cosines by both models."""
    old, new = (_centred(vectors @ vectors.T, is_own=True) for vectors in (sample.old, sample.new))
    n, parts = len(old), np.array_split(np.arange(len(old)), max(1, len(old) // _PART))
    for by in _MOVES:
        strange = [part for part in parts if _fits_better(old, new, sample.rows, by, part)]
        if strange:
            rows = f"{abs(by)} row{'s' * (abs(by) > 1)} {'below' if by > 0 else 'above'}"
            return f"an item's new vector seems to be {rows} its old one{_where(sample, strange, parts)}", 0.0
    found, deviation = _correlation(old, new), np.sqrt(2 / (n * (n - 3)))
    by_chance = "old and new agree no better than chance on which items are similar"
    if found < min(_SURE * deviation, _LEAST - _SURE * deviation):
        return f"{by_chance} (correlation {found:.3f})", found
    of_part = np.array([_correlation(old[part], new[part]) for part in parts])
    usual = float(np.quantile(of_part, 0.75))
    strange = [part for part, own in zip(parts, of_part, strict=True) if usual > _CLEAR and own < _STRANGE * usual]
    if strange:
        return by_chance + _where(sample, strange, parts), found
    return "", found


def _centred(cosines: Cosines, is_own: bool = False) -> Cosines:
    """Without the means of rows and columns; is_own: of (n, n) pairs of the same items, without the diagonal."""
    if not is_own:
        return cosines - cosines.mean(axis=0) - cosines.mean(axis=1, keepdims=True) + cosines.mean()
    n = len(cosines)
    np.fill_diagonal(cosines, 0)
    sums = cosines.sum(axis=1) / (n - 2)
    centred: Cosines = cosines - sums - sums[:, None] + sums.sum() / (n - 1)
    np.fill_diagonal(centred, 0)
    return centred


def _correlation(old: Cosines, new: Cosines) -> float:
    return float(np.vdot(old, new) / max(np.sqrt(np.vdot(old, old) * np.vdot(new, new)), np.finfo(np.float32).tiny))


def _fits_better(old: Cosines, new: Cosines, rows: IntArray, by: int, part: IntArray) -> bool:
    """Whether items of a part have more in common with new so many rows later, by more than chance."""
    is_there = np.isin(rows + by, rows)
    there = np.flatnonzero(is_there)
    later, own = np.searchsorted(rows, rows[there] + by), part[is_there[part]]
    if len(own) < _FEWEST:
        return False
    moved = new[np.searchsorted(rows, rows[own] + by)][:, later] - new[own][:, there]
    gained = np.einsum("ij,ij->i", old[own][:, there], moved)
    return bool(gained.mean() > _SURE * gained.std() / np.sqrt(len(gained)))


def _where(sample: _SampledRows, strange: list[IntArray], parts: list[IntArray]) -> str:
    """Rows from the first to the last of some parts; "" if these are all."""
    if len(strange) == len(parts):
        return ""
    return f" in about rows {sample.rows[strange[0][0]]:,} to {sample.rows[strange[-1][-1]]:,}"
