"""Scores of a re-ranker."""

from dataclasses import dataclass

import numpy as np

from ray_backfill.engine.systems import Floats, IntArray


@dataclass(frozen=True)
class PairScores:
    query: IntArray
    item: IntArray
    score: Floats

    def of(self, query: IntArray, item: IntArray) -> Floats:
        known = dict(zip(zip(self.query.tolist(), self.item.tolist(), strict=True), self.score.tolist(), strict=True))
        return np.array([known.get(pair, np.nan) for pair in zip(query.tolist(), item.tolist(), strict=True)])
