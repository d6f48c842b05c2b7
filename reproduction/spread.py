"""Numbers of several seeds as text."""

from collections.abc import Callable

import numpy as np
from scipy.stats import t

from ray_backfill.page.numbers import NOTHING, percent
from reproduction.runs import Floats


def mean_of(values_S: Floats) -> float:
    """The mean over the seeds that have the number; NaN if none has."""
    known = values_S[np.isfinite(values_S)]
    return float(known.mean()) if len(known) else float("nan")


def spread_of(values_S: Floats) -> float:
    """The sample standard deviation (n - 1) over seeds; NaN for fewer than two."""
    known = values_S[np.isfinite(values_S)]
    return float(known.std(ddof=1)) if len(known) > 1 else float("nan")


def seeds_interval(values_S: Floats) -> tuple[float, float]:
    """The 95 % interval of the mean over seeds by Student's t; NaN for fewer than two seeds."""
    known = values_S[np.isfinite(values_S)]
    if len(known) < 2:
        return float("nan"), float("nan")
    half = float(t.ppf(0.975, len(known) - 1)) * spread_of(known) / len(known) ** 0.5
    return mean_of(known) - half, mean_of(known) + half


def mean_and_spread(values_S: Floats, show: Callable[[float], str] = percent) -> str:
    """ "63.9 ± 0.6", with the number of seeds if some lack it; an en dash if all do."""
    known = int(np.isfinite(values_S).sum())
    if known == 0:
        return NOTHING
    spread = f" ± {show(spread_of(values_S))}" if known > 1 else ""
    return show(mean_of(values_S)) + spread + ("" if known == len(values_S) else f" ({known} of {len(values_S)} seeds)")


def signed(share: float) -> str:
    """A difference in points with its sign: "+1.2"."""
    text = percent(share)
    return f"+{text}" if share > 0 else text


def plain(value: float) -> str:
    """A number that is not a share, with two decimals."""
    return f"{value:.2f}" if np.isfinite(value) else NOTHING


def by_seed(values_S: Floats, show: Callable[[float], str] = signed) -> str:
    """ "+1.2, +0.8, +1.0"."""
    return ", ".join(show(float(v)) if np.isfinite(v) else NOTHING for v in values_S)


def seed_by_seed(values_S: Floats, show: Callable[[float], str] = signed) -> str:
    """ "+1.2, +0.8, +1.0 (mean +1.0 ± 0.2)"."""
    each = by_seed(values_S, show)
    if np.isfinite(values_S).sum() < 2:
        return each
    spread = show(spread_of(values_S)).removeprefix("+")
    return f"{each} (mean {show(mean_of(values_S))} ± {spread})"
