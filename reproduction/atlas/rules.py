"""Rules of choice, and what each loses: its regret.

A rule sees the curves of one half of an upgrade's queries, or those of other upgrades, and names a method and a merge.
Its regret is the best AUC on the other half less the AUC of its choice there, in points; the mean over both directions.
The best is known in hindsight only, and is high by chance, too: the rule that sees all queries tells how much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd

from ray_backfill.learn.methods import find_methods
from reproduction.atlas.comparison import ALL, FORECAST, LEAST, METHODS, SHARE
from reproduction.atlas.embeddings import FOLD, FOLDS
from reproduction.atlas.models import family_of

Choice = tuple[str, str]
Names = tuple[str, str, str]

# Columns that name an upgrade, beside the number of train items, and what a rule chooses.
UPGRADE, CHOICE = ["collection", "old", "new"], ["method", "merge"]
HALF, HALVES = "half", {"a": FOLDS[::2], "b": FOLDS[1::2]}
# References. Cascades embed items for every query, so they are another service.
NOT_CHOSEN = ("old", "new", "rho_alone", "cascade@100", "cascade_map@100")
# They change the new embeddings by labels: a better model, however the gallery is merged.
SUPERVISED = ("rm",)
_SWITCH = ("offline", "raw")
# What a rule sees of an upgrade without a forecast.
_NOTHING = pd.Series(dtype=float)
# Draws of the bootstrap.
DRAWS = 2000
# Of differences between rules.
_LEVEL = 0.05


@dataclass(frozen=True)
class Seen:
    """What a rule may use. AUCs by choice: of half of the queries, of the forecast, and of all queries.

    others: regrets of all choices in other upgrades, a row for each of their halves. learned: methods that are not
    worse than rank merge on validation items.
    """

    half: pd.Series
    forecast: pd.Series
    every: pd.Series
    others: pd.DataFrame
    learned: frozenset[str]


@dataclass(frozen=True)
class Rule:
    """A rule. choose: its choice; ("", "") if it has none."""

    name: str
    title: str
    choose: Callable[[Seen], Choice]


def _always(method: str, merge: str) -> Callable[[Seen], Choice]:
    return lambda seen: (method, merge)


def _best(aucs: pd.Series) -> Choice:
    return cast("Choice", aucs.idxmax()) if len(aucs) else ("", "")


def _best_elsewhere(seen: Seen) -> Choice:
    """The choice with the least mean regret in the other upgrades, of those that are possible here and were there."""
    known = seen.others[[each for each in seen.others.columns if each in seen.half.index]].dropna(axis=1)
    return cast("Choice", known.mean().idxmin()) if known.size else ("", "")


def _report(aucs: pd.Series, learned: frozenset[str], more: tuple[Choice, ...] = ()) -> Choice:
    """What ``simulate`` compares by default, and recommends: no method that did not learn, and the chosen merge.

    If the best method that merges has CSLS and old with CSLS is no worse than any, the report advises to switch at the
    end, with CSLS. more: further choices, as if they were recommended.
    """
    own = {method.name for method in find_methods(METHODS) if method.is_recommended} & learned
    merges = {method: "raw" if method == "offline" else "best" for method in own}
    shown = aucs[[merges.get(method) == merge or (method, merge) in more for method, merge in aucs.index]]
    method, _ = _best(shown.drop(_SWITCH, errors="ignore"))
    with_csls = aucs.get((_SWITCH[0], "csls"))
    if with_csls is not None and aucs.get((method, "csls")) == aucs.get((method, "best")) and with_csls >= shown.max():
        return _SWITCH[0], "csls"
    return _best(shown)


RULES = (
    Rule("switch", "switch at the end", _always(*_SWITCH)),
    Rule("rank_merge", "rank merge", _always("rm_naive", "raw")),
    Rule("rank_merge_best", "rank merge, chosen merge", _always("rm_naive", "best")),
    Rule("ridge", "ridge", _always("ridge_gallery", "raw")),
    Rule("ridge_best", "ridge, chosen merge", _always("ridge_gallery", "best")),
    Rule("fct_best", "FCT, chosen merge", _always("fct", "best")),
    Rule("rm_best", "full RM, chosen merge", _always("rm", "best")),
    Rule("elsewhere", "what was best in the other upgrades", _best_elsewhere),
    Rule(
        "forecast",
        f"the forecast from {100 * SHARE:.0f} %, at least {LEAST} items, seeing all queries",
        lambda seen: _best(seen.forecast),
    ),
    Rule("report", "the report's recommendation", lambda seen: _report(seen.half, seen.learned)),
    Rule("report_all", "the same, seeing all queries", lambda seen: _report(seen.every, seen.learned)),
    Rule("seen", "the best of all methods and merges", lambda seen: _best(seen.half)),
    Rule("hindsight", "the same, seeing all queries", lambda seen: _best(seen.every)),
)

# Convex fusion needs both models for each query, also when the backfill is finished: no report recommends it.
WITH_CONVEX = Rule(
    "report_convex", "the same, if convex fusion were recommended",
    lambda seen: _report(seen.every, seen.learned, (("convex", "raw"),)),
)  # fmt: skip


def auc_table(curves: pd.DataFrame, with_supervised: bool = False) -> pd.DataFrame:
    """Rows: (collection, old, new, fold), "" for all; columns: (method, merge); AUC, NaN for a method left out."""
    left_out = (*NOT_CHOSEN, *(() if with_supervised else SUPERVISED))
    own = curves[~curves["method"].isin(left_out) & (curves["order"] == "random") & (curves[FOLD] != FORECAST)]
    return own.pivot_table(index=[*UPGRADE, FOLD], columns=CHOICE, values="auc", aggfunc="first")


def halves(curves: pd.DataFrame, with_supervised: bool = False) -> pd.DataFrame:
    """As ``auc_table``, with half instead of fold: means of the folds by numbers of queries."""
    table = auc_table(curves, with_supervised)
    queries = curves.drop_duplicates([*UPGRADE, FOLD]).set_index([*UPGRADE, FOLD])["queries"]
    parts = {}
    for half, folds in HALVES.items():
        own = table[table.index.get_level_values(FOLD).isin(folds)]
        weights = queries.reindex(own.index)
        sums = own.mul(weights, axis=0).groupby(UPGRADE, sort=False).sum(min_count=1)
        parts[half] = sums.div(weights.groupby(UPGRADE, sort=False).sum(), axis=0)
    return pd.concat(parts, names=[HALF]).reorder_levels([*UPGRADE, HALF])


def regrets(
    curves: pd.DataFrame,
    may_teach: Callable[[Names, Names], bool],
    with_supervised: bool = False,
    rules: Sequence[Rule] = RULES,
) -> pd.DataFrame:
    """One row for each upgrade, rule and half that is judged: method, merge, regret.

    curves: of all upgrades. may_teach: whether what is known of the second upgrade may be used for the first one.
    """
    table, every = halves(curves, with_supervised), auc_table(curves, with_supervised).xs(ALL, level=FOLD)
    lost = 100 * table.rsub(table.max(axis=1), axis=0)
    own = curves[(curves[FOLD] == FORECAST) & ~curves["method"].isin(NOT_CHOSEN)]
    forecasts = {cast("Names", key): each.set_index(CHOICE)["auc"] for key, each in own.groupby(UPGRADE)}
    whole = curves[(curves[FOLD] == ALL) & curves["learned"].fillna(False).astype(bool)]
    learned = {cast("Names", key): frozenset(each["method"]) for key, each in whole.groupby(UPGRADE)}
    rows: list[dict[str, Any]] = []
    for upgrade in dict.fromkeys(key[:3] for key in table.index):
        others = lost[[may_teach(upgrade, key[:3]) for key in table.index]]
        for sees, judged in (("a", "b"), ("b", "a")):
            seen = Seen(
                cast("pd.Series", table.loc[(*upgrade, sees)]).dropna(),
                forecasts.get(upgrade, _NOTHING),
                cast("pd.Series", every.loc[upgrade]).dropna(),
                others,
                learned.get(upgrade, frozenset()),
            )
            loss = cast("pd.Series", lost.loc[(*upgrade, judged)]).dropna()
            for rule in rules:
                choice = rule.choose(seen)
                if choice in loss.index:
                    names = dict(zip((*UPGRADE, *CHOICE), (*upgrade, *choice), strict=True))
                    rows.append(names | {"rule": rule.name, HALF: judged, "regret": loss[choice]})
    return pd.DataFrame(rows)


def decided(curves: pd.DataFrame, found: pd.DataFrame, with_supervised: bool = False) -> set[Names]:
    """The upgrades in which the best and the worst rule differ: by a t-test over the folds, for all pairs of rules.

    found: of ``regrets``, with the same choices.
    """
    from scipy.stats import t

    table = auc_table(curves, with_supervised)
    aucs = table.melt(ignore_index=False, value_name="auc").reset_index()
    aucs[HALF] = aucs[FOLD].map({fold: half for half, folds in HALVES.items() for fold in folds})
    judged = found.merge(aucs, on=[*UPGRADE, *CHOICE, HALF])
    rules = found["rule"].nunique()
    limit = t.ppf(1 - _LEVEL / (rules * (rules - 1)), len(FOLDS) - 1)
    upgrades = set()
    for names, own in judged.groupby(UPGRADE):
        values = own.pivot_table(index=FOLD, columns="rule", values="auc").dropna(axis=1)
        means = values.mean().sort_values()
        apart = values[means.index[-1]] - values[means.index[0]]
        if apart.mean() > limit * apart.std() / np.sqrt(len(apart)):
            upgrades.add(cast("Names", names))
    return upgrades


def other_collection(one: Names, other: Names) -> bool:
    """Whether the second upgrade is of another collection."""
    return one[0] != other[0]


def other_models(one: Names, other: Names) -> bool:
    """Whether the second upgrade is of another pair of families of models, on whatever collection."""
    return set(map(family_of, one[1:])) != set(map(family_of, other[1:]))


def mean_regrets(found: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Mean regret of each rule, with a 95 % interval: collections and pairs of families of models are drawn again.

    Index: rule. Columns: regret, low, high, largest (of single halves), upgrades.
    """
    each = found.groupby(["rule", *UPGRADE])["regret"].mean().unstack("rule")
    rng = np.random.default_rng(seed)
    collections = each.index.get_level_values(0)
    pairs = pd.Index([" ".join(sorted(map(family_of, key[1:]))) for key in each.index])
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
    largest = found.groupby("rule")["regret"].max()
    return pd.DataFrame(
        {"regret": each.mean(), "low": low, "high": high, "largest": largest, "upgrades": each.count()},
        index=each.columns,
    )
