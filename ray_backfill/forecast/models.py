"""Models of distances, fitted on the known items: of other items, of right answers, and how counts vary.

Of items that are no right answers, a regression on the stand-in's distance, the old distance and their product predicts
the distance, all as logarithms; what remains is the empirical distribution of what is missing from the distance at
similar predictions. A regression of distances themselves expected items of narrow bands closer than any can be. Pairs
of a query and an item that was drawn at random are what it is fitted on; items that were taken because they are close
would bias it. How far the distribution may be off is estimated by the jackknife: items are divided into ``PARTS``, and
each part is left out in turn.

Queries differ in the shift and the scale of their distances. How much is estimated from the numbers of sampled items
that are closer than several distances, of all queries (``OtherItems.between_queries``). Far distances tell what a shift
and a scale change at a near one, where a sample has hardly any item (``_effects``).

Calibration checks that model on the items that were sampled at random: of each chosen query, those that are closer than
its sampled right answers are counted and compared with their expected number. Queries whose right answers are close
have more other close items, too. The shift and the scale that the sample shows at right answers correct the expected
numbers, as far as they are certain.

Of right answers that are not sampled, distances are drawn: log d = a + b log s + u + e. s is the distance of the item's
stand-in, u what the answers of a query have in common (normal), e the rest (empirical). That model is fitted by
expectation maximisation (Laird and Ware, 1982).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls
from scipy.stats import norm

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, kernel
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.systems import Floats, GroundTruth, IntArray

# Cells of predicted distance, of equal width.
CELLS = 256
# Parts of the items for the jackknife.
PARTS = 8
# Residuals are taken from at least 1 of so many pairs, within limits; cells with fewer share those of their neighbours.
# A distribution of few pairs ends at its lowest residual and expects too few closer items; one of a large share of all
# pairs mixes different predictions.
_SHARE, _FEWEST, _MOST = 2000, 150, 1000
# Points at which the distribution of residuals is kept; between them it is linear.
_GRID = 2048
# Standard deviations of shift and scale at right answers, before anything is observed.
_PRIOR = np.array([0.1, 0.1])
# Shares of closer items at which queries are compared.
_COMPARED_AT = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
# Variance of a number of closer items between queries, relative to its mean, at most; and of a factor's logarithm.
_MOST_VARIANCE, _MOST_EFFECT = 5.0, 3.0
# Draws of a distance for each unsampled right answer.
_DRAWS = 2
_SEED = 7

Floats32 = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Cells:
    """How items are divided by predicted distances; all are logarithms. coefficients: (4,) of constant, stand-in's
    distance, old distance, product. low, width: predictions are in cell (prediction - low) / width. unit: a usual
    distance.
    """

    coefficients: Floats32
    low: float
    width: float
    unit: float = 1.0

    def logs(self, distances: Floats32) -> Floats32:
        """Logarithms of distances, as the model takes them."""
        return logarithms(distances, self.unit)

    def predict(self, stand_in: Floats32, old: Floats32) -> Floats:
        """Logarithms of predicted distances, from distances; shapes as given."""
        a, b, c, d = self.coefficients.astype(np.float64)
        x, y = self.logs(stand_in).astype(np.float64), self.logs(old).astype(np.float64)
        return np.asarray(a + b * x + c * y + d * x * y)

    def of(self, predicted: Floats) -> NDArray[np.int64]:
        """The cell of each prediction."""
        return np.clip(((predicted - self.low) / self.width).astype(np.int64), 0, CELLS - 1)


@dataclass(frozen=True, eq=False)
class OtherItems:
    """The fitted model. bin_C: (CELLS,) bin of residuals of each cell. below: (PARTS, bins, _GRID + 1) weight of a
    part's residuals below each point of a grid, which starts at ``first`` and has steps of ``step``. between_queries:
    (2,) variances between queries of the shift of their distances, in standard deviations, and of the logarithm of
    their scale.
    """

    cells: Cells
    bin_C: NDArray[np.int64]
    below: Floats
    first: float
    step: float
    between_queries: Floats

    def cumulative(self, thresholds: Floats32) -> Floats:
        """(1 + PARTS, CELLS, M) probability that an item of a cell is closer than a threshold, and without each part.

        Cost: PARTS CELLS M.
        """
        out = np.empty((1 + PARTS, CELLS, len(thresholds)))
        middle = np.exp(self.cells.low + (np.arange(CELLS) + 0.5) * self.cells.width)
        _cumulative(middle, self.bin_C, self.below, self.first, self.step, thresholds, out)
        return out

    def variance(self, share: Floats) -> Floats:
        """Variance of the number of closer items, relative to its mean, between queries of which the same is expected.

        share: of all items that are expected closer. One variance for all shares would be that of the many far items,
        which a sample tells; the few nearest ones differ much more, and decide.
        """
        return np.clip(np.expm1(np.minimum(_effects(share) ** 2 @ self.between_queries, 5.0)), 0.01, _MOST_VARIANCE)


@kernel
def _cumulative(middle: Array, bins: Array, below: Array, first: float, step: float, at: Array, out: Array) -> None:
    grid = below.shape[2] - 1
    for c in range(len(bins)):
        whole = below[:, bins[c], grid].sum()
        for j in range(len(at)):
            place = (at[j] - middle[c] - first) / step
            place = min(max(place, 0.0), grid - 1e-9)
            point = int(place)
            rest = place - point
            total = 0.0
            for part in range(len(below)):
                here = below[part, bins[c], point] * (1 - rest) + below[part, bins[c], point + 1] * rest
                out[1 + part, c, j] = here
                total += here
            out[0, c, j] = total / whole
            for part in range(len(below)):
                others = whole - below[part, bins[c], grid]
                out[1 + part, c, j] = (total - out[1 + part, c, j]) / others if others > 0 else out[0, c, j]


def fit_others(
    stand_in: Floats32, old: Floats32, true: Floats32, weight: Floats, part: NDArray[np.int64],
    query: NDArray[np.int64], unit: float = 1.0,
) -> OtherItems:  # fmt: skip
    """Fit the model on pairs of a query and an item that is not its right answer.

    stand_in, old, true: (pairs,) distances of the item's stand-in, in the old model, and by its new embedding. weight:
    (pairs,) for how many items each one stands. part: (pairs,) of the item, for the jackknife. query: (pairs,) number
    of the query, from 0 on. unit: a usual distance.
    """
    cells = _fit_cells(stand_in, old, true, weight, unit)
    predicted = cells.predict(stand_in, old)
    cell = cells.of(predicted)
    bin_C = _bins(np.bincount(cell, minlength=CELLS))
    residual = true - np.exp(predicted)
    first, last = float(residual.min()) - 1e-6 * unit, float(residual.max()) + 1e-6 * unit
    step = (last - first) / _GRID
    bins = int(bin_C.max()) + 1
    # A residual is below the point that follows it.
    place = (part * bins + bin_C[cell]) * (_GRID + 1) + ((residual - first) / step).astype(np.int64) + 1
    mass = np.bincount(place, weight, PARTS * bins * (_GRID + 1)).reshape(PARTS, bins, _GRID + 1)
    others = OtherItems(cells, bin_C, np.cumsum(mass, axis=2), first, step, np.zeros(2))
    return replace(others, between_queries=_between_queries(others, cell, true, query))


def _between_queries(others: OtherItems, cell: NDArray[np.int64], true: Floats32, query: NDArray[np.int64]) -> Floats:
    """(2,) see ``OtherItems``, from the numbers of closer items of all queries, at several distances."""
    at = np.quantile(true, _COMPARED_AT).astype(np.float32)
    n_queries = int(query.max()) + 1
    likely = others.cumulative(at)[0]
    items_QC = np.bincount(query * CELLS + cell, minlength=n_queries * CELLS).reshape(n_queries, CELLS)
    expected_QK, by_chance_QK = items_QC @ likely, items_QC @ (likely * (1 - likely))
    observed_QK = np.stack([np.bincount(query[true < one], minlength=n_queries) for one in at], axis=1)
    told = (observed_QK.sum(axis=0) > 0) & (expected_QK.sum(axis=0) > 0)
    if not told.any():
        return np.zeros(2)
    shares = np.array(_COMPARED_AT)[told]
    expected_QK, by_chance_QK, observed_QK = (of[:, told] for of in (expected_QK, by_chance_QK, observed_QK))
    expected_QK *= observed_QK.sum(axis=0) / expected_QK.sum(axis=0)
    of_square = ((observed_QK - expected_QK) ** 2 - by_chance_QK).sum(axis=0) / (expected_QK**2).sum(axis=0)
    mean = observed_QK.mean(axis=0)
    weight = np.sqrt(mean / (1 + mean))  # few close items say little
    fitted, _ = nnls(_effects(shares) ** 2 * weight[:, None], np.log1p(np.maximum(of_square, -0.9)) * weight)
    return fitted


def _effects(share: Floats) -> Floats:
    """(..., 2) by how much the logarithm of a share changes with the shift of normal distances, in standard deviations,
    and with the logarithm of their scale. The first one is the inverse of the ratio of Mills (1926).
    """
    at = np.clip(share, 1e-9, 1 - 1e-9)
    quantile = norm.ppf(at)
    shift = norm.pdf(quantile) / at
    return np.stack([shift, -quantile * shift], axis=-1)


def _fit_cells(stand_in: Floats32, old: Floats32, true: Floats32, weight: Floats, unit: float) -> Cells:
    # Close pairs decide which right answers are overtaken.
    weight = weight * np.exp(-np.clip((stand_in - stand_in.mean()) / (stand_in.std() + 1e-12), -5, 1))
    near, far, y = (logarithms(distances, unit).astype(np.float64) for distances in (stand_in, old, true))
    x = np.stack([np.ones_like(near), near, far, near * far], axis=1)
    moments = (x * weight[:, None]).T @ x
    moments[np.diag_indices(4)] += 1e-9 * np.trace(moments)
    coefficients = np.linalg.solve(moments, (x * weight[:, None]).T @ y).astype(np.float32)
    predicted = Cells(coefficients, 0.0, 1.0, unit).predict(stand_in, old)
    low, high = float(predicted.min()) - 1e-4, float(predicted.max()) + 1e-4
    # A gallery has items that are predicted closer than any sampled one.
    low -= 0.5 * (high - low)
    return Cells(coefficients, low, (high - low) / CELLS, unit)


def _bins(pairs_C: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the cells, closest first, so that each number has at least 1 of ``_SHARE`` pairs, within limits."""
    bins, number, held = np.zeros(len(pairs_C), np.int64), 0, 0
    left = np.cumsum(pairs_C[::-1])[::-1]
    fewest = min(max(int(pairs_C.sum()) // _SHARE, _FEWEST), _MOST)
    for cell, pairs in enumerate(pairs_C.tolist()):
        bins[cell] = number
        held += pairs
        if held >= fewest and cell + 1 < len(pairs_C) and left[cell + 1] >= fewest:
            number, held = number + 1, 0
    return bins


@dataclass(frozen=True, eq=False)
class Checked:
    """Closer items among those sampled at random, at each sampled right answer of all chosen queries.

    observed, expected: (A,). share: (A,) expected, of all sampled ones. variance: (A,) between queries, relative to the
    mean. influence: (A,) how much an error of the count changes average precision.
    """

    observed: Floats
    expected: Floats
    share: Floats
    variance: Floats
    influence: Floats


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the sample shows of expected numbers at right answers. ratio: observed over expected. effects: (2,) shift
    and logarithm of the scale that correct them. covariance: (2, 2) of their errors.
    """

    ratio: float
    effects: Floats
    covariance: Floats

    def factor(self, share: Floats) -> Floats:
        """(M,) by which numbers of closer items are multiplied. share: of all items that are expected closer."""
        return np.exp(np.clip(_effects(share) @ self.effects, -_MOST_EFFECT, _MOST_EFFECT))

    def error(self, share: Floats) -> Floats:
        """(M,) standard deviation of the factor's logarithm."""
        effects = _effects(share)
        return np.asarray(np.sqrt(np.einsum("mi,ij,mj->m", effects, self.covariance, effects)))


# Of curves that are known.
EXACT = Calibration(1.0, np.zeros(2), np.zeros((2, 2)))


def check(observed: Floats, expected: Floats, sampled: int, findable: int, answers: int, others: OtherItems) -> Checked:
    """One query. observed, expected: (n,) at its sampled answers, ascending by distance. sampled, findable: number of
    other items in the sample and in the gallery. answers: number of its right answers.
    """
    number, share = len(observed), expected / max(sampled, 1)
    of_all = findable * share
    preceding = np.arange(number) * max(answers - 1, 0) / max(number - 1, 1) if number > 1 else np.array([answers / 2])
    influence = (1 + preceding) * of_all / (1 + preceding + of_all) ** 2 / number
    return Checked(observed, expected + 1e-6, share, others.variance(share), influence)


def calibrate(checked: list[Checked], group: IntArray) -> Calibration:
    """Fit the mean of negative binomial counts by maximum likelihood, weighted by influence.

    group: of each query; those of a group err together. Shift and scale have a normal prior (``_PRIOR``).
    """
    observed, expected, share, variance, weight = (
        np.concatenate([getattr(query, name) for query in checked])
        for name in ("observed", "expected", "share", "variance", "influence")
    )
    weight = weight / max(weight.sum(), 1e-12)
    effects, shape = _effects(share), 1 / variance

    def mean(of: Floats) -> Floats:
        return np.asarray(np.exp(np.clip(effects @ of, -_MOST_EFFECT, _MOST_EFFECT)) * expected)

    def loss(of: Floats) -> float:
        predicted = mean(of)
        return -float(weight @ (observed * np.log(predicted) - (observed + shape) * np.log(shape + predicted)))

    fitted = minimize(loss, np.zeros(2), method="Nelder-Mead").x
    predicted = mean(fitted)
    pull = weight / (1 + variance * predicted)
    of_answer = np.repeat(group, [len(query.observed) for query in checked])
    off = (pull * (observed - predicted))[:, None] * effects
    scores = np.stack([np.bincount(of_answer, of_effect) for of_effect in off.T], axis=1)
    information, by_chance = ((effects * (factor * pull * predicted)[:, None]).T @ effects for factor in (1.0, weight))
    # Answers of a group err together: by how much is one number, because few groups do not tell more.
    inverse = np.linalg.pinv(by_chance, hermitian=True)
    together = max(float(np.trace(inverse @ scores.T @ scores)) / 2, 1.0)
    # Of what the sample does not tell, the prior stays.
    of_sample = information @ inverse @ information / together
    covariance = np.linalg.inv(of_sample + np.diag(_PRIOR**-2))
    ratio = float(pull @ observed) / max(float(pull @ expected), 1e-12)
    return Calibration(ratio, covariance @ of_sample @ fitted, covariance)


def logarithms(distances: NDArray[Any], unit: float = 1.0) -> NDArray[Any]:
    """Logarithms of distances, bounded below; NaN stays. unit: a usual distance."""
    # The logarithms of shorter distances would outweigh all others.
    return np.asarray(np.log(np.maximum(distances, distances.dtype.type(1e-3 * unit))))


@dataclass(frozen=True, eq=False)
class AnswerModel:
    """The fitted model. common, rest: variances of u and e. residuals: what e is drawn from. unit: a usual distance."""

    constant: float
    slope: float
    common: float
    rest: float
    residuals: Floats
    unit: float = 1.0

    def draw(self, stand_in: Floats, known: Floats, rng: np.random.Generator) -> Floats:
        """Draw the distances of right answers of a query.

        stand_in: (k,) logarithms of their stand-ins' distances. known: what its sampled answers have beyond the
        prediction from theirs, ``excess``.
        """
        u = self._common_part(len(known), float(known.sum()), rng)
        return self._at(stand_in, u, rng)

    def draw_without_itself(self, stand_in: Floats, known: Floats, rng: np.random.Generator) -> Floats:
        """Draw the distance of each sampled answer as if it was not sampled. stand_in, known: (k,) of these answers."""
        number = len(known)
        u = np.array([self._common_part(number - 1, float(known.sum() - one), rng) for one in known])
        return self._at(stand_in, u, rng)

    def excess(self, stand_in: Floats, distance: Floats) -> Floats:
        """What the logarithms of some distances have beyond the prediction from the stand-ins'."""
        return np.asarray(distance - self.constant - self.slope * stand_in)

    def _common_part(self, number: int, total: float, rng: np.random.Generator) -> float:
        variance = self.common * self.rest / (self.rest + number * self.common)
        return float(total * variance / self.rest + np.sqrt(variance) * rng.standard_normal())

    def _at(self, stand_in: Floats, u: Floats | float, rng: np.random.Generator) -> Floats:
        rest = self.residuals[rng.integers(0, len(self.residuals), len(stand_in))]
        return np.asarray(np.exp(self.constant + self.slope * stand_in + u + rest))


def fit_answers(pairs: Sequence[tuple[Floats, Floats]], unit: float = 1.0) -> AnswerModel:
    """Fit the model. pairs: of each chosen query the logarithms of its sampled answers' distances: stand-in, true."""
    number = np.array([len(x) for x, _ in pairs])
    of = np.repeat(np.arange(len(pairs)), number)
    x, y = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    design = np.stack([np.ones_like(x), x], axis=1)
    common = rest = 0.5 * float(y.var()) + 1e-9
    u = np.zeros(len(pairs))
    for _ in range(40):
        (constant, slope), *_others = np.linalg.lstsq(design, y - u[of], rcond=None)
        off = y - constant - slope * x
        variance = 1 / (1 / common + number / rest)
        u = variance * np.bincount(of, off, len(pairs)) / rest
        left = off - u[of]
        common = float((u * u + variance).mean()) + 1e-12
        rest = float((left @ left + (number * variance).sum()) / len(y)) + 1e-12
    spread = float(left.std())
    residuals = left * (np.sqrt(rest) / spread) if spread else left
    return AnswerModel(float(constant), float(slope), common, rest, np.sort(residuals), unit)


@dataclass(frozen=True, eq=False)
class DrawnAnswers:
    """K entries. after: (K,) distances after the backfill. answer: (K,) index of the right answer.

    rank_share: (K,) for how many answers an entry stands where it precedes others. ahead: (K,) number of answers that
    precede it, without those of other entries: half of the others that it stands for. share: (K,) how many times it
    counts in a metric: a sampled answer stands for others, and what is drawn for it is subtracted, so that the models'
    errors cancel on average. sampled: (K,) index among the randomly sampled answers, or -1; sign: (K,) of its
    contribution. pool: number of answers from which these were sampled. random: (n,) their indices.
    """

    after: NDArray[np.float32]
    answer: IntArray
    rank_share: Floats
    ahead: Floats
    share: Floats
    sampled: IntArray
    sign: Floats
    pool: int
    random: IntArray


def draw_entries(
    model: AnswerModel, stand_in: Floats, true: Floats, at_random: NDArray[np.bool_], rng: np.random.Generator
) -> DrawnAnswers:
    """Draw for the right answers of a query.

    stand_in: (P,) distances of their stand-ins. true: (P,) after the backfill, NaN if not sampled. at_random: (P,)
    whether an answer was sampled at random.
    """
    is_known = ~np.isnan(true)
    known, hidden = np.flatnonzero(is_known), np.flatnonzero(~is_known)
    random = np.flatnonzero(is_known & at_random)
    number, near = len(random), logarithms(stand_in, model.unit)
    index = np.full(len(true), -1)
    index[random] = np.arange(number)
    stands_for = 1 + len(hidden) / number if number else 1.0
    parts = [(true[known], known, 1.0, 0.0, np.where(index[known] >= 0, stands_for, 1.0), index[known], 1.0)]
    excess = model.excess(near[random], logarithms(true[random], model.unit))
    # Distances are drawn for at most 80 unsampled answers, which stand for all.
    some = hidden if len(hidden) <= 80 else np.sort(rng.choice(hidden, 80, replace=False))
    for _ in range(_DRAWS if len(some) else 0):
        share = len(hidden) / len(some) / _DRAWS
        nobody = np.full(len(some), -1)
        others = (len(hidden) / len(some) - 1) / 2
        parts.append((model.draw(near[some], excess, rng), some, share, others, np.full(len(some), share), nobody, 0.0))
        if number:
            again = model.draw_without_itself(near[random], excess, rng)
            less = np.full(number, -len(hidden) / number / _DRAWS)
            parts.append((again, random, 0.0, 0.0, less, index[random], -1 / _DRAWS))
    sizes = [len(part[0]) for part in parts]
    after, answer, shares, sampled = (np.concatenate([part[i] for part in parts]) for i in (0, 1, 4, 5))
    rank_share, ahead, sign = (np.repeat([part[i] for part in parts], sizes).astype(np.float64) for i in (2, 3, 6))
    pool = number + len(hidden)
    return DrawnAnswers(after.astype(np.float32), answer, rank_share, ahead, shares, sampled, sign, pool, random)


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
        at_random = self.at_random[rows]
        return at_random if at_random.any() else self.weight[rows] > 0


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
    answers: AnswerModel
    calibration: Calibration
    checked: list[Checked]


def fit_models(known: KnownItems, forms: KnownForms, truth: GroundTruth) -> Models:
    """Fit all models of a method. Cost: O(n) for each of the queries."""
    rows_N, unit, findable_Q = known.rows_of(truth.n_gallery), forms.unit, np.full(truth.n_queries, truth.n_gallery)
    if (parts := truth.filter) is not None:
        findable_Q = np.bincount(parts.of_item, minlength=int(parts.of_query.max()) + 1)[parts.of_query]
    others = _fit_others(known, forms, truth, jackknife_parts(known, truth))
    pairs, checked = [], []
    for first in range(0, len(known.queries), 16):
        block = known.queries[first : first + 16]
        # Distances to the known items: to their stand-ins, by the old model, and by the new one.
        distances = (form.approximate(block) for form in (forms.stand_in, forms.old, forms.after))
        for query, stand_in, old, after in zip(block.tolist(), *distances, strict=True):
            rows = rows_N[truth.positives_of(query)]
            rows = rows[rows >= 0]
            rows = rows[known.standing(rows)]
            near, true = (logarithms(of[rows].astype(np.float64), unit) for of in (stand_in, after))
            pairs.append((near, true))
            there = known.at_random & counts_for(truth, query, known.position)
            at, answers = np.sort(after[rows]), len(truth.positives_of(query))
            cell = others.cells.of(others.cells.predict(stand_in[there], old[there]))
            expected = np.bincount(cell, minlength=CELLS) @ others.cumulative(at)[0]
            observed = np.searchsorted(np.sort(after[there]), at).astype(np.float64)
            checked.append(check(observed, expected, int(there.sum()), int(findable_Q[query]), answers, others))
    return Models(others, fit_answers(pairs, unit), calibrate(checked, known.group), checked)


def jackknife_parts(known: KnownItems, truth: GroundTruth) -> IntArray:
    """(n,) part of each known item for the jackknife; right answers of a chosen query are in the same part."""
    rows_N = known.rows_of(truth.n_gallery)
    part = np.random.default_rng(_SEED).permutation(len(known.position)) % PARTS
    for query, group in zip(known.queries.tolist(), known.group.tolist(), strict=True):
        rows = rows_N[truth.positives_of(query)]
        part[rows[rows >= 0]] = group % PARTS
    return part


def left_out_of(truth: GroundTruth, query: int) -> IntArray:
    """Positions of a query's right answers and ignored items, ascending."""
    return np.sort(np.concatenate([truth.positives_of(query), truth.ignored_of(query)]))


def counts_for(truth: GroundTruth, query: int, positions: IntArray) -> NDArray[np.bool_]:
    """(n,) whether gallery items are other ones that a query can find: no right answers, not ignored, of its part."""
    is_other = ~np.isin(positions, left_out_of(truth, query))
    parts = truth.filter
    return is_other if parts is None else is_other & (parts.of_item[positions] == parts.of_query[query])


def _fit_others(known: KnownItems, forms: KnownForms, truth: GroundTruth, part_n: IntArray) -> OtherItems:
    """Fit the model of other items on the randomly sampled items and some of all queries."""
    rows = np.flatnonzero(known.at_random)
    items, part = known.position[rows], part_n[rows]
    scored = np.flatnonzero(np.diff(truth.positive_starts) > 0)
    number = max(1, min(len(scored), 8_000_000 // len(items)))
    queries = np.sort(np.random.default_rng(_SEED).choice(scored, number, replace=False))
    is_other = np.stack([counts_for(truth, query, items) for query in queries.tolist()])
    if not is_other.any():
        raise InputError(
            "no query can find a sampled item but its right answers: there is nothing to forecast; sample more items"
        )
    stand_in, old, true = (
        form.of_items(rows).approximate(queries)[is_other] for form in (forms.stand_in, forms.old, forms.after)
    )
    pair_weight = np.broadcast_to(known.weight[rows], is_other.shape)[is_other]
    pair_part = np.broadcast_to(part, is_other.shape)[is_other]
    return fit_others(stand_in, old, true, pair_weight, pair_part, np.nonzero(is_other)[0], forms.unit)
