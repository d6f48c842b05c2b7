"""The page of the atlas, from the table of curves alone."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from ray_backfill.core.stages import write_whole
from reproduction.atlas.collections import COLLECTIONS
from reproduction.atlas.embeddings import HALF
from reproduction.atlas.models import MODELS, family_of
from reproduction.atlas.predictors import predictability
from reproduction.atlas.rules import RULES, UPGRADE, mean_regrets, other_collection, other_models, regrets
from reproduction.markdown import PageTable, table_lines

# A choice that loses less, in points of AUC, is as good as the best.
CLOSE = 0.5
# Methods of the table of upgrades.
_SHOWN = (
    ("rm_naive", "raw"),
    ("rm_naive", "best"),
    ("ridge_gallery", "raw"),
    ("ridge_gallery", "best"),
    ("fct", "best"),
)


@dataclass(frozen=True)
class PageFacts:
    """command: that writes the page. machine, date: of the run. findings: Markdown written by hand, "" for none."""

    command: str
    machine: str
    date: str
    findings: str = ""


def write_page(path: Path, curves: pd.DataFrame, facts: PageFacts) -> None:
    """Write the page; curves: of all upgrades, as ``compare`` and ``forecast`` return them."""
    whole = curves[curves[HALF] == ""]
    upgrades = whole[UPGRADE].drop_duplicates()
    named = list(upgrades.itertuples(index=False, name=None))
    observed = {(collection, frozenset((family_of(old), family_of(new)))) for collection, old, new in named}
    pairs = {pair for _, pair in observed}
    text = f"""# Atlas of upgrades

{facts.findings}Each upgrade is a pair of models on a collection: {", ".join(upgrades["collection"].unique())}.
Models that share weights, such as a model and its first dimensions, count as one: {len(named)} upgrades have
{len(pairs)} independent pairs of models, and {len(observed)} independent pairs of models and collections.

Values are per cent of the metric, averaged over the backfill (AUC) in random order. They come from
[the table of curves]({path.stem}.parquet), which this command makes ({facts.machine}, {facts.date}):

    {facts.command}

## What a rule of choice loses

A rule names a method and a merge for an upgrade. Its regret is the best AUC of all methods less the AUC of its choice,
in points. Rules see one half of the queries, and are judged on the other; what they know of other upgrades is of other
collections (first column), or of other pairs of models (second). Brackets: 95 % intervals from resampling collections
and pairs of models. The best is known in hindsight only, and is partly best by chance: even a rule that knew the best
method would lose a little.

{table_lines(_rules_table(curves))}

## What predicts success

The gain of ridge with the best merge, predicted for each collection from the others, where the new model is better.
*Explained* is 1 less the squared error of a linear prediction (from logarithms), relative to that of the mean gain of
the other collections: 0 or less predicts nothing. Rank: Spearman's correlation over all upgrades.

{_predictors(curves)}

## Upgrades

Gains are the share of the upgrade's improvement that users get on average, in per cent: 0 is the old service
throughout, 100 the new one from the start. They mean little where old and new are almost equal, and nothing where the
new model is worse.

{table_lines(_upgrades_table(whole))}

## Models and collections

{table_lines(_models_table({each for _, old, new in named for each in (*old.split(">"), new)}))}

{table_lines(_collections_table(set(upgrades["collection"])))}
"""
    write_whole(path, lambda to: to.write_text(text, encoding="utf-8"))


def _rules_table(curves: pd.DataFrame) -> PageTable:
    ways = {"other collections": other_collection, "other pairs of models": other_models}
    found = {way: regrets(curves, may_teach) for way, may_teach in ways.items()}
    means = {way: mean_regrets(each) for way, each in found.items()}
    first = next(iter(found.values()))
    # Upgrades in which the choice matters: best and worst rule differ by more than is close.
    spread = first.groupby([*UPGRADE, HALF])["regret"].agg(np.ptp)
    matters = first.set_index([*UPGRADE, HALF]).loc[spread[spread > CLOSE].index]
    close = (matters["regret"] <= CLOSE).groupby(matters["rule"]).mean()
    rows = []
    for rule in RULES:
        if not all(rule.name in each.index for each in means.values()):  # it had nothing to choose from
            continue
        cells = [
            f"{each['regret']:.2f} [{each['low']:.2f}, {each['high']:.2f}]"
            for way in ways
            for each in [means[way].loc[rule.name].to_dict()]
        ]
        largest = means["other collections"].to_dict("index")[rule.name]["largest"]
        rows.append((rule.title, *cells, f"{largest:.1f}", f"{100 * close.get(rule.name, np.nan):.0f} %"))
    header = (
        "rule",
        *(f"regret, knowing {way}" for way in ways),
        "largest regret",
        f"within {CLOSE} points where it matters",
    )
    return PageTable(header, tuple(rows))


def _predictors(curves: pd.DataFrame) -> str:
    found = predictability(curves).to_dict("index")
    if not found:
        return "Not measured: it takes ten upgrades on two collections."
    rows = tuple(
        (str(name), f"{row['rank']:.2f}".replace("nan", "-"), f"{row['explained']:.2f}") for name, row in found.items()
    )
    return table_lines(PageTable(("known before", "rank", "explained"), rows))


def _upgrades_table(whole: pd.DataFrame) -> PageTable:
    rows = []
    for names, own in whole.groupby(UPGRADE, sort=False):
        by_choice = own.set_index(["method", "merge"])["auc"].to_dict()
        old, new = own["old_auc"].iloc[0], own["new_auc"].iloc[0]
        gains = [
            f"{100 * (by_choice[choice] - old) / (new - old):.0f}" if choice in by_choice and new > old else "-"
            for choice in _SHOWN
        ]
        rows.append((*map(str, names), own["metric"].iloc[0], f"{100 * old:.1f}", f"{100 * new:.1f}", *gains))
    shown = (f"`{method}`, {merge}" for method, merge in _SHOWN)
    return PageTable(("collection", "old model", "new model", "metric", "old", "new", *shown), tuple(rows))


def _models_table(used: set[str]) -> PageTable:
    rows = (
        (f"`{model.name}`", model.explains, model.family, ", ".join(model.packages) or "-", model.licence or "-")
        for model in MODELS if model.name in used
    )  # fmt: skip
    return PageTable(("model", "what it is", "family", "packages", "licence of the weights"), tuple(rows))


def _collections_table(used: set[str]) -> PageTable:
    rows = (
        (each.name, each.explains, each.needs or "made by this command", each.licence or "-")
        for each in COLLECTIONS if each.name in used
    )  # fmt: skip
    return PageTable(("collection", "what it is", "below --data-root", "licence"), tuple(rows))
