"""Finds embeddings of several models in one column.

Embeddings of one model have a common mean, which is far from that of another model, and usually a common length. So the
lengths fall into two groups with nothing between, or the mean jumps once in the file. In a file that is sorted by class
the mean changes all the time, which is no sign.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ray_backfill.data.doctor.scan import BLOCK_ROWS, VectorColumn
from ray_backfill.data.store.loose import FINE

# Blocks on each side of a jump.
_FEWEST_BLOCKS = 2
# Two groups of lengths: the gap between them, as a multiple of the larger spread within.
_GAP = 4.0
_FEWEST_SHARE = 0.02
# A jump of the mean: the distance of both means over the length of the larger one (about 1.4 between the unrelated
# directions of two models), and over the spread of the blocks' means on each side.
_JUMP, _JUMP_OVER_SPREAD = 0.7, 3.0


@dataclass(frozen=True)
class Mixed:
    """Signs of several models. where: for a message."""

    where: str


def find_mixed(column: VectorColumn) -> Mixed | None:
    """Whether a column seems to hold embeddings of several models."""
    return _two_lengths(column) or _jump(column)


def _two_lengths(column: VectorColumn) -> Mixed | None:
    lengths = np.sort(np.log(column.norms[column.problems == FINE]))
    few = max(2, int(_FEWEST_SHARE * len(lengths)))
    if len(lengths) < 4 * few:
        return None
    gaps = np.diff(lengths)[few:-few]
    at = few + int(np.argmax(gaps))
    low, high = lengths[: at + 1], lengths[at + 1 :]
    spread = max(_spread(low), _spread(high))
    if gaps.max() <= max(_GAP * spread, 0.05):
        return None
    return Mixed(
        f"lengths fall into two groups: {len(low):,} vectors of about {np.exp(np.median(low)):.3g} and "
        f"{len(high):,} of about {np.exp(np.median(high)):.3g}"
    )


def _spread(values: NDArray[np.float32]) -> float:
    return float(np.subtract(*np.percentile(values, [90, 10])))


def _jump(column: VectorColumn) -> Mixed | None:
    means = column.block_means
    if len(means) < 2 * _FEWEST_BLOCKS:
        return None
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
    typical = float(np.median(column.norms[column.problems == FINE]))
    # A mean of nothing is nothing, whose direction is noise.
    if apart[at] < max(_JUMP * larger[at], _JUMP_OVER_SPREAD * spread) or larger[at] < 0.1 * typical:
        return None
    return Mixed(
        f"the mean changes at about row {split * BLOCK_ROWS:,}, as if another model had made the vectors from there on"
    )
