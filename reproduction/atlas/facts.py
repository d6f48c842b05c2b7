"""The figures that the findings quote and the page's tables do not show, from the table of curves alone.

python -m reproduction.atlas.facts docs/results/atlas.parquet
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from ray_backfill.encode.encoder import TEXT
from reproduction.atlas.collections import COLLECTIONS
from reproduction.atlas.comparison import ALL, TRAIN
from reproduction.atlas.embeddings import FOLD
from reproduction.atlas.page import CLOSE, LEAST_REGRET, NEAR, WORSE, improving, merge_areas
from reproduction.atlas.predictors import LEAST_STEP
from reproduction.atlas.rules import (
    CHOICE,
    NOT_CHOSEN,
    RULES,
    UPGRADE,
    WITH_CONVEX,
    Choice,
    Names,
    auc_table,
    decided,
    mean_regrets,
    other_collection,
    regrets,
)

# Pairs of rules whose regrets are compared with an interval.
_PAIRS = (
    ("ridge_best", "report"), ("fct_best", "report"), ("elsewhere", "fct_best"), ("elsewhere", "ridge_best"),
    ("forecast", "report_all"),
)  # fmt: skip
_TEXTS = {each.name for each in COLLECTIONS if each.modality == TEXT}
# What is quoted of single upgrades.
_QUOTED: Sequence[Choice] = (
    ("rm_naive", "raw"), ("rm_naive", "best"), ("slerp", "best"), ("ridge_gallery", "best"), ("fct", "best"),
    ("qdc", "best"),
)  # fmt: skip


def facts(curves: pd.DataFrame) -> Iterator[str]:
    """Lines of text. curves: of all upgrades, as ``compare`` and ``forecast`` return them."""
    by_train, curves = curves, curves[curves["train"] == TRAIN]
    whole = curves[(curves[FOLD] == ALL) & (curves["order"] == "random")]
    yield "# Rules of choice"
    yield from _rules(curves)
    yield "# Merges of a method, with any number of train items"
    yield from _merges(merge_areas(by_train))
    yield "# Regret by collection, in points"
    yield from _by_collection(curves)
    yield "# Better than the old service throughout?"
    yield from _harms(improving(whole))
    yield "# Single upgrades"
    yield from _singles(whole)


def _rules(curves: pd.DataFrame) -> Iterator[str]:
    found = regrets(curves, other_collection, rules=(*RULES, WITH_CONVEX))
    is_decided = decided(curves, found[found["rule"] != WITH_CONVEX.name])
    for rule, regret in found.groupby("rule", sort=False):
        own = regret[pd.MultiIndex.from_frame(regret[UPGRADE]).isin(is_decided)]
        is_close, outside = own["regret"] <= CLOSE, own["collection"] != "cranfield"
        yield (
            f"{rule}: mean {regret['regret'].mean():.2f}; of {len(own)} decided halves {100 * is_close.mean():.2f} % "
            f"within {CLOSE}, {100 * (own['regret'] <= NEAR).mean():.2f} % within {NEAR}; outside Cranfield "
            f"{is_close[outside].sum()} of {outside.sum()} within {CLOSE}; misses {_counts(own[~is_close])}"
        )
    elsewhere = found[found["rule"] == "elsewhere"].groupby(["collection", "method", "merge"]).size()
    yield f"best elsewhere: {elsewhere.to_dict()}"
    regret = found.pivot_table(index=[*UPGRADE, "half"], columns="rule", values="regret")
    for one, other in (pair for pair in _PAIRS if set(pair) <= set(regret)):
        apart = (regret[one] - regret[other]).rename("regret").reset_index().assign(rule=one)
        mean = mean_regrets(apart).loc[one]
        yield f"{one} less {other}: {mean['regret']:.2f} [{mean['low']:.2f}, {mean['high']:.2f}]"


def _merges(areas: pd.DataFrame) -> Iterator[str]:
    """areas: of ``merge_areas``. Quantile and isotonic are among the best merges only where they were chosen."""
    best = areas.drop(columns="rrf", errors="ignore").max(axis=1)
    for merge in ("best", "csls"):
        below, lost = areas["raw"] - areas[merge] > WORSE, best - areas[merge]
        for collection, own in lost.groupby(level="collection", sort=False):
            methods = below[own.index].groupby(level="method").sum()
            yield (
                f"{merge}, {collection}: more than {WORSE} below raw in {methods.sum()} of {len(own)}; loses "
                f"{own.mean():.2f} to the best merge, within {CLOSE} in {100 * (own <= CLOSE).mean():.0f} %; "
                f"below: {methods[methods > 0].to_dict()}"
            )


def _by_collection(curves: pd.DataFrame) -> Iterator[str]:
    table = auc_table(curves).xs(ALL, level=FOLD)
    lost = 100 * auc_table(curves, with_supervised=True).xs(ALL, level=FOLD).rsub(table.T.max(), axis=0)
    for (method, merge), own in cast("Iterable[tuple[Choice, pd.Series]]", lost.items()):
        if merge in {"best", "csls"}:
            means = own.astype(float).groupby(level="collection", sort=False).mean().round(2).to_dict()
            yield f"{method}, {merge}: mean {own.mean():.2f}, largest {own.max():.2f}; {means}"
    for merge in (each for each in ("raw", "csls") if each in lost["offline"]):
        yield f"switching at the end is best, {merge}: {(lost['offline', merge] < LEAST_REGRET).sum()} of {len(lost)}"
    every = curves[(curves[FOLD] == ALL) & ~curves["method"].isin(NOT_CHOSEN) & (curves["merge"] == "best")]
    aucs = every.pivot_table(index=[*UPGRADE, "method"], columns="order", values="auc")
    orders = 100 * aucs.sub(aucs["random"], axis=0).dropna()
    for name, worth in orders.groupby(level="method").mean().astype(float).round(2).iterrows():
        yield f"orders, {name}: {worth.to_dict()}"


def _harms(better: pd.DataFrame) -> Iterator[str]:
    """better: curves of upgrades whose new model is better."""
    for method, merge in (*_QUOTED, ("qdc", "raw")):
        own = better[(better["method"] == method) & (better["merge"] == merge)]
        harmed = own[own["auc"] < own["old_auc"]]
        lower = own[own["start"] < own["old_auc"]]
        yield (
            f"{method}, {merge}: harms {len(harmed)} of {len(own)} ({harmed['collection'].isin(_TEXTS).sum()} of "
            f"text); starts below old in {_counts(lower)} of {_counts(own)}"
        )
    raw = better[(better["method"] == "rm_naive") & (better["merge"] == "raw")]
    for apart, own in raw.groupby(raw["overlap"] == 0):
        where = "do not overlap" if apart else "overlap"
        yield f"rank merge, raw, cosines {where}: harms {(own['auc'] < own['old_auc']).sum()} of {len(own)}"
    own = better[(better["method"] == "cascade@100") & (better["merge"] == "raw")]
    own = own[own["new_auc"] - own["old_auc"] >= LEAST_STEP]
    gains = 100 * (own["auc"] - own["old_auc"]) / (own["new_auc"] - own["old_auc"])
    means = gains.groupby(own["collection"], sort=False).mean().round(0).to_dict()
    yield f"cascade of 100 gains {gains.min():.0f} to {gains.max():.0f} %: {means}"


def _singles(whole: pd.DataFrame) -> Iterator[str]:
    for names, own in whole.groupby(UPGRADE, sort=False):
        collection, old, new = cast("Names", names)
        choices = cast("dict[Choice, Any]", own.set_index(CHOICE).to_dict("index"))
        raw, with_csls = choices["rm_naive", "raw"], choices.get(("rm_naive", "csls"))
        title = f"{collection}, {old} to {new}"
        if (old, new) == ("glove", "minilm"):
            curve = 100 * np.asarray(raw["curve"])
            tenths = {t: round(float(curve[round(t * (len(curve) - 1))]), 1) for t in (0, 0.9, 0.99, 1)}
            yield f"{title}: rank merge, raw, at {tenths}"
        if (old, new) == ("lite0-128", "lite1-128"):
            columns = ("old_auc", "auc", "new_auc")
            raised = [{column: _percent(each[column]) for column in columns} for each in (raw, with_csls) if each]
            yield f"{title}: rank merge, raw and csls: {raised}"
        if new.endswith(("narrow", "tuned")) or ">" in old or (old, new) == ("wordllama-256", "minilm"):
            served = {choice: choices[choice]["auc"] for choice in _QUOTED if choice in choices}
            percent = {choice: _percent(auc) for choice, auc in served.items()}
            above = {choice: _percent(auc - raw["old_auc"]) for choice, auc in served.items()}
            ends = f"old {_percent(raw['old_auc'])}, new {_percent(raw['new_auc'])} by raw distances"
            yield f"{title}: {ends}; {percent}; above old: {above}"


def _percent(value: float) -> float:
    return round(100 * float(value), 1)


def _counts(rows: pd.DataFrame) -> dict[str, int]:
    """Rows of each collection."""
    return {str(name): len(own) for name, own in rows.groupby("collection", sort=False)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path, help="table of curves that python -m reproduction.atlas has written")
    given = parser.parse_args()
    if not given.table.is_file():
        parser.error(f"there is no table {given.table}; docs/results/atlas.parquet is that of the page")
    print("\n".join(facts(pd.read_parquet(given.table))))
