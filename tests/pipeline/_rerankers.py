"""Re-rankers of the tests, named as python:tests.pipeline._rerankers:NAME."""

from typing import Any

import numpy as np

# What ``score`` has been called with, and the calls after which it fails.
calls: list[tuple[list[str], list[str]]] = []
fails_after = [10**9]


def score(queries: list[str], texts: list[str]) -> Any:
    """Words in common, less a little for every letter of the text."""
    if len(calls) >= fails_after[0]:
        raise RuntimeError("out of\norder")
    calls.append((list(queries), list(texts)))
    return [
        len({*query.split()} & {*text.split()}) - len(text) / 1e3 for query, text in zip(queries, texts, strict=True)
    ]


def other(queries: list[str], texts: list[str]) -> Any:
    return np.zeros(len(queries))


class Small:
    """Of its own batch, and of 32 bits."""

    batch = 5

    def __call__(self, queries: list[str], texts: list[str]) -> Any:
        return np.array(score(queries, texts), np.float32)


def not_a_number(queries: list[str], texts: list[str]) -> Any:
    return [float("nan") if "five" in text else 1.0 for text in texts]


def infinite(queries: list[str], texts: list[str]) -> Any:
    return np.full(len(texts), -np.inf)


def too_few(queries: list[str], texts: list[str]) -> Any:
    return [1.0] * (len(texts) - 1)


def two_each(queries: list[str], texts: list[str]) -> Any:
    return np.ones((len(texts), 2))


def words(queries: list[str], texts: list[str]) -> Any:
    return texts


def nothing(queries: list[str], texts: list[str]) -> Any:
    return None


def exits(queries: list[str], texts: list[str]) -> Any:
    raise SystemExit(3)


class Unsure:
    """Its identity is no JSON."""

    def __call__(self, queries: list[str], texts: list[str]) -> Any:
        return np.ones(len(texts))

    def identity(self) -> Any:
        return {1, 2}


number = 3
