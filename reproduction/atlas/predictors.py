"""What might predict how well an upgrade goes, known before it, and whether it does, out of sample."""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.data.folder import read_folder
from ray_backfill.engine.bands import band_of
from reproduction.atlas.comparison import ALL
from reproduction.atlas.embeddings import FOLD
from reproduction.atlas.rules import UPGRADE

# Column -> title.
PREDICTORS = {
    "old_dim": "dimensions of the old model",
    "new_dim": "dimensions of the new model",
    "items_per_dim": "items for maps, per old dimension",
    "cka": "linear CKA between the models",
    "overlap": "overlap of the bands of cosines",
}
# Methods and merges whose gains are predicted.
TARGETS = (("rm_naive", "raw"), ("rm_naive", "best"), ("ridge_gallery", "best"))
# A smaller improvement is too small for shares of it.
LEAST_STEP = 0.01
# Fewer upgrades than this cannot be predicted from others.
_FEWEST = 10
# Least value of a predictor before its logarithm: an overlap may be 0.
_LEAST = 0.01


def similarity(joined: Path) -> dict[str, float]:
    """Dimensions; items for maps per old dimension, their linear CKA (Kornblith et al. 2019, eq. 3); bands of cosines.

    joined: folder of both models. Bands: the middle 98 % of random pairs of gallery items, which may be longer texts
    than those for maps, and are then more alike; their overlap: as a share of the shorter one.
    """
    folder = read_folder(joined)
    assert folder.train is not None
    x, y = np.asarray(folder.train.old, np.float32), np.asarray(folder.train.new, np.float32)
    dims = {"old_dim": x.shape[1], "new_dim": y.shape[1]}
    old, new = band_of(folder.gallery.old), band_of(folder.gallery.new)
    common = min(old.high, new.high) - max(old.low, new.low)
    bands = {"old_low": old.low, "old_high": old.high, "new_low": new.low, "new_high": new.high}
    overlap = max(0.0, common / min(old.high - old.low, new.high - new.low))
    return dims | bands | {"items_per_dim": len(x) / x.shape[1], "cka": linear_cka(x, y), "overlap": overlap}


def linear_cka(x_Np: NDArray[np.float32], y_Nq: NDArray[np.float32]) -> float:
    """0 (nothing in common) to 1 (equal but for rotation and scale)."""
    x, y = (each - each.mean(axis=0, dtype=np.float64) for each in (x_Np, y_Nq))
    own = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / own)


def predictability(curves: pd.DataFrame, method: str, merge: str, in_points: bool = False) -> pd.DataFrame:
    """How far each predictor, and all together, foretell a method's gain on collections that they have not seen.

    in_points: the gain in points of AUC; otherwise as a share of the upgrade's improvement.

    Index: title. Columns: rank (Spearman's correlation; NaN for all together), explained: 1 less the squared error of a
    linear prediction, relative to that of the mean gain of the other collections. Empty for fewer than ten upgrades.
    """
    from scipy.stats import spearmanr
    from sklearn.linear_model import LinearRegression, RidgeCV
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    own = curves[
        (curves["method"] == method)
        & (curves["merge"] == merge)
        & (curves[FOLD] == ALL)
        & (curves["order"] == "random")
    ]
    own = own[own["new_auc"] - own["old_auc"] >= LEAST_STEP].drop_duplicates(UPGRADE)
    if len(own) < _FEWEST or own["collection"].nunique() < 2:
        return pd.DataFrame(columns=["rank", "explained"])
    step = own["new_auc"] - own["old_auc"]
    gains = ((own["auc"] - own["old_auc"]) / (1 if in_points else step)).to_numpy()
    folds = list(LeaveOneGroupOut().split(gains, groups=own["collection"]))
    means = np.empty(len(gains))
    for fitted, judged in folds:
        means[judged] = gains[fitted].mean()

    def explained(names: list[str]) -> float:
        values = np.log(np.maximum(own[names].to_numpy(np.float64), _LEAST))
        # Several are nearly collinear: items for maps are about as many in all collections.
        model = LinearRegression() if len(names) == 1 else RidgeCV(np.logspace(-1, 3, 9))
        found = cross_val_predict(make_pipeline(StandardScaler(), model), values, gains, cv=folds)
        return float(1 - ((gains - found) ** 2).sum() / ((gains - means) ** 2).sum())

    rows = {
        title: {"rank": float(spearmanr(own[name], gains).statistic), "explained": explained([name])}
        for name, title in PREDICTORS.items()
    }
    rows["all together"] = {"rank": np.nan, "explained": explained(list(PREDICTORS))}
    return pd.DataFrame.from_dict(rows, orient="index")
