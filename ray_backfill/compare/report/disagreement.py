"""Metrics that disagree about the new model, beyond their intervals. Computes nothing."""

from ray_backfill.compare.report.results import Results
from ray_backfill.compare.report.situation import reference, upgrade
from ray_backfill.compare.tables.results import NEGATIVE_FLIPS_VS_OLD, NEW, OLD, POSITIVE_FLIPS_VS_OLD
from ray_backfill.page.numbers import listed, percent, percent_sign

FIRST = "CMC@1"
_WORDS = {1: "better", -1: "worse", 0: "not told apart from the old one by these queries"}


def disagreement(results: Results) -> str:
    """By which metrics the new model is better and by which worse, in a sentence; "" if none contradicts the first.

    A metric contradicts it if its 95 % interval shows a difference, and that of the first one does not show the same.
    """
    sides = {metric: _side(results, metric) for metric in results.metrics}
    own = sides[results.primary]
    if own is None or not _others(results, own):
        return ""
    parts = [f"{_WORDS[own]} by {_told(results, results.primary)}"]
    for side in (1, -1):
        if told := [_told(results, metric) for metric in _others(results, own) if sides[metric] == side]:
            parts.append(f"{_WORDS[side]} by {listed(told, 'and')}")
    return f"The new model is {' but '.join(parts)}."


def better_by(results: Results) -> list[str]:
    """The metrics that contradict the first one because the new model is better by them."""
    own = _side(results, results.primary)
    return [] if own is None else [metric for metric in _others(results, own) if _side(results, metric) == 1]


def _others(results: Results, own: int) -> list[str]:
    return [metric for metric in results.metrics if _side(results, metric) not in (None, 0, own)]


def _side(results: Results, metric: str) -> int | None:
    """1 if the new model is better, -1 if it is worse, 0 if its interval leaves that open; None without an interval."""
    step = upgrade(results, metric)
    return None if step is None else 1 if step.low > 0 else -1 if step.high < 0 else 0


def _told(results: Results, metric: str) -> str:
    """A metric with both values; of the first result also how many queries win and lose it."""
    old, new = reference(results, OLD, metric), reference(results, NEW, metric)
    assert old is not None
    assert new is not None
    won, lost = results.line(new, POSITIVE_FLIPS_VS_OLD), results.line(new, NEGATIVE_FLIPS_VS_OLD)
    flips = ""
    if metric == FIRST and won is not None and lost is not None:
        shares = percent_sign(won.value[-1]), percent_sign(lost.value[-1])
        flips = f": {shares[0]} of the queries win a right first result, {shares[1]} lose one"
    return f"{metric} ({percent(old.auc)} \u2192 {percent(new.auc)}{flips})"
