"""Score maps fitted on pairs of train items. Shapes: P sampled pairs i != j of train items, K knots."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.engine.distances import ProductForm
from ray_backfill.engine.merges.score_map import ScoreMap, identity
from ray_backfill.engine.systems import IntArray, UpgradePair

# Most pairs in a sample: enough to resolve the closest millionth, in about a second.
MOST_PAIRS = 1 << 20
# Most items that are drawn from one class, so that large classes do not dominate.
_MOST_OF_A_CLASS = 40
# Quantiles that become knots: this many evenly spaced ones, and this many per factor of ten towards the closest pair.
_EVEN_QUANTILES = 128
_QUANTILES_A_DECADE = 64
# Inverse strength of the regularisation: negligible, but slopes stay finite if the distance separates all matches.
_WEAK = 1e6

Maps = tuple[ScoreMap, ScoreMap]


@dataclass(frozen=True)
class _Sample:
    """backward, forward: (P,) float64 distances. is_match: (P,) whether both items have the same class, if needed."""

    backward: NDArray[np.float64]
    forward: NDArray[np.float64]
    is_match: NDArray[np.bool_] | None = None


def fit_quantile(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Map each backward distance to the forward distance of the same quantile; keep forward distances.

    Knots are dense at small distances, which decide the top of the ranking.
    """
    n = train.n_gallery
    if n * (n - 1) <= MOST_PAIRS:
        i, j = _all_pairs(np.arange(n))
    else:
        rng = np.random.default_rng(seed)
        i, j = rng.integers(0, n, MOST_PAIRS), rng.integers(0, n - 1, MOST_PAIRS)
        j += j >= i
    sample = _Sample(*_distances(train, distance, i, j))
    q = quantiles(len(i))
    x, of_x = np.unique(np.quantile(sample.backward, q), return_inverse=True)
    # A backward distance that many pairs share maps to the mean of their forward distances.
    y = np.bincount(of_x, np.quantile(sample.forward, q)) / np.bincount(of_x)
    return ScoreMap(x, np.maximum.accumulate(y)), identity()


def fit_isotonic(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Map distances to -P(match | distance), by isotonic regression; constant beyond the sampled distances."""
    from sklearn.isotonic import IsotonicRegression

    assert label is not None

    def fit(distances: NDArray[np.float64], is_match: NDArray[np.bool_]) -> ScoreMap:
        model = IsotonicRegression(increasing=False).fit(distances, is_match.astype(np.float64))
        x, y = model.X_thresholds_, -model.y_thresholds_
        # An extra knot at each end, because a map continues with the slope of its end segments.
        x = np.concatenate([[x[0] - 1], x, [x[-1] + 1]])
        return ScoreMap(x, np.maximum.accumulate(np.concatenate([y[:1], y, y[-1:]])))

    sample = _labelled_sample(train, label, distance, seed)
    assert sample.is_match is not None
    return fit(sample.backward, sample.is_match), fit(sample.forward, sample.is_match)


def fit_logistic(train: UpgradePair, label: IntArray | None, distance: str, seed: int) -> Maps:
    """Map distances to -logit P(match | distance), linear in the distance, by logistic regression.

    If matches are not closer than other pairs, all distances get the same uninformative score, minus the logit of the
    share of matches; raw distances then decide.
    """
    from sklearn.linear_model import LogisticRegression

    assert label is not None

    def fit(distances: NDArray[np.float64], is_match: NDArray[np.bool_]) -> ScoreMap:
        centre, spread = distances.mean(), distances.std()
        share = is_match.mean()
        uninformative = ScoreMap(np.array([centre]), np.array([np.log((1 - share) / share)]))
        if spread == 0:
            return uninformative
        model = LogisticRegression(C=_WEAK, tol=1e-8).fit(((distances - centre) / spread)[:, None], is_match)
        slope = -float(model.coef_[0, 0])
        if slope <= 0:
            return uninformative
        at_centre = -float(model.intercept_[0])
        return ScoreMap(np.array([centre, centre + spread]), np.array([at_centre, at_centre + slope]))

    sample = _labelled_sample(train, label, distance, seed)
    assert sample.is_match is not None
    return fit(sample.backward, sample.is_match), fit(sample.forward, sample.is_match)


def quantiles(n_pairs: int) -> NDArray[np.float64]:
    """Return (K,) quantiles, ascending from 0 to 1; small ones are equally many for each factor of ten."""
    decades = np.log10(max(n_pairs, 10))
    dense = np.geomspace(1 / max(n_pairs, 10), 1, int(np.ceil(decades * _QUANTILES_A_DECADE)))
    return np.unique(np.concatenate([[0.0], dense, np.linspace(0, 1, _EVEN_QUANTILES + 1)]))


def _labelled_sample(train: UpgradePair, label: IntArray, distance: str, seed: int) -> _Sample:
    """Sample all pairs of items of some randomly drawn classes, so that there are matches.

    Matches are more frequent than among all pairs, but equally so for both systems, so that scores stay comparable.

    Raises:
        InputError: No two items have the same class, or all items have the same class.
    """
    rows = _draw_classes(label, seed)
    i, j = _all_pairs(rows)
    is_match = label[i] == label[j]
    if not is_match.any():
        raise InputError(
            "no two train items have the same label, so there is no match to learn from; use the merge 'quantile'"
        )
    if is_match.all():
        raise InputError(
            "all train items have the same label, so there are only matches to learn from; use the merge 'quantile'"
        )
    return _Sample(*_distances(train, distance, i, j), is_match)


def _draw_classes(label: IntArray, seed: int) -> IntArray:
    """Return the rows of as many randomly drawn classes as MOST_PAIRS allows; only some rows of large classes."""
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(len(label))
    _, class_of_row = np.unique(label, return_inverse=True)
    place_of_class = rng.permutation(class_of_row.max() + 1)
    rows = shuffled[np.argsort(place_of_class[class_of_row[shuffled]], kind="stable")]
    # Number of rows of the same class before each row.
    starts = np.flatnonzero(np.diff(class_of_row[rows], prepend=-1))
    within = np.arange(len(rows)) - np.repeat(starts, np.diff(np.append(starts, len(rows))))
    return np.sort(rows[within < _MOST_OF_A_CLASS][: int(np.sqrt(MOST_PAIRS))])


def _all_pairs(rows: IntArray) -> tuple[IntArray, IntArray]:
    """Return all pairs in both directions, because the two sides of a system may come from different models."""
    i, j = (axis.ravel() for axis in np.meshgrid(rows, rows, indexing="ij"))
    return i[i != j], j[i != j]


def _distances(
    train: UpgradePair, distance: str, i: IntArray, j: IntArray
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the backward and forward distances of query rows i and gallery rows j, sorted by i."""
    by_row = np.argsort(i, kind="stable")  # so that memory is read in order
    backward, forward = (
        ProductForm.of(system, distance).exact(i[by_row], j[by_row]).astype(np.float64)
        for system in (train.backward, train.forward)
    )
    return backward, forward
