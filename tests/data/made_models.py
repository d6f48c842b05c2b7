"""Vectors of made models, and columns that two of them have made."""

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
DIMS, TOPICS, LATENT = 96, 12, 48


def items(rows: int, seed: int, topics: range = range(TOPICS)) -> NDArray[np.float64]:
    """(rows, LATENT) contents: each row is of one topic, which uses some of what can be said more than the rest."""
    rng = np.random.default_rng(seed)
    world = np.random.default_rng(99)
    means, uses = world.normal(size=(TOPICS, LATENT)), world.gamma(1, 1, size=(TOPICS, LATENT))
    topic = rng.choice(np.array(topics), rows)
    return np.asarray(means[topic] + uses[topic] * rng.normal(size=(rows, LATENT)))


def embedded(contents: NDArray[np.float64], model: int) -> Vectors:
    """By a model: axes of its own, of which it uses few much; a mean of its own; length 1."""
    rng = np.random.default_rng(1_000 + model)
    axes = np.linalg.qr(rng.normal(size=(DIMS, DIMS)))[0][:, :LATENT] / np.sqrt(1 + np.arange(LATENT))
    vectors = contents @ rng.permutation(axes.T) + 0.3 * rng.normal(size=DIMS) / np.sqrt(DIMS)
    vectors += 0.02 * np.random.default_rng(0).normal(size=vectors.shape)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def mixed(rows: int, foreign: int, seed: int) -> tuple[Vectors, NDArray[np.int64]]:
    """A column, and which of its rows another model has made."""
    contents = items(rows, seed)
    chosen = np.sort(np.random.default_rng(seed).permutation(rows)[:foreign])
    column = embedded(contents, model=1)
    column[chosen] = embedded(contents[chosen], model=2)
    return column, chosen
