"""A trial of a method's settings: fit on the train split, replay on the validation split. Needs no Ray.

The gallery and the queries are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ray_backfill.comparison.evaluation import Evaluation
from ray_backfill.comparison.resolve import resolve
from ray_backfill.files import begin_stage, finish_stage, is_finished
from ray_backfill.methods import Method, find_methods
from ray_backfill.replay import replay
from ray_backfill.store import EmbeddingFolder, read_validation
from ray_backfill.training.fit import train_set
from ray_backfill.training.settings import FitSettings

# The backfill order of every trial, and the moments of its replay.
_ORDER, _POINTS = "random", 11


@dataclass(frozen=True)
class Trial:
    """One trial. data: a folder with a validation split. out: a stage that has begun, for the score.

    metric, distance: those of the comparison.
    """

    method: str
    settings: FitSettings
    distance: str
    data: Path
    out: Path
    metric: str
    order_seed: int = 0

    def recorded(self, folder: EmbeddingFolder, method: Method) -> dict[str, Any]:
        """Everything that determines the score, for a manifest. folder: ``read_validation(data)``."""
        assert method.fit is not None
        measured = {"metric": self.metric, "distance": self.distance, "order": _ORDER, "seed": self.order_seed}
        of_fit: Mapping[str, Any] = method.fit.recorded(self.settings, self.distance)
        return {"data": folder.fingerprint(method.models), "measured": measured, **of_fit}


def run_trial(trial: Trial) -> None:
    """Fit, replay and store the score: the area under the metric over a backfill; None if the training diverged."""
    from ray_backfill.training.fit_into import fit_into  # loads torch

    (method,) = find_methods((trial.method,))
    assert method.fit is not None
    folder = read_validation(trial.data, method.models)
    data = train_set(folder)
    method.fit.check(data, trial.settings, 1)
    with TemporaryDirectory() as scratch:
        network = Path(scratch) / method.name
        begin_stage(network, "map", {})
        fit_into(network, method.title, method.fit, data, trial.settings, trial.distance)
        score = _score(folder, method, network, trial) if is_finished(network) else None
    finish_stage(trial.out, {"score": score})


def _score(folder: EmbeddingFolder, method: Method, network: Path, trial: Trial) -> float:
    how = Evaluation(
        (method.name,), (_ORDER,), metrics=(trial.metric,), points=_POINTS, distance=trial.distance,
        order_seed=trial.order_seed,
    )  # fmt: skip
    comparison = resolve(folder, how, trial.settings, from_images=True).fitted({method.name: network})
    pair = comparison.pair(method)
    order = comparison.orders_of(method, pair)[_ORDER]
    curve = replay(pair, comparison.truth, order, _POINTS, trial.metric, trial.distance, threads=1)
    return curve.auc(trial.metric)
