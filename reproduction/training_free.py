"""The best combination without training, and the share of full RM's gain that it reaches."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reproduction.names import LABEL_FREE_MERGES, TRAINED_ORDERS, TRAINING_FREE_METHODS
from reproduction.runs import Case, Floats, Runs
from reproduction.spread import mean_of

FULL_RM = "rm"


@dataclass(frozen=True)
class TrainingFree:
    """best: the highest mean AUC of ``tried`` combinations. share_S: its gain over full RM's, by seed."""

    best: Case
    tried: int
    area_S: Floats
    gain_S: Floats
    rm_gain_S: Floats
    share_S: Floats


def best_training_free(runs: Runs, orders: Iterable[str]) -> TrainingFree | None:
    """The best of all methods and merges without training and labels, in these orders; None if there is none.

    Oracle orders and orders that need a trained model are skipped. Full RM has the order of the best combination and
    the raw merge; share_S is NaN if this was not run, or if its gain is not above 0.
    """
    free = [o for o in dict.fromkeys(orders) if o not in runs.oracles and o not in TRAINED_ORDERS]
    cases = [Case(m, o, merge) for m in TRAINING_FREE_METHODS for o in free for merge in LABEL_FREE_MERGES]
    means = {case: mean_of(runs.areas(case)) for case in cases if runs.has(case)}
    measured = {case: mean for case, mean in means.items() if np.isfinite(mean)}
    if not measured:
        return None
    best = max(measured, key=lambda case: measured[case])
    gain_S, rm_gain_S = (runs.values(c, lambda row: row.gain) for c in (best, Case(FULL_RM, best.order)))
    share_S = np.where(rm_gain_S > 0, gain_S / np.where(rm_gain_S > 0, rm_gain_S, 1.0), np.nan)
    return TrainingFree(best, len(measured), runs.areas(best), gain_S, rm_gain_S, share_S)
