"""The page of the atlas, from the table of curves alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from ray_backfill.core.stages import write_whole
from ray_backfill.page.charts import REFERENCE_STYLES, Chart, DrawnCurve, numbered_style
from reproduction.atlas.collections import COLLECTIONS
from reproduction.atlas.comparison import ALL, METHODS_BY_TRAIN, STEPS, TRAIN
from reproduction.atlas.embeddings import FOLD
from reproduction.atlas.models import MODELS, family_of
from reproduction.atlas.predictors import LEAST_STEP, PREDICTORS, TARGETS, predictability
from reproduction.atlas.rules import (
    CHOICE,
    NOT_CHOSEN,
    RULES,
    SUPERVISED,
    UPGRADE,
    Choice,
    auc_table,
    decided,
    mean_regrets,
    other_collection,
    other_models,
    regrets,
)
from reproduction.markdown import PageTable, markdown_environment, table_lines

# Choices that lose less, in points of AUC, are as good as the best: of a comparison, and of a forecast.
CLOSE, NEAR, LEAST_REGRET = 0.5, 1.0, 0.05
# Points by which the chosen merge may serve less than raw distances without being listed.
WORSE = 0.3
_RULES_BY_TRAIN = (
    *("switch", "rank_merge_best", "ridge", "ridge_best", "fct_best", "report", "report_all", "seen", "hindsight"),
)
# Methods of the table of upgrades, and of the figure.
_SHOWN = (
    ("rm_naive", "raw"),
    ("rm_naive", "best"),
    ("ridge_gallery", "raw"),
    ("ridge_gallery", "best"),
    ("fct", "best"),
    ("cascade@100", "raw"),
)
# The upgrade that the README shows.
_EXAMPLE = ("banking77", "glove", "minilm")


@dataclass(frozen=True)
class PageFacts:
    """command: that writes the page. machine, date: of the run. findings: Markdown written by hand, "" for none."""

    command: str
    machine: str
    date: str
    findings: str = ""


def write_page(path: Path, curves: pd.DataFrame, facts: PageFacts) -> None:
    """Write the page and its figure; curves: of all upgrades, as ``compare`` and ``forecast`` return them."""
    by_train, curves = curves, curves[curves["train"] == TRAIN]
    whole = curves[(curves[FOLD] == ALL) & (curves["order"] == "random")]
    upgrades = whole[UPGRADE].drop_duplicates()
    named = list(upgrades.itertuples(index=False, name=None))
    observed = {(collection, frozenset((family_of(old), family_of(new)))) for collection, old, new in named}
    used = dict.fromkeys(each for _, old, new in named for each in (*old.split(">"), new))
    _draw(whole, path)
    environment = markdown_environment(Path(__file__).parent)
    text = environment.get_template("page.md.jinja").render(
        facts=facts,
        stem=path.stem,
        collections=list(upgrades["collection"].unique()),
        upgrades=len(named),
        pairs=len({pair for _, pair in observed}),
        observed=len(observed),
        least_regret=LEAST_REGRET,
        rules=_rules_table(curves, with_supervised=False),
        rules_with_labels=_with_labels(curves),
        train=TRAIN,
        rules_by_train=_rules_by_train(by_train),
        merges_by_train=_merges_by_train(by_train),
        methods=_methods_table(curves),
        orders=_orders(curves),
        predictors_in_shares=_predictors(curves, in_points=False),
        predictors_in_points=_predictors(curves, in_points=True),
        upgrades_table=_upgrades_table(whole),
        models=_models_table(whole, used),
        collections_table=_collections_table(set(upgrades["collection"])),
    )
    write_whole(path, lambda to: to.write_text(text, encoding="utf-8"))


def improving(whole: pd.DataFrame) -> pd.DataFrame:
    """The curves of upgrades whose new model is better."""
    better = whole.loc[(whole["merge"] == "raw") & (whole["new_auc"] > whole["old_auc"]), UPGRADE]
    return whole[pd.MultiIndex.from_frame(whole[UPGRADE]).isin(pd.MultiIndex.from_frame(better))]


def _draw(whole: pd.DataFrame, page: Path) -> None:
    """Beside the page, a chart for each collection, of mean curves over its upgrades, and the chart of the README."""
    from ray_backfill.page.drawing import panels_figure

    charts = []
    for collection, own in improving(whole).groupby("collection", sort=False):
        count = len(own[UPGRADE].drop_duplicates())
        charts.append(
            _chart(own, f"{collection}: METRIC, {f'mean of {count} upgrades' if count > 1 else 'one upgrade'}")
        )
    if charts:
        panels_figure(charts).savefig(page.with_suffix(".png"), dpi=110)
    example = whole[pd.MultiIndex.from_frame(whole[UPGRADE]) == _EXAMPLE]
    if len(example):
        chart = _chart(example, "METRIC during the backfill, from GloVe to MiniLM")
        panels_figure([chart]).savefig(page.with_name(f"{page.stem}-example.png"), dpi=110)


def _chart(own: pd.DataFrame, title: str) -> Chart:
    """Mean curves over the upgrades, of those methods that all of them have. title: METRIC stands for the metric."""
    upgrades, curves = own[UPGRADE].drop_duplicates(), []
    for number, (method, merge) in enumerate((("offline", "raw"), *_SHOWN, ("new", "raw"))):
        found = own[(own["method"] == method) & (own["merge"] == merge)]
        if len(found) != len(upgrades):
            continue
        values = 100 * np.mean(np.stack(found["curve"].to_list()), axis=0)
        name = f"{_title(method)}{', chosen merge' * (merge == 'best')}"
        style = REFERENCE_STYLES.get(method, numbered_style(number))
        t = np.linspace(0, 100, len(values))
        area = f"{100 * found['auc'].mean():.1f}"
        curves.append(DrawnCurve(f"{method}-{merge}", name, area, style, t, values, is_step=method.startswith(STEPS)))
    top = max(float(curve.y.max()) for curve in curves)
    metric = own["metric"].iloc[0]
    curves.sort(key=lambda curve: -float(curve.number))
    return Chart(title.replace("METRIC", metric), f"{metric} (%)", "AUC", tuple(curves), y_range=(0.0, 1.05 * top))


def _title(method: str) -> str:
    from ray_backfill.learn.methods import find_methods

    return find_methods((method,))[0].title


def _rules_table(curves: pd.DataFrame, with_supervised: bool) -> PageTable:
    ways = {"other collections": other_collection, "other pairs of models": other_models}
    found = {way: regrets(curves, may_teach, with_supervised) for way, may_teach in ways.items()}
    means = {way: mean_regrets(each) for way, each in found.items()}
    first = next(iter(found.values()))
    is_decided = decided(curves, first, with_supervised)
    names = pd.MultiIndex.from_frame(first[UPGRADE])
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
        own = first["rule"] == rule.name
        matters = first[own & names.isin(is_decided)]["regret"]
        shares = [_share(first[own]["regret"] <= CLOSE), _share(matters <= CLOSE), _share(matters <= NEAR)]
        rows.append((rule.title, *cells, f"{largest:.1f}", *shares))
    header = (
        "rule", *(f"regret, knowing {way}" for way in ways), "largest regret", f"within {CLOSE}: all",
        f"within {CLOSE}: {len(is_decided)} decided", f"within {NEAR}: decided",
    )  # fmt: skip
    return PageTable(header, tuple(rows))


def _rules_by_train(curves: pd.DataFrame) -> str:
    """Of the upgrades that were compared with several numbers of train items, with the methods of all of them."""
    own = curves[curves["method"].isin(METHODS_BY_TRAIN) & curves["merge"].isin(("raw", "best", "csls"))]
    several = own.groupby(UPGRADE)["train"].nunique()
    own = own[pd.MultiIndex.from_frame(own[UPGRADE]).isin(several.index[several > 1])]
    if own.empty:
        return "Not measured."
    columns = {}
    for train, of_train in own.groupby("train"):
        found = regrets(of_train, other_collection, rules=[rule for rule in RULES if rule.name in _RULES_BY_TRAIN])
        for rule, each in mean_regrets(found).to_dict("index").items():
            close = _share(found.loc[found["rule"] == rule, "regret"] <= CLOSE)
            columns[rule, train] = f"{each['regret']:.2f} [{each['low']:.2f}, {each['high']:.2f}], {close}"
    sizes = sorted(own["train"].unique())
    titles = {rule.name: rule.title for rule in RULES}
    rows = [(titles[name], *(columns.get((name, train), "-") for train in sizes)) for name in _RULES_BY_TRAIN]
    return table_lines(PageTable(("rule", *(f"at most {train:,}" for train in sizes)), tuple(rows)))


def merge_areas(curves: pd.DataFrame) -> pd.DataFrame:
    """AUC in points of each merge (columns), of upgrades, train items and methods (rows) with a chosen merge."""
    own = curves[(curves[FOLD] == ALL) & (curves["order"] == "random") & ~curves["method"].isin(NOT_CHOSEN)]
    areas = own.pivot_table(index=[*UPGRADE, "train", "method"], columns="merge", values="auc", sort=False)
    areas = areas.reindex(columns=areas.columns.union(["raw", "best"]))
    return 100 * areas.dropna(subset=["raw", "best"])


def _merges_by_train(curves: pd.DataFrame) -> str:
    """Where the chosen merge serves less than raw distances."""
    areas = merge_areas(curves)
    lost = (areas["raw"] - areas["best"]).sort_values(ascending=False)
    listed = lost[lost > WORSE]
    share = _share(lost > WORSE)
    said = f"In {len(listed)} of {len(lost):,} ({share}) of methods and upgrades, by more than {WORSE} points"
    if listed.empty:
        return f"{said}."
    header = (*UPGRADE, "train items", "method", "raw", "chosen merge")
    rows = [
        (*map(str, names), *(f"{areas.loc[names, merge]:.1f}" for merge in ("raw", "best"))) for names in listed.index
    ]
    return f"{said}:\n\n{table_lines(PageTable(header, tuple(rows)))}"


def _share(true: pd.Series) -> str:
    return f"{100 * true.mean():.0f} %" if len(true) else "-"


def _with_labels(curves: pd.DataFrame) -> str:
    """The rules on the upgrades that have full RM."""
    has_rm = curves["method"].isin(SUPERVISED)
    if not has_rm.any():
        return "Not measured: no collection has labels."
    upgrades = pd.MultiIndex.from_frame(curves[UPGRADE])
    own = curves[upgrades.isin(upgrades[has_rm])]
    return table_lines(_rules_table(own, with_supervised=True))


def _methods_table(curves: pd.DataFrame) -> PageTable:
    table = auc_table(curves, with_supervised=True).xs(ALL, level=FOLD)
    without = auc_table(curves).xs(ALL, level=FOLD)
    best = without.to_numpy(np.float64)
    lost = 100 * table.rsub(pd.Series(np.nanmax(best, axis=1), index=without.index), axis=0)
    better = improving(curves[(curves[FOLD] == ALL) & (curves["order"] == "random")])
    harmed = (better["auc"] < better["old_auc"]).groupby([better[name] for name in CHOICE]).mean().to_dict()
    of_collection = table.index.get_level_values("collection")
    shown = []
    for method, merge in cast("list[Choice]", list(table.columns)):
        if merge not in {"raw", "best"} or (table[method, merge].isna().any() and method not in SUPERVISED):
            continue
        own = lost[method, merge]
        times_best = str(int((own < LEAST_REGRET).sum()))
        harms = f"{100 * harmed[method, merge]:.0f} %" if (method, merge) in harmed else "-"
        by_collection = own.groupby(of_collection, sort=False).mean()
        cells = (f"{value:.1f}".replace("nan", "-") for value in by_collection)
        shown.append(
            (own.mean(), (f"`{method}`", merge, f"{own.mean():.1f}", *cells, f"{own.max():.1f}", times_best, harms))
        )
    header = ("method", "merge", "mean", *map(str, dict.fromkeys(of_collection)), "largest", "best", "harms")
    return PageTable(header, tuple(row for _, row in sorted(shown)))


def _orders(curves: pd.DataFrame) -> str:
    own = curves[(curves[FOLD] == ALL) & ~curves["method"].isin(NOT_CHOSEN) & (curves["merge"] == "best")]
    if not set(own["order"]) - {"random"}:
        return "Not measured: no collection has labels."
    table = own.pivot_table(index=[*UPGRADE, "method"], columns="order", values="auc")
    table = 100 * table.sub(table["random"], axis=0).drop(columns="random").dropna()
    rows = []
    for order in table.columns:
        cells = [
            f"{each.mean():+.1f} [{each.min():+.1f}, {each.max():+.1f}]"
            for _, each in table[order].groupby(level="method", sort=False)
        ]
        rows.append((f"`{order}`", *cells))
    methods = (f"`{name}`" for name in dict.fromkeys(table.index.get_level_values("method")))
    return table_lines(PageTable(("order", *methods), tuple(rows)))


def _predictors(curves: pd.DataFrame, in_points: bool) -> str:
    found = [predictability(curves, *target, in_points) for target in TARGETS]
    if any(each.empty for each in found):
        return "Not measured: it takes ten upgrades on two collections."
    rows = []
    for title in (*PREDICTORS.values(), "all together"):
        cells = (each.to_dict("index")[title] for each in found)
        rows.append((title, *(f"{cell['explained']:.2f} ({cell['rank']:.2f})".replace(" (nan)", "") for cell in cells)))
    return table_lines(PageTable(("known before", *map(_choice, TARGETS)), tuple(rows)))


def _choice(choice: tuple[str, str]) -> str:
    return f"`{choice[0]}`, {choice[1]}"


def _upgrades_table(whole: pd.DataFrame) -> PageTable:
    rows = []
    for names, own in whole.groupby(UPGRADE, sort=False):
        aucs = own[["auc", "old_auc", "new_auc"]].to_numpy(np.float64)
        of_choice = dict(zip(zip(own["method"], own["merge"], strict=True), starmap(_gain, aucs), strict=True))
        gains = [of_choice.get(choice, "-") for choice in _SHOWN]
        old, new = (own.loc[own["merge"] == "raw", f"{name}_auc"].iloc[0] for name in ("old", "new"))
        quality = (own["metric"].iloc[0], f"{100 * old:.1f}", f"{100 * new:.1f}", f"{own['cka'].iloc[0]:.2f}")
        rows.append((*map(str, names), *quality, *gains))
    header = ("collection", "old model", "new model", "metric", "old", "new", "CKA", *map(_choice, _SHOWN))
    return PageTable(header, tuple(rows))


def _gain(auc: float, old_auc: float, new_auc: float) -> str:
    step = new_auc - old_auc
    return f"{100 * (auc - old_auc) / step:.0f}" if step >= LEAST_STEP else "-"


def _models_table(whole: pd.DataFrame, used: Iterable[str]) -> PageTable:
    rows = []
    for model in (each for each in MODELS if each.name in set(used)):
        bands = [
            whole.loc[whole[side] == model.name, [f"{side}_low", f"{side}_high"]].to_numpy() for side in ("old", "new")
        ]
        own = np.concatenate(bands)
        cosines = f"{own[:, 0].min():.2f} to {own[:, 1].max():.2f}" if len(own) else "-"
        packages, licence = ", ".join(model.packages) or "-", model.licence or "-"
        rows.append((f"`{model.name}`", model.explains, model.family, cosines, packages, licence))
    header: Sequence[str] = ("model", "what it is", "family", "cosines", "packages", "licence of the weights")
    return PageTable(tuple(header), tuple(rows))


def _collections_table(used: set[str]) -> PageTable:
    rows = (
        (each.name, each.explains, each.needs or "made by this command", each.licence or "-")
        for each in COLLECTIONS if each.name in used
    )  # fmt: skip
    return PageTable(("collection", "what it is", "below --data-root", "licence"), tuple(rows))
