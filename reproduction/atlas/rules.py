"""Rules of choice, and what each loses: its regret.

A rule sees the curves of one half of an upgrade's queries, or those of other upgrades, and names a method and a merge.
Its regret is the best AUC on the other half less the AUC of its choice there, in points; the mean over both directions.
The best is known in hindsight only, and is high by chance, too: a rule that always chose the truly best method would
have a small regret.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from reproduction.atlas.comparison import FORECAST, LEAST, SHARE
from reproduction.atlas.embeddings import HALF
from reproduction.atlas.models import family_of

Choice = tuple[str, str]
Names = tuple[str, str, str]

# Columns that name an upgrade, and what a rule chooses.
UPGRADE, CHOICE = ["collection", "old", "new"], ["method", "merge"]
# They embed items for every query, so they are another service; a rule cannot choose them, nor old and new.
NOT_CHOSEN = ("old", "new", "cascade@100", "cascade_map@100")
# What a rule sees of an upgrade without a forecast.
_NOTHING = pd.Series(dtype=float)
# Draws of the bootstrap.
DRAWS = 2000


@dataclass(frozen=True)
class Rule:
    """A rule. choose: takes the AUCs that it sees, and the regrets of all choices in the other upgrades.

    is_forecast: it sees those of the forecast, not those of half of the queries.
    """

    name: str
    title: str
    choose: Callable[[pd.Series, pd.DataFrame], Choice]
    is_forecast: bool = False


def _always(method: str, merge: str) -> Callable[[pd.Series, pd.DataFrame], Choice]:
    return lambda seen, others: (method, merge)


def _best_seen(seen: pd.Series, others: pd.DataFrame) -> Choice:
    return cast("Choice", seen.idxmax()) if len(seen) else ("", "")


def _best_elsewhere(seen: pd.Series, others: pd.DataFrame) -> Choice:
    """The choice with the least mean regret in the other upgrades, of those that are possible here and were there.

    ("", "") if there are no others.
    """
    known = others[[each for each in others.columns if each in seen.index]].dropna(axis=1)
    return cast("Choice", known.mean().idxmin()) if known.size else ("", "")


RULES = (
    Rule("switch", "switch at the end", _always("offline", "raw")),
    Rule("rank_merge", "rank merge", _always("rm_naive", "raw")),
    Rule("rank_merge_best", "rank merge with the best merge", _always("rm_naive", "best")),
    Rule("ridge", "ridge", _always("ridge_gallery", "raw")),
    Rule("ridge_best", "ridge with the best merge", _always("ridge_gallery", "best")),
    Rule("elsewhere", "what was best in the other upgrades", _best_elsewhere),
    Rule("seen", "what is best in the comparison", _best_seen),
    Rule(
        "forecast",
        f"what is best in the forecast from {100 * SHARE:.0f} % of the items, at least {LEAST}",
        _best_seen,
        is_forecast=True,
    ),
)


def auc_table(curves: pd.DataFrame) -> pd.DataFrame:
    """Rows: (collection, old, new, half); columns: (method, merge); AUC, NaN where a method was left out."""
    own = curves[~curves["method"].isin(NOT_CHOSEN) & ~curves[HALF].isin(["", FORECAST])]
    return own.pivot_table(index=[*UPGRADE, HALF], columns=CHOICE, values="auc", aggfunc="first")


def regrets(curves: pd.DataFrame, may_teach: Callable[[Names, Names], bool]) -> pd.DataFrame:
    """One row for each upgrade, rule and half that is judged: method, merge, regret, and the worst choice's regret.

    curves: of all upgrades. may_teach: whether what is known of the second upgrade may be used for the first one.
    """
    table = auc_table(curves)
    lost = 100 * table.rsub(table.max(axis=1), axis=0)
    own = curves[(curves[HALF] == FORECAST) & ~curves["method"].isin(NOT_CHOSEN)]
    forecasts = {cast("Names", key): each.set_index(CHOICE)["auc"] for key, each in own.groupby(UPGRADE)}
    rows: list[dict[str, Any]] = []
    for upgrade in dict.fromkeys(key[:3] for key in table.index):
        others = lost[[may_teach(upgrade, key[:3]) for key in table.index]]
        for sees, judged in (("a", "b"), ("b", "a")):
            seen = cast("pd.Series", table.loc[(*upgrade, sees)]).dropna()
            loss = cast("pd.Series", lost.loc[(*upgrade, judged)]).dropna()
            for rule in RULES:
                choice = rule.choose(forecasts.get(upgrade, _NOTHING) if rule.is_forecast else seen, others)
                if choice in loss.index:
                    names = dict(zip((*UPGRADE, *CHOICE), (*upgrade, *choice), strict=True))
                    rows.append(
                        names | {"rule": rule.name, HALF: judged, "regret": loss[choice], "worst": float(loss.max())}
                    )
    return pd.DataFrame(rows)


def other_collection(one: Names, other: Names) -> bool:
    """Whether the second upgrade is of another collection."""
    return one[0] != other[0]


def other_models(one: Names, other: Names) -> bool:
    """Whether the second upgrade is of another pair of families of models, on whatever collection."""
    return set(map(family_of, one[1:])) != set(map(family_of, other[1:]))


def mean_regrets(found: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Mean regret of each rule, with a 95 % interval: collections and pairs of models are both drawn with replacement.

    Index: rule. Columns: regret, low, high, largest, upgrades.
    """
    each = found.groupby(["rule", *UPGRADE])["regret"].mean().unstack("rule")
    rng = np.random.default_rng(seed)
    collections = each.index.get_level_values(0)
    pairs = pd.MultiIndex.from_tuples([key[1:] for key in each.index])
    draws = []
    for _ in range(DRAWS):
        weights = np.ones(len(each))
        for level in (collections, pairs):
            names = level.unique()
            times = pd.Series(rng.multinomial(len(names), np.full(len(names), 1 / len(names))), index=names)
            weights *= times.reindex(level).to_numpy()
        shares = weights[:, None] * each.notna().to_numpy()  # a rule may have no choice in some upgrades
        with np.errstate(invalid="ignore"):
            draws.append(np.nansum(weights[:, None] * each.to_numpy(), axis=0) / shares.sum(axis=0))
    low, high = np.nanpercentile(draws, [2.5, 97.5], axis=0)
    return pd.DataFrame(
        {"regret": each.mean(), "low": low, "high": high, "largest": each.max(), "upgrades": each.count()},
        index=each.columns,
    )
