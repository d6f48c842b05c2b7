"""Compares all methods on each upgrade, and keeps what the atlas needs of it: one small table of curves.

An upgrade is a collection and two of its models. Its queries are halves, a and b, so that what is chosen on one half
is judged on the other.
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
from ray_backfill.learn.training.settings import FitSettings
from ray_backfill.workers.settings import Context
from reproduction.atlas.embeddings import HALF, HALVES

# Instead of a half: a forecast, from this share of the gallery's new embeddings, and at least so many.
FORECAST, SHARE, LEAST = "forecast", 0.05, 200
# What a forecast compares: raw distances, and mAP@100, because it can predict nothing of the first ten results.
FORECAST_METHODS = ("rm_naive", "procrustes_gallery", "relaxed_gallery", "ridge_gallery")
# Nothing is trained but FCT and full RM, whose labels only some collections have.
METHODS = (
    *("offline", "instant", "rm_naive", "cascade@100", "cascade_map@100", "convex"),
    *("procrustes_gallery", "relaxed_gallery", "least_squares_gallery", "ridge_gallery", "ridge_query"),
    *("low_rank_gallery", "local_gallery", "common_prefix", "qdc", "slerp", "drift_procrustes", "fct", "rm"),
)
MERGES = ("raw", "best", "zscore", "rrf", "csls")
# Old and new model by modality, each on all collections. FIRST>SECOND: the gallery of the first, mapped to the second.
PAIRS = {
    TEXT: (
        ("lsa", "wordllama-256"), ("lsa", "minilm"), ("glove", "wordllama-256"), ("glove", "minilm"),
        ("static", "wordllama-256"), ("static", "minilm"), ("wordllama-64", "wordllama-256"),
        ("wordllama-256", "minilm"), ("wordllama-64>wordllama-256", "minilm"),
    ),
    IMAGE: (
        ("colours", "lite0-96"), ("hog", "lite0-96"), ("hog", "lite2-160"), ("lite0-96", "lite0-128"),
        ("lite0-128", "lite1-128"), ("lite0-128", "lite2-160"), ("lite1-128", "lite2-160"),
        ("hog>lite0-96", "lite1-128"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Upgrade:
    """An upgrade of a collection, by names."""

    collection: str
    old: str
    new: str

    @property
    def name(self) -> str:
        """Its folder."""
        return f"{self.old}_{self.new}"


def compare(upgrade: Upgrade, joined: Path, out: Path, methods: tuple[str, ...] = METHODS) -> pd.DataFrame:
    """Compare the methods; returns one row for each curve.

    Columns: those of ``Upgrade``, metric, method, order, merge, half ("" for all queries), queries, start, end, auc,
    and the auc of old and new. joined: folder of the two models.
    """
    say(f"{upgrade.collection}: {upgrade.old} to {upgrade.new}")
    evaluation = Evaluation(
        ("old", "new", *methods), orders=("random",), merges=MERGES, metrics=("recommended",), slices=(HALF,)
    )
    results = evaluate_folder(
        joined, evaluation, FitSettings.of_folder(), Context(out, command="make atlas", overwrite=True)
    )
    every, halves, queries = (pd.read_parquet(results / f"{n}.parquet") for n in ("curves", "subgroups", "queries"))
    points = pd.concat([every.assign(group="", queries=len(queries)), halves[halves["group"].isin(HALVES)]])
    points = points[points["metric"] == every["metric"].iloc[0]]  # the primary metric
    keys = ["metric", "method", "order", "merge", "group", "queries"]
    rows = []
    for key, curve in points.sort_values("t").groupby(keys, sort=False):
        values = curve["value"].to_numpy()
        # The offline upgrade serves the old model until the last moment, so that no line leads there.
        auc = values[0] if key[1] == "offline" else np.trapezoid(values, curve["t"].to_numpy())
        rows.append(dict(zip(keys, key, strict=True)) | {"start": values[0], "end": values[-1], "auc": auc})
    found = pd.DataFrame(rows).rename(columns={"group": HALF})
    for name in ("old", "new"):
        own = found[found["method"] == name].groupby(HALF)["auc"].first()
        found[f"{name}_auc"] = found[HALF].map(own)
    return found.assign(**asdict(upgrade))


def forecast(upgrade: Upgrade, joined: Path, out: Path) -> pd.DataFrame:
    """Forecast the same upgrade from a sample; returns rows with the columns of ``Upgrade``, half, method, merge, auc.

    out: folder of the comparison, where the sample and the result are kept.
    """
    mark = fingerprint(*sorted(read_json(joined / "manifest.json").items()))
    kept, sample = out / f"forecast-{mark}.parquet", out / f"sample-{mark}.parquet"
    if not kept.exists():
        if not sample.exists():
            size = len(read_folder(joined).gallery)
            rb.sample(joined, min(size, max(LEAST, math.ceil(SHARE * size))), out=sample)
        found = rb.forecast(joined, sample=sample, methods=FORECAST_METHODS, metrics="mAP@100")
        rows = dict(zip(found.summary["method"], found.summary["auc"], strict=True))
        rows |= {"offline": found.manifest["old"]["mAP@100"]}
        write_parquet(kept, pa.table({"method": list(rows), "auc": list(rows.values())}))
    return pd.read_parquet(kept).assign(**asdict(upgrade), **{HALF: FORECAST, "merge": "raw"})
