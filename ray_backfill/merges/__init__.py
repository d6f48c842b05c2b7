"""How the rankings of two models become one: what makes their distances comparable, fitted on the train split."""

from ray_backfill.merges.kinds import MERGES, MergeKind, fit_merge
from ray_backfill.merges.merge import RAW, Merge
from ray_backfill.merges.score_map import ScoreMap

__all__ = ["MERGES", "RAW", "Merge", "MergeKind", "ScoreMap", "fit_merge"]
