"""Merges: methods that make the distances of two models comparable, fitted on the train split."""

from ray_backfill.engine.merges.kinds import BEST, MERGES_TO_CHOOSE, MergeKind, all_merges, check_merge, fit_merge
from ray_backfill.engine.merges.merge import RAW, Merge
from ray_backfill.engine.merges.score_map import ScoreMap

__all__ = [
    "BEST",
    "MERGES_TO_CHOOSE",
    "RAW",
    "Merge",
    "MergeKind",
    "ScoreMap",
    "all_merges",
    "check_merge",
    "fit_merge",
]
