"""Finds rows that do not belong together: the new model's vectors in another order of items than the old model's.

Nothing in the files tells, but neighbours do: two models agree on some of an item's nearest items, however little they
have in common, and on none but by chance if the vectors are of different items. A test tells the two apart on a sample.

Source: Friedman and Rafsky, "Graph-theoretic measures of multivariate association and prediction", Annals of
Statistics 11, 1983: the number of common edges of two graphs of nearest neighbours, by permutations of one of them.

Shapes: N items of a split, n items of its sample, m items of the sample in which neighbours are sought, d dimensions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.data.folder import EmbeddingFolder, EmbeddingTable
from ray_backfill.data.vectors import hash_rows
from ray_backfill.engine.systems import IntArray

# Items of a sample, in blocks of rows that follow each other, so that moved rows are seen, too.
_SAMPLE, _BLOCK = 2_000, 50
_NEAREST, _DRAWS = 10, 100
# Rows of one model that may come so many rows later in the other: a line too many, or a few.
_MOVES = tuple(sign * by for by in range(1, 11) for sign in (1, -1))
# A part is judged by itself if it has so many items of the sample.
_OF_PART = 200
# More than chance: so many standard deviations. No more than chance: with as many on top, still less than this share of
# the neighbours. benchmarks/alignment.py measures how often honest models are taken for rows of other items.
_SURE, _LEAST = 4.0, 0.01

REMEDY = "same row order? Join old and new by id: ray-backfill import --gallery OLD NEW"


def check_alignment(folder: EmbeddingFolder) -> None:
    """Raise InputError for the first split whose rows do not belong together; see ``misaligned``."""
    for where, what in misaligned(folder):
        raise InputError(f"{where}: {what}; {REMEDY}")


def misaligned(folder: EmbeddingFolder) -> Iterator[tuple[str, str]]:
    """Yield the splits whose old and new vectors seem to be of different items, and a sentence about each.

    Gallery items are compared with each other, the items of any other split with those of the gallery that they find
    by each model, or with each other if the gallery has no new embeddings. Splits of few different vectors pass.

    Cost: for each split, two matrix products of at most 2,000 x 2,000 vectors, whatever its size.
    """
    of_gallery = _sampled(folder.gallery)
    if of_gallery is not None and (what := _what_is_wrong(of_gallery, of_gallery)):
        yield folder.gallery.path.name, what
        return  # what the others find in it says nothing
    tables = {each.path: each for each in (folder.validation, folder.train, folder.queries) if each is not None}
    for path, table in reversed(tables.items()):
        sample = _sampled(table) if path.parent == folder.path else None  # not a sample of the gallery
        if sample is not None and (what := _what_is_wrong(sample, of_gallery or sample)):
            yield path.name, what


@dataclass(frozen=True, eq=False)
class _Sample:
    """Vectors of length 1, (n, d) by each model, and (n,) their rows in the file, ascending."""

    old: NDArray[np.float32]
    new: NDArray[np.float32]
    rows: IntArray


def _sampled(table: EmbeddingTable) -> _Sample | None:
    """Rows from all over a split whose vectors differ from those before; None if there are too few, or one model."""
    n = len(table)
    if "new" not in table.vectors:
        return None
    starts = np.linspace(0, max(0, n - _BLOCK), _SAMPLE // _BLOCK).astype(np.int64)
    places = np.arange(n) if table.rows is None else table.rows
    rows = np.argsort(places)[np.unique(starts[:, None] + np.arange(min(n, _BLOCK)))]
    both = [table.vectors[model][rows].astype(np.float32) for model in ("old", "new")]
    of_old, of_new = (np.unique(hash_rows(each), return_index=True)[1] for each in both)
    kept = np.intersect1d(of_old, of_new)
    if len(kept) < 2 * _NEAREST:
        return None
    old, new = (_unit(each[kept]) for each in both)
    return _Sample(old, new, places[rows[kept]])


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    centred = vectors - vectors.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return centred / np.maximum(lengths, np.finfo(np.float32).tiny)


def _what_is_wrong(items: _Sample, gallery: _Sample) -> str:
    """A sentence without its full stop; "" if nothing is. gallery: where the items' neighbours are sought."""
    is_own = items is gallery
    near_old, near_new = (
        _nearest(mine, theirs, is_own) for mine, theirs in ((items.old, gallery.old), (items.new, gallery.new))
    )
    all_n = np.arange(len(items.rows))
    is_near_nm = np.zeros((len(items.rows), len(gallery.rows)), np.bool_)
    is_near_nm[all_n[:, None], near_new] = True
    parts = np.array_split(all_n, max(1, len(all_n) // _OF_PART))
    if moved := _moved(items, gallery, near_old, is_near_nm, parts):
        return moved
    common_n = is_near_nm[all_n[:, None], near_old].sum(axis=1)
    rng = np.random.default_rng(0)
    by_chance = np.stack([is_near_nm[rng.permutation(all_n)[:, None], near_old].sum(axis=1) for _ in range(_DRAWS)])
    strange = [part for part in parts if _is_chance(common_n[part], by_chance[:, part])]
    if len(parts) > 1 and _is_chance(common_n, by_chance):
        strange = parts
    if not strange:
        return ""
    return f"the nearest items by old and by new{_where(items, strange, len(parts))} have no more in common than chance"


def _nearest(items: NDArray[np.float32], gallery: NDArray[np.float32], is_own: bool) -> IntArray:
    """(n, k) the items of the gallery with the largest cosines, in any order."""
    cosines = items @ gallery.T
    if is_own:
        np.fill_diagonal(cosines, -np.inf)
    return np.argpartition(-cosines, _NEAREST, axis=1)[:, :_NEAREST]


def _is_chance(common_n: NDArray[np.int64], by_chance: NDArray[np.int64]) -> bool:
    """Whether items share no more than chance, and would if they shared but ``_LEAST`` more.

    by_chance: (draws, n) what they share with each other's neighbours.
    """
    draws = by_chance.sum(axis=1)
    expected, spread = draws.mean(), draws.std()
    more, most = common_n.sum() - expected, _NEAREST * len(common_n) - expected
    return bool(more < _SURE * spread and more + _SURE * spread < _LEAST * most)


def _moved(
    items: _Sample, gallery: _Sample, near_old: IntArray, is_near_nm: NDArray[np.bool_], parts: list[IntArray]
) -> str:
    """By how many rows new is moved, if it then has more neighbours in common with old than as it is."""
    for by in _MOVES:
        later_n = np.searchsorted(items.rows, items.rows + by)
        is_there_n = np.isin(items.rows + by, items.rows)
        later_n[~is_there_n] = 0
        found, is_found = (later_n[near_old], is_there_n[near_old]) if items is gallery else (near_old, True)
        more_n = (is_near_nm[later_n[:, None], found] & is_found).sum(axis=1)
        more_n -= (is_near_nm[np.arange(len(near_old))[:, None], near_old] & is_found).sum(axis=1)
        strange = [part for part in parts if _is_above_0(more_n[part[is_there_n[part]]])]
        if strange:
            where, rows = _where(items, strange, len(parts)), f"{abs(by)} row{'s' * (abs(by) > 1)}"
            return f"new fits old better{where} {rows} {'later' if by > 0 else 'earlier'}"
    return ""


def _is_above_0(values: NDArray[np.int64]) -> bool:
    """Whether a mean is above 0 by more than ``_SURE`` standard errors."""
    return bool(len(values) > _NEAREST and values.mean() > _SURE * values.std() / np.sqrt(len(values)))


def _where(items: _Sample, parts: list[IntArray], of: int) -> str:
    """Rows from the first to the last of these parts; "" if these are all."""
    if len(parts) == of:
        return ""
    return f" in rows {items.rows[parts[0][0]]:,} to {items.rows[parts[-1][-1]]:,}"
