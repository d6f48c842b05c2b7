"""Rows of another model among the vectors of a column, found without either model.

Real models use few of their directions much, and most of them little. What model A uses much means nothing to model B:
seen along the axes of A, vectors of B lie flat, whatever they are about. Of each row the *slope* says how much of the
column's own profile it has: the regression of the logarithm of its energy in bins of axes on that of the column's
typical row. It is about 1 for the column's own rows and 0 for a row of another model. Rows on another subject are flat,
too, but not how they differ from each other: so the rows with a low slope are tested together, without their mean.

Which probability this has, and what it cannot see: docs/results/foreign.md.

Shapes: n rows, d dimensions, b bins of axes.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.data.vectors import hash_rows
from ray_backfill.engine.distances import normalise
from ray_backfill.engine.systems import FloatArray

Vectors = NDArray[np.float32]

# Fewest different vectors among which rows are looked for; most dimensions that are used, drawn at random.
FEWEST, _MOST_DIMS = 500, 512
_BINS = 12
# Passes whose axes come from half of the rows, which is rather of one model, then from all native ones.
_HALVES, _NATIVES = 2, 2
# The rule, fixed before the trials of docs/results/foreign.md. Rows below LOW are candidates, those from NATIVE on make
# the axes. Candidates are of another model if their common slope, less its standard error, lies in FLAT, and that
# error is at most KNOWN. A column whose own slopes spread more than WIDE has no profile that would tell.
LOW, NATIVE, FLAT, KNOWN, WIDE = 0.2, 0.5, (-0.25, 0.04), 0.1, 0.4
_FEWEST_ROWS = 3
# Two groups of lengths: the gap between them, as a multiple of the larger spread within.
_GAP = 4.0
_FEWEST_SHARE = 0.02
# A jump of the mean: rows of a block, and blocks on each side; the distance of both means over the length of the larger
# one (about 1.4 between the unrelated directions of two models), and over the spread of the blocks' means on each side.
_BLOCK_ROWS, _FEWEST_BLOCKS = 256, 2
_JUMP, _JUMP_OVER_SPREAD = 0.7, 3.0


def foreign_rows(vectors_nd: FloatArray) -> NDArray[np.int64]:
    """Rows that another model has made, sorted; none if there are too few rows, or nothing can be told.

    vectors_nd: a sample, none of them zero or not finite; lengths do not count. Rows that differ in their model's
    training only, or in the preprocessing of their items, are not found. Cost: O(n min(d, 512)^2), 3 s for 4,000 rows
    of 512 dimensions or more on one core.
    """
    different = np.unique(hash_rows(vectors_nd), return_index=True)[1]
    if len(different) < FEWEST or vectors_nd.shape[1] < 2:
        return np.empty(0, np.int64)
    rng = np.random.default_rng(0)
    used = np.sort(rng.permutation(vectors_nd.shape[1])[:_MOST_DIMS])
    x = normalise(vectors_nd[different][:, used]).astype(np.float32)
    fold = rng.permutation(len(x)) % 2
    slope_n = _slopes(x, fold)
    low, native = slope_n < LOW, slope_n >= NATIVE
    own = slope_n[~low]
    is_wide = 1.4826 * np.median(np.abs(own - np.median(own))) > WIDE if len(own) else True
    if low.sum() < _FEWEST_ROWS or is_wide or min(native[fold == 0].sum(), native[fold == 1].sum()) < 2:
        return np.empty(0, np.int64)
    slope, error = _common_slope(x[low], x[native & (fold == 0)], x[native & (fold == 1)])
    is_flat = FLAT[0] <= slope - error <= FLAT[1] and error <= KNOWN
    return np.sort(different[low]) if is_flat else np.empty(0, np.int64)


def _slopes(x: Vectors, fold: NDArray[np.int64]) -> NDArray[np.float64]:
    """(n,) slopes. A row's axes come from rows of the other fold, its typical row from its own."""
    kept, slope_n = _larger_side(x), np.empty(len(x))
    for step in range(_HALVES + _NATIVES + 1):
        for number in (0, 1):
            here = fold == number
            makes, typical = kept & ~here, kept[here]
            if min(makes.sum(), typical.sum()) < 2:
                return np.ones(len(x))
            energy_nb = _energies(x[here], _axes(x[makes]))
            weight_b = _regression(np.median(energy_nb[typical], axis=0), np.diff(_edges(x.shape[1])))
            slope_n[here] = np.log(energy_nb + 1e-12) @ weight_b
        kept = slope_n >= (np.median(slope_n) if step < _HALVES - 1 else NATIVE)
    return slope_n


def _larger_side(x: Vectors) -> NDArray[np.bool_]:
    """(n,) the larger of two groups along the axis of most variance: two models' means usually differ most there."""
    centred = x - x.mean(axis=0)
    along = centred @ _axes(centred)[:, 0]
    middle = 0.0
    for _ in range(20):  # two means
        side = along > middle
        if not 0 < side.sum() < len(side):
            break
        middle = (along[side].mean() + along[~side].mean()) / 2
    return side if side.mean() > 0.5 else ~side


def _common_slope(rows: Vectors, makes: Vectors, typical: Vectors) -> tuple[float, float]:
    """The slope of how candidates differ from each other, and its standard error.

    makes, typical: native rows that make the axes, and the profile.
    """
    centre = makes.mean(axis=0)
    axes, widths = _axes(makes - centre), np.diff(_edges(rows.shape[1]))
    weights = np.where(np.arange(len(widths)), widths, 0)  # one direction says little, and has the largest energy
    weight_b = _regression(_energies(typical - centre, axes).mean(axis=0), weights)
    apart = rows - rows.mean(axis=0)
    slope = np.log(_energies(apart, axes).mean(axis=0) + 1e-12) @ weight_b
    spread = np.linalg.eigvalsh(apart.T @ apart if len(apart) > apart.shape[1] else apart @ apart.T)
    independent = spread.sum() ** 2 / (spread**2).sum()  # rows that would vary as much, each in all directions
    return float(slope), float(np.sqrt((weight_b**2 * 2 / (widths * independent)).sum()))


def _edges(dims: int) -> NDArray[np.int64]:
    """(b + 1,) first axis of each bin: they widen, because energy falls steeply first."""
    return np.unique(np.round(np.geomspace(1, dims + 1, _BINS + 1)).astype(np.int64)) - 1


def _axes(x: Vectors) -> Vectors:
    """(d, d) orthonormal columns, the axis of most energy first."""
    return np.asarray(np.linalg.eigh(x.T @ x)[1][:, ::-1])


def _energies(x: Vectors, axes: Vectors) -> NDArray[np.float64]:
    """(n, b) mean squared coordinate along the axes of each bin."""
    edges = _edges(x.shape[1])
    return np.asarray(np.add.reduceat((x @ axes) ** 2, edges[:-1], axis=1) / np.diff(edges))


def _regression(profile_b: NDArray[np.float64], weights_b: NDArray[np.int64]) -> NDArray[np.float64]:
    """(b,) such that a row's log energies times them are its slope on the log of the profile."""
    log_b, share_b = np.log(profile_b + 1e-12), weights_b / weights_b.sum()
    centred_b = share_b * (log_b - share_b @ log_b)
    return np.asarray(centred_b / max(centred_b @ log_b, 1e-12))


# A file whose second half was made by another model has no majority, but its mean jumps once. In one that is sorted by
# class the mean changes all the time, which is no sign; where it jumps to another subject, the common slope tells.


def jump(vectors_nd: FloatArray) -> int:
    """From which of the rows, which are in the column's order, another model seems to have made all; 0: from none."""
    x = normalise(vectors_nd).astype(np.float32)
    means = np.stack([x[i : i + _BLOCK_ROWS].mean(axis=0) for i in range(0, len(x), _BLOCK_ROWS)]) if len(x) else x
    if len(means) < 2 * _FEWEST_BLOCKS:
        return 0
    sums = np.cumsum(means, axis=0)
    counts = np.arange(1, len(means) + 1)[:, None]
    before, after = sums / counts, (sums[-1] - sums) / np.maximum(len(means) - counts, 1)
    inner = slice(_FEWEST_BLOCKS - 1, len(means) - _FEWEST_BLOCKS)
    apart = np.linalg.norm(before - after, axis=1)[inner]
    larger = np.maximum(np.linalg.norm(before, axis=1), np.linalg.norm(after, axis=1))[inner]
    at = int(np.argmax(apart))
    split = at + _FEWEST_BLOCKS
    sides = (means[:split] - means[:split].mean(axis=0), means[split:] - means[split:].mean(axis=0))
    spread = float(np.sqrt((np.concatenate(sides) ** 2).sum(axis=1).mean()))
    # A mean of nothing is nothing, whose direction is noise.
    is_none = apart[at] < max(_JUMP * larger[at], _JUMP_OVER_SPREAD * spread) or larger[at] < 0.1
    # Without a block on each side: the jump may lie within one of them.
    smaller, larger_side = sorted((x[: (split - 1) * _BLOCK_ROWS], x[(split + 1) * _BLOCK_ROWS :]), key=len)
    slope, error = (np.inf, 0.0) if is_none else _common_slope(smaller, larger_side[::2], larger_side[1::2])
    return split * _BLOCK_ROWS if slope - error <= FLAT[1] else 0


def two_lengths(norms_N: NDArray[np.float32]) -> str:
    """What to say of (N,) lengths above 0 that fall into two groups with nothing between; "" if they do not."""
    lengths = np.sort(np.log(norms_N))
    few = max(2, int(_FEWEST_SHARE * len(lengths)))
    if len(lengths) < 4 * few:
        return ""
    gaps = np.diff(lengths)[few:-few]
    at = few + int(np.argmax(gaps))
    low, high = lengths[: at + 1], lengths[at + 1 :]
    spread = max(float(np.subtract(*np.percentile(side, [90, 10]))) for side in (low, high))
    if gaps.max() <= max(_GAP * spread, 0.05):
        return ""
    return (
        f"lengths fall into two groups: {len(low):,} vectors of about {np.exp(np.median(low)):.3g} and "
        f"{len(high):,} of about {np.exp(np.median(high)):.3g}"
    )
