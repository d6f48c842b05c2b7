"""Models of texts: counts of words, and of letters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def old(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.array([[text.count(f"word{word}") + 0.1 for word in range(9)] for text in texts], np.float32)


def new(texts: Sequence[str]) -> NDArray[np.float32]:
    return np.array(
        [[text.count(f"word{word}") + 0.1 * (len(text) % 7) for word in range(5)] + [1.0] for text in texts], np.float32
    )
