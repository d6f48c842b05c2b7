"""Fits the models of distances from the known items: of other items, of right answers, and how counts vary."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import GroundTruth, IntArray
from ray_backfill.forecast.answers import RightAnswers, fit_answers, logarithms
from ray_backfill.forecast.others import CELLS, PARTS, Calibration, Checked, OtherItems, calibrate, check, fit_others

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
# Pairs of a query and an item from which the model of other items is fitted.
_PAIRS = 8_000_000
# Queries whose distances to the known items are computed at a time.
_BLOCK = 16
_SEED = 7


@dataclass(frozen=True, eq=False)
class KnownItems:
    """Items whose new embeddings are known, and the chosen queries.

    position: (n,) gallery positions. weight: (n,) for how many items of the gallery each one stands, 1 / probability;
    0: it was not drawn at random. pilot: (n,) whether it was drawn uniformly, from the whole gallery. queries, group,
    n_groups: as in ``Sample``. done: (n,) whether the backfill has done it, in an order that is no random choice: such
    items do not stand for those that are still to be done.
    """

    position: IntArray
    weight: Floats
    pilot: NDArray[np.bool_]
    queries: IntArray
    group: IntArray
    n_groups: int
    done: NDArray[np.bool_]

    @property
    def at_random(self) -> NDArray[np.bool_]:
        """(n,) whether an item was drawn at random from those that are still to be done."""
        return (self.weight > 0) & ~self.done

    def rows_of(self, size: int) -> IntArray:
        """(N,) row of each gallery position, -1 for others. size: N."""
        rows_N = np.full(size, -1)
        rows_N[self.position] = np.arange(len(self.position))
        return rows_N

    def standing(self, rows: IntArray) -> NDArray[np.bool_]:
        """(k,) which of some right answers of a query stand for its others. rows: (k,) of the known items.

        Those that the backfill has done stand for others only where nothing else does.
        """
        found = self.at_random[rows]
        return found if found.any() else self.weight[rows] > 0


@dataclass(frozen=True, eq=False)
class KnownForms:
    """Distances to the known items. stand_in: to their stand-ins, by the forward system. old: by the old model.
    after: by the forward system.
    """

    stand_in: ProductForm
    old: ProductForm
    after: ProductForm

    @property
    def unit(self) -> float:
        """A usual distance: 1 under cosine, otherwise of the size of the longest vector."""
        return 1 / self.after.scale


@dataclass(frozen=True, eq=False)
class Models:
    """What is fitted on the known items. checked: of each chosen query."""

    others: OtherItems
    answers: RightAnswers
    calibration: Calibration
    checked: list[Checked]


def fit_models(known: KnownItems, forms: KnownForms, truth: GroundTruth) -> Models:
    """Fit all models of a method. Cost: O(n) for each of the queries."""
    rows_N = known.rows_of(truth.n_gallery)
    part = _parts(known, truth, rows_N)
    others = _fit_others(known, forms, truth, part)
    pairs, checked = [], []
    for query, stand_in, old, after in _distances(known.queries, forms):
        rows = rows_N[truth.positives_of(query)]
        rows = rows[rows >= 0]
        rows = rows[known.standing(rows)]
        pairs.append((logarithms(stand_in[rows], forms.unit), logarithms(after[rows], forms.unit)))
        there = known.at_random & ~np.isin(known.position, left_out_of(truth, query))
        at, answers = np.sort(after[rows]), len(truth.positives_of(query))
        cell = others.cells.of(others.cells.predict(stand_in[there], old[there]))
        expected = np.bincount(cell, minlength=CELLS) @ others.cumulative(at)[0]
        observed = np.searchsorted(np.sort(after[there]), at).astype(np.float64)
        checked.append(check(observed, expected, float(there.sum()) / truth.n_gallery, answers))
    return Models(others, fit_answers(pairs, forms.unit), calibrate(checked), checked)


def _distances(queries: IntArray, forms: KnownForms) -> Iterator[tuple[int, Floats32, Floats32, Floats32]]:
    """Each query with its distances to the known items: to their stand-ins, by the old model, and by the new one."""
    for first in range(0, len(queries), _BLOCK):
        block = queries[first : first + _BLOCK]
        found = (form.approximate(block) for form in (forms.stand_in, forms.old, forms.after))
        yield from zip(block.tolist(), *found, strict=True)


def left_out_of(truth: GroundTruth, query: int) -> IntArray:
    """Positions of a query's right answers and ignored items, ascending."""
    return np.sort(np.concatenate([truth.positives_of(query), truth.ignored_of(query)]))


def _fit_others(known: KnownItems, forms: KnownForms, truth: GroundTruth, part_n: IntArray) -> OtherItems:
    """Fit the model of other items on the randomly sampled items and some of all queries."""
    rows = np.flatnonzero(known.at_random)
    items, part = known.position[rows], part_n[rows]
    scored = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    number = max(1, min(len(scored), _PAIRS // len(items)))
    queries = np.sort(np.random.default_rng(_SEED).choice(scored, number, replace=False))
    is_other = ~np.stack([np.isin(items, left_out_of(truth, query)) for query in queries.tolist()])
    if not is_other.any():
        raise InputError("every sampled item is a right answer of every query: there is nothing to forecast")
    stand_in, old, true = (
        form.of_items(rows).approximate(queries)[is_other] for form in (forms.stand_in, forms.old, forms.after)
    )
    pair_weight = np.broadcast_to(known.weight[rows], is_other.shape)[is_other]
    pair_part = np.broadcast_to(part, is_other.shape)[is_other]
    return fit_others(stand_in, old, true, pair_weight, pair_part, forms.unit)


def _parts(known: KnownItems, truth: GroundTruth, rows_N: IntArray) -> IntArray:
    """(n,) part of each known item for the jackknife; right answers of a chosen query are in the same part."""
    part = np.random.default_rng(_SEED).permutation(len(known.position)) % PARTS
    for query, group in zip(known.queries.tolist(), known.group.tolist(), strict=True):
        rows = rows_N[truth.positives_of(query)]
        part[rows[rows >= 0]] = group % PARTS
    return part
