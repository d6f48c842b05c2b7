"""Compares all methods on each upgrade, and keeps what the atlas needs of it: one small table of curves.

An upgrade is a collection and two of its models. Its queries are in ten folds at random, so that what is chosen on some
is judged on others, and differences have an error.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

import ray_backfill as rb
from ray_backfill.compare.evaluation import Evaluation
from ray_backfill.compare.run import evaluate_folder
from ray_backfill.core.progress import say
from ray_backfill.core.runkey import fingerprint
from ray_backfill.core.stages import read_json
from ray_backfill.data.folder import read_folder
from ray_backfill.data.write import write_parquet
from ray_backfill.encode.encoder import IMAGE, TEXT
from ray_backfill.engine import statistics
from ray_backfill.engine.merges import BEST
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from reproduction.atlas.embeddings import FOLD, FOLDS

# Instead of a fold: all queries; a forecast, from this share of the gallery's new embeddings, and at least so many.
ALL = ""
FORECAST, SHARE, LEAST = "forecast", 0.05, 200
# Raw distances may lose most in the last hundredth of the backfill.
POINTS = 101
# Methods that are the old service until the last moment: no line leads there.
STEPS = ("offline", "cascade")
# What a forecast compares, with the merge that is chosen for each; mAP@100, because it can predict nothing of the first
# ten results.
FORECAST_METHODS = ("rm_naive", "relaxed_gallery", "ridge_gallery", "slerp", "fct")
# Train items of the atlas, and of further comparisons of texts.
TRAIN, TRAIN_TEXTS = 1950, (600, 5000)
# Nothing is trained but FCT and full RM, whose labels only some collections have.
METHODS = (
    *("offline", "instant", "rm_naive", "cascade@100", "cascade_map@100", "convex"),
    *("procrustes_gallery", "relaxed_gallery", "least_squares_gallery", "ridge_gallery", "ridge_query"),
    *("low_rank_gallery", "local_gallery", "common_prefix", "qdc", "slerp", "drift_procrustes", "fct", "rm"),
)
MERGES = ("raw", "best", "zscore", "rrf", "csls")
# What is compared with other numbers of train items.
METHODS_BY_TRAIN = ("offline", "rm_naive", "relaxed_gallery", "ridge_gallery", "slerp", "fct")
# All orders but the oracle take the labels of train items or of the gallery, which not all collections have.
ORDER_METHODS = ("rm_naive", "ridge_gallery", "fct")
ORDERS = ("random", "centroid_cosine", "class_mean_distance", "mapped_class_mean_distance", "mapped_least_confidence")
# Old and new model by modality, each on all collections. FIRST>SECOND: the gallery of the first, mapped to the second.
PAIRS = {
    TEXT: (
        ("lsa", "wordllama-256"), ("lsa", "minilm"), ("glove", "wordllama-256"), ("glove", "minilm"),
        ("static", "wordllama-256"), ("static", "minilm"), ("wordllama-64", "wordllama-256"),
        ("wordllama-256", "minilm"), ("wordllama-64>wordllama-256", "minilm"),
        ("wordllama-256", "minilm-narrow"), ("minilm", "minilm-tuned"),
    ),
    IMAGE: (
        ("colours", "lite0-96"), ("hog", "lite0-96"), ("hog", "lite2-160"), ("lite0-96", "lite0-128"),
        ("lite0-128", "lite1-128"), ("lite0-128", "lite2-160"), ("lite1-128", "lite2-160"),
        ("hog>lite0-96", "lite1-128"), ("lite0-128", "lite0-128-tuned"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Upgrade:
    """An upgrade of a collection, by names, with so many train items at most."""

    collection: str
    old: str
    new: str
    train: int = TRAIN

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.old}_{self.new}{f'_{self.train}' * (self.train != TRAIN)}"


def compare(upgrade: Upgrade, joined: Path, out: Path, methods: tuple[str, ...] = METHODS) -> pd.DataFrame:
    """Compare the methods; returns one row for each curve, of all queries and of each fold.

    With another number of train items than ``TRAIN``, in random order only.

    Columns: those of ``Upgrade``, metric, method, order, merge, fold, queries, start, end, auc, curve (M_t as a list,
    of all queries only), learned (False: worse than rank merge on validation items), and, of all queries, the auc of
    old and new alone with the same merge: CSLS changes them, too, and so the offline upgrade.

    joined: folder of the two models.
    """
    say(f"{upgrade.collection}: {upgrade.old} to {upgrade.new}")
    which = ("old", "new", *methods)
    how = Evaluation(which, ("random",), MERGES, metrics=("recommended",), points=POINTS, slices=(FOLD,))
    results = _evaluate(joined, out, how, "results")
    every, folds, queries = (
        pd.read_parquet(results / f"{name}.parquet") for name in ("curves", "subgroups", "queries")
    )
    folds = folds[folds["group"].isin(FOLDS)].rename(columns={"group": FOLD})
    points = _with_csls(pd.concat([_of_all(every, len(queries)), folds]))
    found = _areas(points, every["metric"].iloc[0])
    alone = pd.read_parquet(results / "summary.parquet")
    if upgrade.train == TRAIN and read_folder(joined).gallery.label is not None:
        which = ("old", "new", *ORDER_METHODS)
        ordered = Evaluation(which, ORDERS, ("best",), metrics=("recommended",), points=POINTS)
        points = pd.read_parquet(_evaluate(joined, out, ordered, "orders") / "curves.parquet")
        points = _of_all(points[points["order"] != "random"], len(queries))
        found = pd.concat([found, _areas(points, points["metric"].iloc[0])])
    keys = ["metric", "method", "order", "merge"]
    found = found.merge(alone[[*keys, "old_auc", "new_auc"]].assign(**{FOLD: ALL}), "left", [*keys, FOLD])
    found["learned"] = ~found["method"].isin(_unlearned(results))
    return found.assign(**asdict(upgrade))


def _with_csls(points: pd.DataFrame) -> pd.DataFrame:
    """The points, and those of the offline upgrade with CSLS: of old until the last moment, which is of new."""
    is_csls, is_last = points["merge"] == "csls", points["t"] == 1
    own = points[is_csls & (points["method"] == np.where(is_last, "new", "old"))].assign(method="offline")
    keys = ["metric", "method", "order", "merge", "t"]
    total = own.assign(value=own["value"] * own["queries"]).groupby(keys, as_index=False)[["value", "queries"]].sum()
    total["value"] /= total["queries"]
    total[FOLD] = ALL
    return pd.concat([points, own, total])


def _unlearned(results: Path) -> list[str]:
    """Methods that are worse than rank merge on validation items; [] if there are too few to tell."""
    path = results / "checks.parquet"
    checks = pd.read_parquet(path) if path.exists() else pd.DataFrame({"method": [], "is_worse": []})
    return checks.loc[checks["is_worse"].astype(bool), "method"].to_list()


def _evaluate(joined: Path, out: Path, how: Evaluation, results: str) -> Path:
    context = Context(out, command="make atlas", overwrite=True)
    return evaluate_folder(joined, how, FitSettings.of_folder(), context, results=results)


def _of_all(points: pd.DataFrame, queries: int) -> pd.DataFrame:
    own = points.assign(queries=queries)
    own[FOLD] = ALL
    return own


def _areas(points: pd.DataFrame, metric: str) -> pd.DataFrame:
    """One row for each curve in a metric."""
    keys = ["metric", "method", "order", "merge", FOLD, "queries"]
    rows = []
    for key, own in points[points["metric"] == metric].sort_values("t").groupby(keys, sort=False):
        values = own["value"].to_numpy()
        auc = statistics.auc(own["t"].to_numpy(), values, str(key[1]).startswith(STEPS))
        row = {
            "start": values[0],
            "end": values[-1],
            "auc": auc,
            "curve": values.astype(np.float32) if key[4] == ALL else None,
        }
        rows.append(dict(zip(keys, key, strict=True)) | row)
    return pd.DataFrame(rows)


def forecast(upgrade: Upgrade, joined: Path, out: Path) -> pd.DataFrame:
    """Forecast the same upgrade from a sample; returns rows with the columns of ``Upgrade``, fold, method, merge, auc.

    out: folder of the comparison, whose maps are used, and where the sample and the result are kept.
    """
    mark = fingerprint(*sorted(read_json(joined / "manifest.json").items()), *FORECAST_METHODS)
    kept, sample = out / f"forecast-{BEST}-{mark}.parquet", out / f"sample-{mark}.parquet"
    if not kept.exists():
        if not sample.exists():
            size = len(read_folder(joined).gallery)
            rb.sample(joined, min(size, max(LEAST, math.ceil(SHARE * size))), out=sample)
        found = rb.forecast(joined, sample=sample, out=out, methods=FORECAST_METHODS, metrics="mAP@100")
        rows = found.summary[["method", "auc"]].assign(merge=BEST)
        offline = {"raw": found.manifest} | (
            {"csls": found.manifest["with_csls"]} if found.manifest["with_csls"] else {}
        )
        old = [{"method": "offline", "merge": name, "auc": ends["old"]["mAP@100"]} for name, ends in offline.items()]
        write_parquet(kept, pa.Table.from_pandas(pd.concat([rows, pd.DataFrame(old)]), preserve_index=False))
    return pd.read_parquet(kept).assign(**asdict(upgrade), **{FOLD: FORECAST, "order": "random"})
