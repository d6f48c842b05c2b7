"""Small models of the tests, named as python:tests.encode._models:NAME."""

import hashlib
import sys
import time
from typing import Any

import numpy as np


def _vector(text: str, dims: int) -> Any:
    """Counts of hashed words, so that texts with common words are close."""
    out = np.full(dims, 1e-3, np.float32)
    for word in text.lower().split():
        out[int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest()) % dims] += 1
    return out


def old(texts: list[str]) -> Any:
    return np.stack([_vector(text, 16) for text in texts])


def wide(texts: list[str]) -> Any:
    return np.stack([_vector(text, 32) for text in texts])


class New:
    """Asks which side a text is on."""

    batch = 7

    def __call__(self, texts: list[str], side: str) -> Any:
        assert side in ("query", "document")
        return wide(texts) + np.float32(side == "query")


def pixels(images: list[Any]) -> Any:
    return np.stack([np.asarray(image.resize((4, 4)), np.float32).ravel() / 255 + 0.01 for image in images])


def means(images: list[Any]) -> Any:
    return np.stack([np.asarray(image, np.float32).mean((0, 1)) / 255 + 0.01 for image in images])


def wrong_number(texts: list[str]) -> Any:
    return np.ones((len(texts) + 1, 4))


def tokens(texts: list[str]) -> Any:
    return np.ones((len(texts), 3, 4))


def not_finite(texts: list[str]) -> Any:
    return np.full((len(texts), 4), np.nan)


def one_number(texts: list[str]) -> Any:
    return np.ones(len(texts))


def grows(texts: list[str]) -> Any:
    return np.ones((len(texts), 3 + len(texts[0]) % 5))


def fails(texts: list[str]) -> Any:
    raise ValueError("out of order")


class NeedsArguments:
    def __init__(self, folder: str) -> None:
        self.folder = folder


number = 3


def chokes(texts: list[str]) -> Any:
    if any("horse" in text for text in texts):
        raise ValueError("not this one")
    return old(texts)


def ragged(texts: list[str]) -> Any:
    return [[1.0] * (1 + row) for row in range(len(texts))]


def no_dimensions(texts: list[str]) -> Any:
    return np.ones((len(texts), 0))


def imaginary(texts: list[str]) -> Any:
    return np.ones((len(texts), 4)) * 1j


def objects(texts: list[str]) -> Any:
    return [[None, 1.0] for _ in texts]


def words(texts: list[str]) -> Any:
    return [["1.5", "2"] for _ in texts]


def returns_none(texts: list[str]) -> Any:
    return None


def days(texts: list[str]) -> Any:
    return np.zeros((len(texts), 2), "datetime64[D]")


def exits(texts: list[str]) -> Any:
    sys.exit(7)


def exits_at_horses(texts: list[str]) -> Any:
    if any("horse" in text for text in texts):
        sys.exit(7)
    return old(texts)


def hungry(texts: list[str]) -> Any:
    raise MemoryError("Unable to allocate 8 EiB")


def overflows(texts: list[str]) -> Any:
    return np.full((len(texts), 2), 1e300)


class NoIdentity:
    """Its identity cannot be asked."""

    def __call__(self, texts: list[str]) -> Any:
        return old(texts)

    def identity(self) -> Any:
        raise RuntimeError("nobody knows")


class ExitsForIdentity(NoIdentity):
    def identity(self) -> Any:
        sys.exit()


class OddIdentity(NoIdentity):
    def identity(self) -> Any:
        return {1, 2}


class NoBatch(NoIdentity):
    @property
    def batch(self) -> int:
        raise RuntimeError("no batch")


class HungryAtStart:
    def __init__(self) -> None:
        raise MemoryError


def slow_old(texts: list[str]) -> Any:
    time.sleep(0.2)
    return old(texts)


def slow_new(texts: list[str]) -> Any:
    time.sleep(0.2)
    return np.stack([_vector(text, 24) for text in texts]) + np.float32(0.5)
