"""What might predict how well an upgrade goes, known before it, and whether it does, out of sample."""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ray_backfill.data.folder import read_folder
from reproduction.atlas.embeddings import HALF
from reproduction.atlas.rules import UPGRADE

# Column -> title.
PREDICTORS = {
    "old_dim": "dimensions of the old model",
    "new_dim": "dimensions of the new model",
    "items_per_dim": "items for maps, per old dimension",
    "cka": "linear CKA between the models",
    "relative_gain": "(new - old) / new",
}
# Fewer upgrades than this cannot be predicted from others.
_FEWEST = 10


def similarity(joined: Path) -> dict[str, float]:
    """Dimensions, items for maps per old dimension, and linear CKA (Kornblith et al. 2019, eq. 3) on these items.

    joined: folder of both models.
    """
    train = read_folder(joined).train
    assert train is not None
    x, y = np.asarray(train.old, np.float32), np.asarray(train.new, np.float32)
    dims = {"old_dim": x.shape[1], "new_dim": y.shape[1]}
    return dims | {"items_per_dim": len(x) / x.shape[1], "cka": linear_cka(x, y)}


def linear_cka(x_Np: NDArray[np.float32], y_Nq: NDArray[np.float32]) -> float:
    """0 (nothing in common) to 1 (equal but for rotation and scale)."""
    x, y = (each - each.mean(axis=0, dtype=np.float64) for each in (x_Np, y_Nq))
    own = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / own)


def predictability(curves: pd.DataFrame, method: str = "ridge_gallery", merge: str = "best") -> pd.DataFrame:
    """How far each predictor, and all together, foretell a method's gain on collections that they have not seen.

    Index: title. Columns: rank (Spearman's correlation; NaN for all together), explained: 1 less the squared error of a
    linear prediction, relative to that of the mean gain of the other collections. Empty for fewer than ten upgrades.
    """
    from scipy.stats import spearmanr
    from sklearn.linear_model import LinearRegression
    from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    own = curves[(curves["method"] == method) & (curves["merge"] == merge) & (curves[HALF] == "")]
    own = own[own["new_auc"] > own["old_auc"]].drop_duplicates(UPGRADE)
    if len(own) < _FEWEST or own["collection"].nunique() < 2:
        return pd.DataFrame(columns=["rank", "explained"])
    step = own["new_auc"] - own["old_auc"]
    gains, data = ((own["auc"] - own["old_auc"]) / step).to_numpy(), own.assign(relative_gain=step / own["new_auc"])
    folds = list(LeaveOneGroupOut().split(gains, groups=own["collection"]))
    means = np.empty(len(gains))
    for fitted, judged in folds:
        means[judged] = gains[fitted].mean()

    def explained(names: list[str]) -> float:
        values = np.log(data[names].to_numpy(np.float64))
        found = cross_val_predict(make_pipeline(StandardScaler(), LinearRegression()), values, gains, cv=folds)
        return float(1 - ((gains - found) ** 2).sum() / ((gains - means) ** 2).sum())

    rows = {
        title: {"rank": float(spearmanr(data[name], gains).statistic), "explained": explained([name])}
        for name, title in PREDICTORS.items()
    }
    rows["all together"] = {"rank": np.nan, "explained": explained(list(PREDICTORS))}
    return pd.DataFrame.from_dict(rows, orient="index")
